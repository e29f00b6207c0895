"""The conversation of every connection, on our endpoint and in plain JSON: the handshake, lists, pings. The SDK takes
longer to import than all else, so its session is opened over the same endpoint when something needs it: a question to
the host, a subscription, a log message.
"""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import trio

from ..callbacks import Host
from ..enums import ListKind
from ..extensions import declared_by, with_extensions
from ..json_depth import more_values_than
from ..jsonrpc.endpoint import Endpoint
from ..jsonrpc.incoming import MOST_ASKED, Inbound, NotificationParams
from ..nurseries import open_bare_nursery
from ..preload import SDK_MODULES
from ..protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LOG_LEVEL_META_KEY,
    MCP_METHOD_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from ..version import VERSION
from . import plain
from .base import CHANGED, ListChanges, NotValid

if TYPE_CHECKING:
    from mcp.client import ClientSession
    from mcp.shared.dispatcher import CallOptions

    from .sdk import SdkSession

T = TypeVar("T")

INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"


def _patiently() -> "CallOptions":
    """The options of an opening request: its answer may take as long as the opening or the probe waits."""
    return {"timeout": math.inf, "cancel_on_abandon": False}


_UPDATED: Final = "notifications/resources/updated"


@cache
def client_info() -> Mapping[str, str]:
    """The client's name and version for servers."""
    return {"name": "mcp-nursery", "version": VERSION}


@asynccontextmanager
async def open_session(endpoint: Endpoint, host: Host, news: ListChanges) -> "AsyncGenerator[ServerSession, None]":
    """Speak over an endpoint, which is run until the block is left. Changes that the server reports go to `news`."""
    async with open_bare_nursery() as nursery:
        session = ServerSession(endpoint, host, news, nursery)
        await session.start()
        try:
            yield session
        finally:
            nursery.cancel_scope.cancel()


class ServerSession:
    """One conversation with a server. See `open_session`."""

    def __init__(self, endpoint: Endpoint, host: Host, news: ListChanges, nursery: trio.Nursery) -> None:
        self._endpoint = endpoint
        self._host = host
        self._news = news
        self._announced: Final = host.told
        self._log_level = _log_level(host)
        self._hello: dict[str, Any] = {}
        """The answer that was adopted, as far as the protocol knows it."""
        self.protocol_version: str | None = None
        """The version of the conversation; None before the handshake."""
        self.offered: str | None = None
        """The version that `initialize` named because the server had refused the latest; None if it named that."""
        self.server_info: dict[str, Any] | None = None
        """The server's own name and version; None if it gives none."""
        self._sdk: SdkSession | None = None
        self._nursery = nursery
        """The nursery of the endpoint and of the SDK's session. The session is held longer: a request that opens it
        when the connection is lost learns of the loss from its answer."""
        self._turn: trio.StrictFIFOLock | None = None
        """Held by the request that waits for the SDK: those behind it go on in order. None before the first."""

    @property
    def is_modern(self) -> bool:
        """True if the version is one without a handshake."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def server_capabilities(self) -> dict[str, Any] | None:
        """The capabilities of the server that the protocol knows; None before the handshake."""
        return self._hello.get("capabilities")

    @property
    def instructions(self) -> str | None:
        """The server's instructions, if there are any."""
        return self._hello.get("instructions")

    async def start(self) -> None:
        """Start the endpoint."""
        await self._nursery.start(self._endpoint.run, self._asked, self._told, self._intercept)

    # -- opening the conversation ---------------------------------------------------------------------------------

    async def initialize(self, version: str | None = None) -> dict[str, Any]:
        """Do the handshake: name a version (None: the latest), adopt the answer to `initialize`, and confirm it.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: It is not valid.
            RuntimeError: No protocol version in common.
        """
        self.offered = version
        params = {
            "protocolVersion": version or LATEST_HANDSHAKE_VERSION,
            "capabilities": self._host.callbacks.declared,
            "clientInfo": client_info(),
        }
        raw = await self._endpoint.send_raw_request(INITIALIZE, params, _patiently())
        hello = await _read_hello(INITIALIZE, raw)
        if hello["protocolVersion"] not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise RuntimeError(f"Unsupported protocol version from the server: {hello['protocolVersion']}")
        await self.adopt(INITIALIZE, hello)
        await self.notify("notifications/initialized")
        return hello

    async def send_discover(self, version: str) -> dict[str, Any]:
        """Send `server/discover`, and return the answer as it came.

        Raises:
            JsonRpcError: Refused, or no answer.
        """
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: DISCOVER}
        opts: CallOptions = {**_patiently(), "headers": headers}
        meta = {**self._stamp(version)}
        meta.pop(LOG_LEVEL_META_KEY, None)
        return await self._endpoint.send_raw_request(DISCOVER, {"_meta": meta}, opts)

    async def adopt_discovered(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Adopt an answer to `server/discover`.

        Raises:
            NotValid: It is not valid.
            RuntimeError: No protocol version in common.
        """
        hello = await _read_hello(DISCOVER, raw)
        await self.adopt(DISCOVER, hello)
        return hello

    async def adopt(self, method: str, hello: dict[str, Any]) -> None:
        """Speak as this answer to an opening request allows, in place of any before.

        Raises:
            RuntimeError: No protocol version in common.
        """
        info: dict[str, Any] | None
        if method == INITIALIZE:
            version, info = hello["protocolVersion"], hello["serverInfo"]
        else:
            shared = [each for each in MODERN_PROTOCOL_VERSIONS if each in hello["supportedVersions"]]
            if not shared:
                raise RuntimeError(
                    "No mutually supported modern protocol version "
                    f"(server: {hello['supportedVersions']}, client: {list(MODERN_PROTOCOL_VERSIONS)})"
                )
            version, info = shared[-1], await _read_info(hello.get("_meta"))
        self._hello = hello
        self.protocol_version, self.server_info = version, info
        if self._sdk is not None:
            self._sdk.adopt(hello)

    # -- requests and notifications -------------------------------------------------------------------------------

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, and return its result as it came.

        Raises:
            JsonRpcError: Refused, or no answer.
        """
        stamped, opts = dict(params or {}), self._options(method)
        if self.is_modern:
            stamped["_meta"] = self._stamp(cast("str", self.protocol_version))
        return await self._endpoint.send_raw_request(method, stamped, opts)

    async def do(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a request whose answer only confirms it.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: It is not valid.
        """
        raw = await self.request(method, params)
        await _read(lambda reader: reader.check_empty(method, raw, cast("str", self.protocol_version)))

    async def list_page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list, without its entries, which the endpoint sets aside.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: It is not valid.
        """
        raw = await self.request(method, None if cursor is None else {"cursor": cursor})
        return await _read(lambda reader: reader.read_page(method, raw, cast("str", self.protocol_version)))

    async def probe(self) -> None:
        """Send what every server answers at once: `ping` on older eras, `server/discover` on the modern one.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: It is not valid.
        """
        assert self.protocol_version is not None  # the handshake came first
        if self.is_modern:
            await self.send_discover(self.protocol_version)
        else:
            await self.do("ping")

    async def notify(self, method: str) -> None:
        """Send a notification of the older eras, without parameters; dropped once the connection is lost."""
        await self._endpoint.notify(method, None, self._options(method))

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification of a client of the host; dropped once the connection is lost."""
        await self._endpoint.tell(method, params, self._options(method))

    def _stamp(self, version: str) -> dict[str, Any]:
        """The members of every request's `_meta` in the modern era."""
        stamp: dict[str, Any] = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: client_info(),
            CLIENT_CAPABILITIES_META_KEY: self._announced,
        }
        return stamp if self._log_level is None else {**stamp, LOG_LEVEL_META_KEY: self._log_level}

    def _options(self, method: str) -> "CallOptions":
        if self.protocol_version is None:
            return {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.protocol_version}
        return {"headers": headers | {MCP_METHOD_HEADER: method} if self.is_modern else headers}

    # -- what the server sends ------------------------------------------------------------------------------------

    async def _asked(self, context: Inbound, method: str, params: NotificationParams) -> dict[str, Any]:
        if method == "ping" and not params and not self.is_modern:
            return {}
        return await (await self._opened_sdk()).dispatcher.asked(context, method, params)

    async def _told(self, context: Inbound, method: str, params: NotificationParams) -> None:
        """Handle a notification that is wanted."""
        if method in CHANGED and not params:
            self._news.lists_changed(CHANGED[method])
        elif method == _UPDATED and params is not None and set(params) == {"uri"} and type(params["uri"]) is str:
            self._news.resource_updated(params["uri"])
        elif self._wants(method):
            await (await self._opened_sdk()).dispatcher.told(context, method, params)

    @property
    def _wants_logs(self) -> bool:
        logger = self._host.logger
        return self._host.callbacks.log is not None or (logger is not None and logger.level is not None)

    def _intercept(self, method: str, params: NotificationParams) -> bool:
        """Take a notification out of turn, or drop an unwanted one; False if it waits."""
        return (self._sdk is not None and self._sdk.dispatcher.intercept(method, params)) or not self._wants(method)

    def _wants(self, method: str) -> bool:
        """True for a change, and for a log message while it is wanted."""
        return method in CHANGED or method == _UPDATED or (method == "notifications/message" and self._wants_logs)

    # -- the SDK's session ----------------------------------------------------------------------------------------

    async def sdk(self) -> "ClientSession":
        """The SDK's session over the same endpoint, opened when it is first needed."""
        return (await self._opened_sdk()).session

    async def _opened_sdk(self) -> "SdkSession":
        self._turn = self._turn or trio.StrictFIFOLock()
        if self._sdk is None or self._turn.locked():
            async with self._turn:
                if self._sdk is None:
                    await self._nursery.start(self._hold_sdk)
        assert self._sdk is not None  # set before its task reported its start
        return self._sdk

    async def _hold_sdk(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await SDK_MODULES.ensure_loaded()
        from .sdk import open_sdk_session

        async with open_sdk_session(self._endpoint, self._host, self._news, client_info()) as sdk:
            if self._hello:
                sdk.adopt(self._hello)
            self._sdk = sdk
            task_status.started()
            await trio.sleep_forever()


class _Reader(Protocol):
    """The two readers of answers: `plain`, and `models`, which decides where `plain` is in doubt."""

    def read_hello(self, method: str, raw: Mapping[str, Any]) -> dict[str, Any]: ...

    def read_page(self, method: str, raw: Mapping[str, Any], version: str) -> dict[str, Any]: ...

    def check_empty(self, method: str, raw: Mapping[str, Any], version: str) -> None: ...

    def read_implementation(self, raw: object) -> dict[str, Any] | None: ...


async def _read(read: Callable[[_Reader], T]) -> T:
    """Read an answer by `plain`; in doubt by the SDK's models, which are loaded for that.

    Raises:
        NotValid: It is not valid.
    """
    try:
        return read(plain)
    except plain.Doubtful:
        await SDK_MODULES.ensure_loaded()
        from . import models

        return read(models)


async def _read_hello(method: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read an introduction, without extensions that are not declared as they must be.

    Raises:
        NotValid: It is not valid, or too large to be read in one go.
    """
    if more_values_than(raw, MOST_ASKED):
        problem = f"an introduction with more than {MOST_ASKED} JSON values, the most it may have"
        raise NotValid(problem, problem)
    able: object = raw.get("capabilities")
    if isinstance(able, dict) and "extensions" in able:
        capabilities = cast("dict[str, Any]", able)
        raw = {**raw, "capabilities": with_extensions(capabilities, declared_by(capabilities))}
    return await _read(lambda reader: reader.read_hello(method, raw))


async def _read_info(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The name and version of a server in the `_meta` of its answer, if valid."""
    said = (meta or {}).get(SERVER_INFO_META_KEY)
    if said is None:
        return None
    return await _read(lambda reader: reader.read_implementation(said))


def _log_level(host: Host) -> str | None:
    if host.callbacks.log is not None:
        return host.callbacks.log_level
    return None if host.logger is None else host.logger.level


def offered(capabilities: Mapping[str, Any] | None, kinds: Collection[ListKind]) -> list[ListKind]:
    """The lists among these that a server advertises."""
    return [kind for kind in kinds if capability_of(capabilities, kind) is not None]


def capability_of(capabilities: Mapping[str, Any] | None, kind: ListKind) -> Mapping[str, Any] | None:
    """The capability of a server for this list; None if the server lacks it."""
    match kind:
        case ListKind.TOOLS | ListKind.PROMPTS:
            name = str(kind)
        case _:
            name = "resources"
    return (capabilities or {}).get(name)

"""What every connection speaks, on our endpoint and in plain JSON: the handshake, lists, pings. The SDK takes longer to
import than all else, so its session is opened over the same endpoint when something needs it: a question to the host,
a subscription, a log message.
"""

import math
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ..callbacks import Host
from ..enums import ListKind
from ..jsonrpc.dispatcher import Endpoint
from ..jsonrpc.incoming import Inbound, Params
from ..messages import LISTED
from ..nurseries import open_bare_nursery
from ..preload import loaded
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
from . import plain
from .base import CHANGED, News

if TYPE_CHECKING:
    from mcp.client import ClientSession
    from mcp.shared.dispatcher import CallOptions

    from .sdk import SdkSession

INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"


def _patiently() -> "CallOptions":
    """How the conversation is opened: the answer may take as long as whoever opens or probes the connection waits."""
    return {"timeout": math.inf, "cancel_on_abandon": False}


_UPDATED: Final = "notifications/resources/updated"


@cache
def client_info() -> Mapping[str, str]:
    """How servers are told who connects."""
    return {"name": "mcp-nursery", "version": version("mcp-nursery")}


@asynccontextmanager
async def open_session(endpoint: Endpoint, host: Host, news: News) -> "AsyncGenerator[Session, None]":
    """Speak over an endpoint, which is run until the block is left. Changes that the server reports go to `news`."""
    session = Session(endpoint, host, news)
    async with open_bare_nursery() as nursery:
        await nursery.start(session.run)
        try:
            yield session
        finally:
            nursery.cancel_scope.cancel()


class Session:
    """One conversation with a server. See `open_session`."""

    def __init__(self, endpoint: Endpoint, host: Host, news: News) -> None:
        self._endpoint = endpoint
        self._host = host
        self._news = news
        self._capabilities: Final = _capabilities(host)
        self._log_level = _log_level(host)
        self._hello: dict[str, Any] = {}
        """The answer that was adopted, as far as the protocol knows it."""
        self.protocol_version: str | None = None
        """That of the conversation; None before the handshake."""
        self.server_info: dict[str, Any] | None = None
        """The server's name of itself; None if it gives none."""
        self._sdk: SdkSession | None = None
        self._sdk_wanted: Final = trio.Event()
        self._sdk_opened: Final = trio.Event()
        self._turn: Final = trio.StrictFIFOLock()
        """Held by the request that waits for the SDK: those behind it go on in their order."""

    @property
    def is_modern(self) -> bool:
        """Whether the version is one without a handshake."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def server_capabilities(self) -> dict[str, Any] | None:
        """Those of the server that the protocol knows; None before the handshake."""
        return self._hello.get("capabilities")

    @property
    def instructions(self) -> str | None:
        """How to use the server, if it says so."""
        return self._hello.get("instructions")

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run the endpoint, and the SDK's session as soon as that is wanted."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hold_sdk)
            await self._endpoint.run(self._asked, self._told, self._intercept, task_status=task_status)

    # -- opening the conversation ---------------------------------------------------------------------------------

    async def initialize(self) -> dict[str, Any]:
        """Do the handshake: adopt the answer to `initialize`, and say so.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: The answer is none.
            RuntimeError: No protocol version in common.
        """
        params = {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": self._capabilities,
            "clientInfo": client_info(),
        }
        raw = await self._endpoint.send_raw_request(INITIALIZE, params, _patiently())
        hello = await self._read_hello(INITIALIZE, raw)
        if hello["protocolVersion"] not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise RuntimeError(f"Unsupported protocol version from the server: {hello['protocolVersion']}")
        await self.adopt(INITIALIZE, hello)
        await self.notify("notifications/initialized")
        return hello

    async def send_discover(self, version: str) -> dict[str, Any]:
        """The answer to `server/discover`, as it came.

        Raises:
            JsonRpcError: Refused, or no answer.
        """
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: DISCOVER}
        opts: CallOptions = {**_patiently(), "headers": headers}
        meta = {**self._stamp(version)}
        meta.pop(LOG_LEVEL_META_KEY, None)
        return await self._endpoint.send_raw_request(DISCOVER, {"_meta": meta}, opts)

    async def adopt_discovered(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Speak as an answer to `server/discover` allows.

        Raises:
            NotValid: It is none.
            RuntimeError: No protocol version in common.
        """
        hello = await self._read_hello(DISCOVER, raw)
        await self.adopt(DISCOVER, hello)
        return hello

    async def adopt(self, method: str, hello: dict[str, Any]) -> None:
        """Speak as this answer to this question allows, in place of any before.

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

    async def _read_hello(self, method: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return plain.read_hello(method, raw)
        except plain.Doubtful:
            await loaded()
            from . import models

            return models.read_hello(method, raw)

    # -- requests and notifications -------------------------------------------------------------------------------

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of a request, as it came.

        Raises:
            JsonRpcError: Refused, or no answer.
        """
        stamped, opts = dict(params or {}), self._options(method)
        if self.is_modern:
            stamped["_meta"] = self._stamp(cast("str", self.protocol_version))
        return await self._endpoint.send_raw_request(method, stamped, opts)

    async def do(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Have something done of which the answer says no more.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: The answer is none.
        """
        raw = await self.request(method, params)
        if "_meta" in raw or "resultType" in raw or self.is_modern:
            await loaded()
            from . import models

            models.check_empty(method, raw, cast("str", self.protocol_version))

    async def list_page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list but for its entries, which the endpoint leaves aside.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: The answer is none.
        """
        raw = await self.request(method, None if cursor is None else {"cursor": cursor})
        try:
            if type(raw.get(LISTED[method])) is not list:
                raise plain.Doubtful
            return plain.read_page(raw, modern=self.is_modern)
        except plain.Doubtful:
            await loaded()
            from . import models

            return models.read_page(method, raw, cast("str", self.protocol_version))

    async def probe(self) -> None:
        """Send what every server answers at once: `ping` on older eras, `server/discover` on the modern one.

        Raises:
            JsonRpcError: Refused, or no answer.
            NotValid: The answer is none.
        """
        assert self.protocol_version is not None  # the handshake came first
        if self.is_modern:
            await self.send_discover(self.protocol_version)
        else:
            await self.do("ping")

    async def notify(self, method: str) -> None:
        """Send a notification of the older eras, without parameters; dropped once the connection is lost."""
        await self._endpoint.notify(method, None, self._options(method))

    def _stamp(self, version: str) -> dict[str, Any]:
        """What the modern era puts into the `_meta` of every request."""
        stamp: dict[str, Any] = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: client_info(),
            CLIENT_CAPABILITIES_META_KEY: self._capabilities,
        }
        return stamp if self._log_level is None else {**stamp, LOG_LEVEL_META_KEY: self._log_level}

    def _options(self, method: str) -> "CallOptions":
        if self.protocol_version is None:
            return {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.protocol_version}
        return {"headers": headers | {MCP_METHOD_HEADER: method} if self.is_modern else headers}

    # -- what the server sends ------------------------------------------------------------------------------------

    async def _asked(self, context: Inbound, method: str, params: Params) -> dict[str, Any]:
        if method == "ping" and not params and not self.is_modern:
            return {}
        return await (await self._opened_sdk()).dispatcher.asked(context, method, params)

    async def _told(self, context: Inbound, method: str, params: Params) -> None:
        """Take a notification. What is neither a change nor a log message that somebody wants is nobody's."""
        if method in CHANGED and not params:
            self._news.lists_changed(CHANGED[method])
        elif method == _UPDATED and params is not None and set(params) == {"uri"} and type(params["uri"]) is str:
            self._news.resource_updated(params["uri"])
        elif method in CHANGED or method == _UPDATED or (method == "notifications/message" and self._wants_logs):
            await (await self._opened_sdk()).dispatcher.told(context, method, params)

    @property
    def _wants_logs(self) -> bool:
        logger = self._host.logger
        return self._host.callbacks.log is not None or (logger is not None and logger.level is not None)

    def _intercept(self, method: str, params: Params) -> bool:
        return self._sdk is not None and self._sdk.dispatcher.intercept(method, params)

    # -- the SDK's session ----------------------------------------------------------------------------------------

    async def sdk(self) -> "ClientSession":
        """The SDK's session over the same endpoint, opened when it is first wanted."""
        return (await self._opened_sdk()).session

    async def _opened_sdk(self) -> "SdkSession":
        if self._sdk is None or self._turn.locked():
            async with self._turn:
                if self._sdk is None:
                    self._sdk_wanted.set()
                    await self._sdk_opened.wait()
        assert self._sdk is not None  # as the event says
        return self._sdk

    async def _hold_sdk(self) -> None:
        await self._sdk_wanted.wait()
        await loaded()
        from .sdk import open_sdk_session

        async with open_sdk_session(self._endpoint, self._host, self._news, client_info()) as sdk:
            if self._hello:
                sdk.adopt(self._hello)
            self._sdk = sdk
            self._sdk_opened.set()
            await trio.sleep_forever()


async def _read_info(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The name of a server in the `_meta` of its answer: what is none counts as nothing said."""
    said = (meta or {}).get(SERVER_INFO_META_KEY)
    if said is None:
        return None
    try:
        return plain.read_implementation(said)
    except plain.Doubtful:
        await loaded()
        from . import models

        return models.read_implementation(said)


def _capabilities(host: Host) -> dict[str, Any]:
    """What the host can do for servers, as they are told."""
    callbacks = host.callbacks
    able: dict[str, Any] = {}
    if callbacks.sample is not None:
        able["sampling"] = {"tools": {}}
    if callbacks.elicit is not None:
        able["elicitation"] = {"form": {}, "url": {}}
    if callbacks.roots is not None:
        able["roots"] = {"listChanged": True}
    return able


def _log_level(host: Host) -> str | None:
    if host.callbacks.log is not None:
        return host.callbacks.log_level
    return None if host.logger is None else host.logger.level


def offered(capabilities: Mapping[str, Any] | None, kinds: Collection[ListKind]) -> list[ListKind]:
    """Those of these lists that a server advertises."""
    return [kind for kind in kinds if capability_of(capabilities, kind) is not None]


def capability_of(capabilities: Mapping[str, Any] | None, kind: ListKind) -> Mapping[str, Any] | None:
    """What a server says of this list; None if it does not have it."""
    match kind:
        case ListKind.TOOLS | ListKind.PROMPTS:
            name = str(kind)
        case _:
            name = "resources"
    return (capabilities or {}).get(name)

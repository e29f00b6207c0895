"""A connection on a wire of our own: calls go straight to the endpoint, the rest through the SDK's session over it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from mcp.client import ClientSession
from mcp_types import Tool
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ..callbacks import NO_HOST, Host
from ..enums import Era, Protocol
from ..errors import folded
from ..jsonrpc import codec
from ..jsonrpc.carrier import Carrier
from ..jsonrpc.dispatcher import Endpoint
from ..jsonrpc.pending import Post
from ..messages import CallTool, Handshake, Question, Round
from ..outcomes import Loss, Outcome, Unlisted
from ..reply import ReplySlot
from .base import Connection, HandshakeFailed
from .handshake import BAD_ANSWER, CLIENT_INFO, WrongProtocol, check_protocol, negotiate, probe
from .host_requests import announce_roots, answer, open_callbacks, round_params
from .list_changes import ToolChanges
from .tool_call import PreparedTools
from .tool_list import list_tools, raw_page


@asynccontextmanager
async def open_connection(
    carrier: Carrier, host: Host = NO_HOST, stderr_tail: Callable[[], str] = str
) -> AsyncGenerator[Connection, None]:
    """Speak MCP on what carries its frames, until the block is left. The server may ask what `host` offers."""
    async with open_callbacks(host) as callbacks:
        offer = host.protocol if host.protocol in HANDSHAKE_PROTOCOL_VERSIONS else None
        endpoint = Endpoint(carrier, host.limits, server=host.server, offer=offer)
        changes = ToolChanges()
        entering = ClientSession(dispatcher=endpoint, client_info=CLIENT_INFO, message_handler=changes, **callbacks)
        async with entering as session:  # which runs the endpoint, as its dispatcher, until it is left
            yield WiredConnection(carrier, endpoint, session, changes, host=host, stderr_tail=stderr_tail)


class WiredConnection:
    """A `Connection` whose tool calls spawn no task and make no pass through the session."""

    def __init__(
        self,
        carrier: Carrier,
        endpoint: Endpoint,
        session: ClientSession,
        changes: ToolChanges,
        *,
        host: Host,
        stderr_tail: Callable[[], str],
    ) -> None:
        self._carrier = carrier
        self._limits = host.limits
        self._protocol: Protocol = host.protocol
        self._offers_roots = host.callbacks.roots is not None
        self._stderr_tail = stderr_tail
        self._endpoint = endpoint
        self._session = session
        self._changes = changes
        self._era: Era | None = None
        self._tools = PreparedTools((), protocol_version="", stamp={})

    @property
    def pid(self) -> int | None:
        """The process behind it, where there is one."""
        return self._carrier.pid

    @property
    def stderr_tail(self) -> str:
        """The last lines the process wrote to stderr so far."""
        return self._stderr_tail()

    @property
    def in_flight(self) -> int:
        """Tool calls that wait for an answer."""
        return self._endpoint.in_flight

    @property
    def heard_at(self) -> float:
        """When the last frame came. See `Connection`."""
        return self._endpoint.heard_at

    async def handshake(self, era: Era | None) -> Handshake:
        """Open the conversation. See `Connection`."""
        protocol = self._protocol
        try:
            check_protocol(protocol, self._carrier.only_era)
            known = self._carrier.only_era or era
            handshake = await negotiate(self._session, known, self._carrier.taken, protocol=protocol)
        except WrongProtocol as error:
            raise HandshakeFailed(Loss(str(error), unusable=True)) from error
        except BAD_ANSWER as error:
            what = "the handshake" if protocol == "auto" else f"the handshake (protocol {protocol})"
            raise self._failed(what, error, probing=era is None and protocol == "auto") from error
        self._era = handshake.era
        return handshake

    async def list_tools(self) -> tuple[Tool, ...]:
        """Every page of `tools/list`. See `Connection`."""
        self._changes.listed()
        try:
            tools = await list_tools(partial(raw_page, self._session, self._endpoint), most=self._limits.kept)
        except BAD_ANSWER as error:
            raise self._failed("tools/list", error) from error
        self._carrier.opened()
        version = self._session.protocol_version
        assert version is not None  # the handshake came first
        self._tools = PreparedTools(tools, protocol_version=version, stamp=self._endpoint.stamp)
        return tools

    def submit(self, calls: Sequence[CallTool]) -> None:
        """Start calls with one write. See `Connection`."""
        posts: list[Post] = []
        for call in calls:
            slot, tool = call.slot, self._tools.get(call.tool)
            if tool is None:
                slot.resolve(Unlisted())
                continue
            encode = partial(tool.frame, arguments=call.arguments, meta=call.meta, wants_progress=slot.wants_progress)
            posts.append(Post(slot, encode, tool, partial(tool.headers, call.arguments), call.limited))
        self._endpoint.post(posts)

    async def answer(self, question: Question) -> Outcome:
        """Have the host answer a question. See `Connection`."""
        return await answer(self._session, question)

    def send_round(self, again: Round) -> None:
        """Start one more round of a call. See `Connection`."""
        call = again.call
        tool = call.slot.tool or self._tools.get(call.tool)  # that of the round before, also if it is listed no more
        if tool is None:
            call.slot.resolve(Unlisted())
            return

        def encode(request_id: int | str) -> bytes:
            meta = {**call.meta, "progressToken": request_id} if call.slot.wants_progress else call.meta
            return codec.request(request_id, "tools/call", round_params(again, tool.params_meta(meta)))

        self._endpoint.post([Post(call.slot, encode, tool, partial(tool.headers, call.arguments), call.limited)])

    def cancel(self, *slots: ReplySlot) -> None:
        """Take calls back, or tell the server. See `Connection`."""
        self._endpoint.cancel(*slots)

    async def room(self, limit: int) -> int:
        """Wait until fewer than `limit` calls are in flight. See `Connection`."""
        while self._endpoint.in_flight >= limit:
            await self._endpoint.settled()
        return limit - self._endpoint.in_flight

    def withdraw(self) -> None:
        """Give up what was not sent. See `Connection`."""
        self._endpoint.withdraw_unsent()

    async def idle(self) -> None:
        """Wait until no call is in flight. See `Connection`."""
        while self._endpoint.in_flight:
            await self._endpoint.settled()

    async def watch_tools(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever the tools changed. See `Connection`."""
        self._carrier.opened()
        await self._changes.watch(self._session, tell)

    async def announce_roots(self) -> None:
        """Tell the server that the roots are others. See `Connection`."""
        if self._offers_roots:
            await announce_roots(self._session)

    async def probe(self) -> None:
        """Ping, or discover where there is no ping. See `Connection`."""
        try:
            await probe(self._session)
        except BAD_ANSWER as error:
            raise self._failed("the probe", error) from error

    def lose(self, loss: Loss) -> None:
        """Count as lost. See `Connection`."""
        self._endpoint.lose(loss)

    async def lost(self) -> Loss:
        """Wait until the connection is lost. See `Connection`."""
        await self._endpoint.lost.wait()
        return self._endpoint.loss

    def _failed(self, what: str, error: Exception, *, probing: bool = False) -> HandshakeFailed:
        if not self._endpoint.lost.is_set():
            loss = self._carrier.explain(error, f"{what} failed: {_described(error)}")
            return HandshakeFailed(loss, era=self._era)
        loss = self._endpoint.loss
        refused = probing and self._carrier.dies_of_a_probe and not loss.unheard
        return HandshakeFailed(loss, era=self._era, probe_refused=refused, lost=True)


def _described(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return f"an answer that is not valid MCP: {error.errors()[0]['msg']}"
    return folded(error)

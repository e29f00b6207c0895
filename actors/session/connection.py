"""A connection on a wire of our own: calls go straight to the endpoint, the rest through a session over it."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from mcp_nursery.actors.records import evolve

from ..callbacks import NO_HOST, Host
from ..enums import ListKind, Protocol, Remembered
from ..jsonrpc.carrier import Carrier
from ..jsonrpc.endpoint import Endpoint
from ..messages import CALL_TOOL, Definitions, Handshake, Question, Request, Round
from ..outcomes import Loss, Outcome
from ..protocol import HANDSHAKE_PROTOCOL_VERSIONS
from ..reply import Codec, ReplySlot
from ..secrets import words_of
from .base import BAD_ANSWER, HandshakeFailed, NotValid
from .changes import Changes, Updated
from .handshake import WrongProtocol, check_protocol, negotiate, versions_named
from .lists import Fetched, Lists
from .requests import PreparedRequest, PreparedTools, RelayedRequest, round_params
from .session import ServerSession, open_session

if TYPE_CHECKING:
    from mcp_types import Tool


@asynccontextmanager
async def open_connection(
    carrier: Carrier, host: Host = NO_HOST, stderr_tail: Callable[[], str] = str
) -> "AsyncGenerator[Connection, None]":
    """Speak MCP over a carrier until the block is left. The server may use what `host` offers."""
    offer = host.protocol if host.protocol in HANDSHAKE_PROTOCOL_VERSIONS else None
    endpoint = Endpoint(
        carrier,
        host.limits,
        host.account,
        server=host.server,
        offer=offer,
        overhear=host.overhear,
        capabilities=host.told,
    )
    changes = Changes(host.server)
    async with open_session(endpoint, host, changes) as session:
        lists = Lists(session, endpoint, limits=host.limits, server=host.server)
        yield Connection(carrier, endpoint, session, changes, lists, host=host, stderr_tail=stderr_tail)


class Connection:
    """One open connection of one incarnation. Entered, used and left in the incarnation's task.

    Requests of callers spawn no task and bypass the session.
    """

    def __init__(
        self,
        carrier: Carrier,
        endpoint: Endpoint,
        session: ServerSession,
        changes: Changes,
        lists: Lists,
        *,
        host: Host,
        stderr_tail: Callable[[], str],
    ) -> None:
        self._carrier = carrier
        self._host = host
        self._protocol: Protocol = host.protocol
        self._wants_logs = host.callbacks.log is not None
        self._offers_roots = host.callbacks.roots is not None
        self._stderr_tail = stderr_tail
        self._endpoint = endpoint
        self._session = session
        self._changes = changes
        self._lists = lists
        self._era: Remembered | None = None
        self._tools = PreparedTools((), protocol_version="", stamp={})
        self._others: dict[str, PreparedRequest] = {}
        """The codecs of requests other than tool calls, by method."""

    @property
    def pid(self) -> int | None:
        """The process behind it, if any."""
        return self._carrier.pid

    @property
    def stderr_tail(self) -> str:
        """The last lines that process wrote to stderr so far, without secrets known here."""
        return self._stderr_tail()

    @property
    def awaited(self) -> str:
        """The object of its waits, as words that follow `no`; empty if there is none: see `Endpoint.awaited`."""
        return self._endpoint.awaited

    @property
    def in_flight(self) -> int:
        """Requests of callers that wait for an answer."""
        return self._endpoint.in_flight

    @property
    def heard_at(self) -> float:
        """The time of the server's last message, on Trio's clock: any message counts, not only answers."""
        return self._endpoint.heard_at

    async def handshake(self, era: Remembered | None) -> Handshake:
        """Open the conversation; `era`: what an earlier incarnation found.

        Raises:
            HandshakeFailed: The server refused, disconnected, or exited on the probe.
        """
        protocol = self._protocol
        try:
            check_protocol(protocol, self._carrier.only_era)
            known = era if era in HANDSHAKE_PROTOCOL_VERSIONS else self._carrier.only_era or era
            handshake = await negotiate(self._session, known, self._carrier.taken, protocol=protocol)
        except WrongProtocol as error:
            raise HandshakeFailed(Loss(str(error), unusable=True)) from error
        except BAD_ANSWER as error:
            what = "the handshake" if protocol == "auto" else f"the handshake (protocol {protocol})"
            raise self._failed(what, error, probing=era is None and protocol == "auto") from error
        self._era = handshake.remembered
        self._endpoint.logs = self._wants_logs or "logging" in (handshake.capabilities or {})
        return evolve(handshake, hello=self._endpoint.hello)

    async def list_tools(self, *, anew: bool = True) -> "tuple[Tool, ...]":
        """Fetch every page of `tools/list`; from then on these tools can be called. Unless `anew`, an unchanged list
        stays the same object.

        Raises:
            HandshakeFailed: A page could not be fetched.
        """
        self._changes.listed([ListKind.TOOLS])
        before = self.definitions.tools
        try:
            await self._lists.fetch(ListKind.TOOLS, anew=anew)
        except BAD_ANSWER as error:
            raise self._failed("tools/list", error) from error
        self._carrier.opened()
        if self.definitions.tools is not before or not before:
            self._tools = PreparedTools(self.definitions.tools, **self._prepared_with)
        return self.definitions.tools

    async def list_others(self, kinds: Collection[ListKind], *, anew: bool = True) -> None:
        """Fetch every page of these lists, if the server offers them. A list that cannot be fetched stays as it was.
        `anew`: see `list_tools`.

        Raises:
            HandshakeFailed: The connection was lost.
        """
        self._changes.listed(kinds)
        await self._lists.try_fetch(kinds, anew=anew)
        if self._endpoint.lost.is_set():
            raise HandshakeFailed(self._endpoint.loss, era=self._era, lost=True)

    def expired_lists(self) -> Collection[ListKind]:
        """The lists that are older than the server allows, and not being fetched again."""
        return self._lists.expired()

    def old_lists(self, kinds: Collection[ListKind]) -> Mapping[ListKind, Fetched]:
        """The lists among these that may have changed without a notification, and the times at which fetches of each
        began, on Trio's clock."""
        return self._lists.old(kinds)

    def rests_until(self, kinds: Collection[ListKind]) -> float:
        """The time from which the server may be asked for all of these lists, on Trio's clock; `-inf`: it never asked
        for time."""
        return self._lists.rests_until(kinds)

    @property
    def definitions(self) -> Definitions:
        """All definitions, each list as it was last fetched."""
        return self._lists.definitions

    @property
    def _prepared_with(self) -> "_Prepared":
        version = self._session.protocol_version
        assert version is not None  # the handshake came first
        return {"protocol_version": version, "stamp": self._endpoint.stamp}

    def submit(self, requests: Sequence[Request]) -> None:
        """Start requests. Their outcomes come to their slots. Never waits."""
        for request in requests:
            request.codec = self._codec(request)
        self._endpoint.post(requests)

    def _codec(self, request: Request) -> Codec | None:
        """The codec of a request; None for a tool that is not listed."""
        if request.slot.relay is not None:
            tool = self._tools.get(request.name) if request.method == CALL_TOOL else None
            follows_tasks = request.slot.relay.follows_tasks
            return RelayedRequest(request.method, tool, follows_tasks=follows_tasks, **self._prepared_with)
        if request.method == CALL_TOOL:
            return self._tools.get(request.name)
        if request.method not in self._others:
            self._others[request.method] = PreparedRequest(request.method, **self._prepared_with)
        return self._others[request.method]

    async def answer(self, question: Question) -> Outcome:
        """Have the host answer a server's request for input. Cancelling the caller cancels the callback."""
        sdk = await self._session.sdk()
        from .host_requests import answer

        return await answer(sdk, question, self._host)

    def send_round(self, again: Round) -> None:
        """Start one more round of a call. Its outcome comes to its slot. Never waits."""
        call = again.call
        call.codec = call.slot.codec or self._codec(call)  # the earlier round's, even if no longer listed
        call.params = round_params(again)
        self._endpoint.post([call])

    def cancel(self, *slots: ReplySlot) -> None:
        """Cancel abandoned calls: withdraw them, or notify the server in one write. Never waits."""
        self._endpoint.cancel(slots)

    async def room(self, limit: int) -> int:
        """Wait until fewer than `limit` calls are in flight; return how many more may start."""
        while (room := limit - len(self._endpoint.calls)) <= 0:
            await self._endpoint.settled()
        return room

    def withdraw_unsent(self) -> None:
        """Give up all calls that were not sent yet: their callers get `not_sent`. Never waits."""
        self._endpoint.withdraw_unsent()

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        while self._endpoint.in_flight:
            await self._endpoint.settled()

    async def watch_lists(
        self, changed: Callable[[Collection[ListKind]], None], look: Callable[[Collection[ListKind]], None]
    ) -> None:
        """Have `changed` called whenever the server reports changed lists, and `look` when they may have changed
        silently. Never raises; may return."""
        self._carrier.opened()
        await self._changes.watch(self._session, changed, look)

    async def announce_roots(self) -> None:
        """Notify the server that the host's roots changed, if roots were advertised. Never raises."""
        if self._offers_roots and not self._session.is_modern:  # servers of the modern era ask anew
            await self._session.notify("notifications/roots/list_changed")

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification of a client of the host, once there is room for it; dropped once the connection is
        lost."""
        await self._session.tell(method, params)

    def set_watched(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others. Never waits."""
        self._changes.set_watched(uris)

    async def keep_subscribed(self, tell: Updated) -> None:
        """Keep the wanted subscriptions until cancelled. `tell` is called with the URI of a changed resource and True;
        with False for one just subscribed to, or again after a gap. Never raises; may return."""
        await self._changes.keep_subscribed(self._session, tell)

    async def probe(self) -> None:
        """Send what every server answers at once. The caller then looks at `heard_at`, not at the answer.

        Raises:
            HandshakeFailed: There was no answer, or none that is valid.
        """
        try:
            await self._session.probe()
        except BAD_ANSWER as error:
            raise self._failed("the probe", error) from error

    def lose(self, loss: Loss) -> None:
        """Count the connection as lost from now on: calls in flight end with this loss. Never waits."""
        self._endpoint.lose(loss)

    async def lost(self) -> Loss:
        """Wait until the connection is lost; return the loss."""
        await self._endpoint.lost.wait()
        return self._endpoint.loss

    def _version_named(self, error: Exception) -> str | None:
        """The version to begin with the next time, if a request of the handshake era was refused for its version."""
        if self._session.is_modern or self._protocol in HANDSHAKE_PROTOCOL_VERSIONS:
            return None
        return next(iter(versions_named(error, HANDSHAKE_PROTOCOL_VERSIONS, self._session.protocol_version)), None)

    def _failed(self, what: str, error: Exception, *, probing: bool = False) -> HandshakeFailed:
        if not self._endpoint.lost.is_set():
            loss = self._carrier.explain(error, f"{what} failed: {_described(error)}")
            if version := self._version_named(error):
                return HandshakeFailed(evolve(loss, unusable=False), era=version)
            return HandshakeFailed(loss, era=self._era)
        loss = self._endpoint.loss
        refused = probing and self._carrier.dies_of_a_probe and not loss.unheard
        return HandshakeFailed(loss, era=self._era, probe_refused=refused, lost=True)


class _Prepared(TypedDict):
    """The arguments for preparing requests."""

    protocol_version: str
    stamp: dict[str, Any]


def _described(error: Exception) -> str:
    if isinstance(error, NotValid):
        return f"an answer that is not valid MCP: {error.problem}"
    return words_of(error)

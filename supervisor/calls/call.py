"""One call: what its caller asks for, and the same call under way: where it waits, what time it has, and whether a
server may have acted on it. Tools are called, and so is whatever else a server answers: see the classes of calls.

A call waits in a slot, and in a new one each time it is sent: again after a loss, or once more with what its server
asked for. What an earlier slot knows counts on: once a server may have acted on the call, no later slot can say that
it was not sent.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar

import trio
from attrs import define, field, frozen
from opentelemetry.context import get_current
from opentelemetry.propagate import inject

from mcp_nursery.actors.argument_checks import (
    Check,
    check_argument,
    function_or_none,
    mapping_or_none,
    one_of,
    seconds_or_none,
)
from mcp_nursery.actors.enums import Delivery, ListKind
from mcp_nursery.actors.errors import (
    BreakerOpen,
    CallError,
    CallTimeout,
    InvalidArguments,
    NurseryError,
    SupervisorClosed,
)
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import Request
from mcp_nursery.actors.outcomes import Outcome
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.reply import IdleLimit, NoticeCallback, ProgressCallback, ReplySlot

from ..security.redaction import Redactor
from ..servers.observable import OTHERS
from ..servers.view import ServerView
from ..telemetry.operation import Operation
from ..telemetry.telemetry import Telemetry

WhenDown = Literal["wait", "fail", "reconnect"]
Resend = Literal["safe", "always", "never"]

_CHECKS: Final[Mapping[str, Check]] = {
    "timeout": seconds_or_none,
    "idle_timeout": seconds_or_none,
    "when_down": one_of(WhenDown, optional=True),
    "on_progress": function_or_none,
    "meta": mapping_or_none,
}
"""What the options may be that are None by default."""
_RESEND: Final = one_of(Resend)


@frozen
class Call:
    """One tool call with its options. The fields mean what they mean for `Supervisor.call_tool`.

    Raises:
        ValueError: A time, `when_down`, `resend`, `on_progress` or `meta` has a value that is not allowed.
    """

    name: str
    """The tool's public name; with `server`, the server's own name of it."""
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    """A JSON object; None for an empty one."""
    server: str | None = field(default=None, kw_only=True)
    """Whose tool it is; None if `name` is public."""
    timeout: float | None = field(default=None, kw_only=True)
    """Seconds for all of it, from its beginning; None: the server's."""
    idle_timeout: float | None = field(default=None, kw_only=True)
    """Seconds without progress; None: no limit."""
    when_down: WhenDown | None = field(default=None, kw_only=True)
    """`"wait"`, `"fail"`, `"reconnect"`, or None: wait while the server is `connecting` or `idle`."""
    resend: Resend = field(default="safe", kw_only=True)
    """`"safe"`, `"always"` or `"never"`."""
    on_progress: ProgressCallback | None = field(default=None, kw_only=True, repr=False)
    """`async (progress, total, message)`, called in order, before the result."""
    meta: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    """More for the request's `_meta`."""

    def __attrs_post_init__(self) -> None:
        for option, check in _CHECKS.items():
            value = getattr(self, option)
            if value is not None and check(value) is not None:
                check_argument(option, value, check)
        if self.resend != "safe":
            check_argument("resend", self.resend, _RESEND)


def encode_arguments(arguments: object, name: str, server: str | None) -> bytes | None:
    """Arguments as they go over the wire, for the tool of this name; None for none.

    Raises:
        InvalidArguments: They are not a JSON object.
    """
    if arguments is None:
        return None
    try:
        if isinstance(arguments, Mapping):
            return encode(dict(arguments))  # pyright: ignore[reportUnknownArgumentType]
        decode = ": decode the JSON first" if isinstance(arguments, str) else ""
        problem = f"the arguments of a tool must be an object, not {type(arguments).__name__}{decode}"
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"the arguments cannot be sent as JSON: {error}"
    raise InvalidArguments(problem, server=server, tool=name)


_AT_EASE: Final = nullcontext()
"""For who waits for the result alone: the timer ends that."""
_NO_SLOT: Final = ReplySlot()
"""Of a call that was not sent yet."""


class Found(Protocol):
    """What a call goes to: a tool, or whatever else a server has."""

    @property
    def server(self) -> str:
        """Whose it is."""
        ...

    @property
    def available(self) -> bool:
        """Whether that server is connected."""
        ...


F = TypeVar("F", bound=Found)
R = TypeVar("R")


@define(eq=False, repr=False)
class ActiveCall(ABC, Generic[F, R]):
    """One call under way, in its caller's task: of a tool, or any other request that comes to an `R`."""

    asked: Call
    servers: ServerView
    timeout: float = field(default=math.inf, init=False)
    """Seconds for all of it."""
    slot: ReplySlot = field(default=_NO_SLOT, init=False)
    """Where it waits, or waited last."""
    found: F | None = field(default=None, init=False)
    """What it goes to; None until that is found."""
    operation: Operation | None = field(default=None, init=False)
    """What is traced and measured of it; None if nobody wants to know, and before it began."""
    was_asked: bool = field(default=False, init=False)
    """Whether a server has answered it with a question: what it comes to depends on more than what it says."""
    _started: float = field(factory=trio.current_time, init=False)
    _acted_before: bool = field(default=False, init=False)
    """Whether a server may have acted before the call came to its present slot."""

    # -- what differs from one kind of call to another ------------------------------------------------------------

    method = ""
    """Of the protocol."""
    answers_questions: ClassVar[bool] = True
    """Whether the host is asked what the server wants to know first; if not, its question is the answer."""
    relays: ClassVar[bool] = False
    """Whether it is made for a client of the host's, who is told the server's words as they came."""
    awaited: ClassVar[str | None] = OTHERS
    """What news it waits for while nobody has what it goes to: see `AwaitedTools`. None for those of its own name."""

    lists: ClassVar[Collection[ListKind]] = ()
    """Where what it goes to would be listed."""

    def listers(self) -> Iterable[str]:
        """The servers that may list it."""
        return self.servers.snapshots

    @abstractmethod
    def find(self) -> F | None:
        """What it goes to, as it is known now."""

    @abstractmethod
    def former_owner(self) -> str | None:
        """A server that had it until it came to its present state."""

    def check_allowed(self) -> None:
        """Refuse what is there and must not be used.

        Raises:
            NotApproved: It is held back.
        """

    def possible_owners(self) -> Sequence[str]:
        """The servers that may have something of this name, if its name says so."""
        return ()

    @abstractmethod
    def unknown(self, down: Sequence[str]) -> NurseryError:
        """The error where nobody has it; `down`: servers that are not connected, one of which may."""

    @property
    def tool_name(self) -> str | None:
        """The server's own name of the tool that is called, since it was found; None if it is no tool."""
        return None

    @property
    @abstractmethod
    def repeatable(self) -> bool:
        """Whether a server may do it twice."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it goes to, as its server calls it, or as the caller named it."""

    @abstractmethod
    def params(self) -> bytes:
        """The parameters of its request, since it was found: a JSON object without `_meta`."""

    @abstractmethod
    def given(self, result: Any, incarnation: int, *, small: bool) -> Steps[R]:
        """What the caller gets of a typed result.

        Raises:
            ValueError: It has no JSON form.
        """

    @abstractmethod
    def signals(self, given: R) -> tuple[str, ...]:
        """Names of the injection signals in that."""

    # -- what it goes to ------------------------------------------------------------------------------------------

    def begin(self, found: F | None) -> None:
        """What it goes to is known, or still to be found, and so what time the call has: its own limit goes before the
        server's, and that before the environment's."""
        self.found = found
        if self.asked.timeout is not None:
            self.timeout = float(self.asked.timeout)
        else:
            servers_own = None if found is None else self.servers.snapshots[found.server].value.spec.call_timeout
            self.timeout = self.servers.call_timeout(servers_own)
        if self.servers.telemetry is not None:
            self._begin_operation(self.servers.telemetry)

    def _begin_operation(self, telemetry: Telemetry) -> None:
        self.operation = self.operation or telemetry.operation(self.method)
        about = telemetry.about(self.server_name)
        self.operation.begin(about, None if self.found is None else self.redactor.said(self.name))

    def count_failure(self, server: str, error: BaseException | None) -> None:
        """It is over, without a result, for the server where it was counted first; None: its caller gave up."""
        delivery = error.delivery if isinstance(error, CallError) else self.delivery
        kind = "Cancelled" if error is None else type(error).__name__
        self.servers.usage.fail_call(server, self.tool_name, kind, delivery.value)

    def count_unchecked(self) -> None:
        """Its result was not held against the output schema."""
        self.servers.usage.tally(self.server_name).unchecked += 1

    def end_attempt(self, ended: object) -> None:
        """The attempt that waited in the present slot is over; with which error."""
        if self.operation is not None:
            self.operation.note_attempt(self.slot, self.delivery, ended)

    def end(self, ended: R | BaseException | None) -> None:
        """It is over; None: its caller gave up."""
        if self.operation is None:
            return
        delivery = ended.delivery if isinstance(ended, CallError) else self.delivery
        if self.slot is not _NO_SLOT:
            self.operation.note_attempt(self.slot, delivery, ended)
        self.operation.finish(self.slot, delivery, ended, duration=self.elapsed)

    @property
    def server_name(self) -> str:
        """Where it goes to; empty if that is not known."""
        return self.asked.server or "" if self.found is None else self.found.server

    @property
    def redactor(self) -> Redactor:
        """What takes its server's secrets out of what is told of it."""
        return self.servers.redactor(self.server_name)

    # -- its time -------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self._started

    @contextmanager
    def in_time(self) -> Generator[None, None, None]:
        """End the block when the call's time is over.

        Raises:
            CallTimeout: It was, before the block was done.
        """
        with trio.move_on_at(self._started + self.timeout) as scope:
            yield
        if scope.cancelled_caught:
            raise self.timed_out()

    def timed_out(self, idle: float | None = None) -> CallTimeout:
        """The error of a call whose time is over, or that heard nothing for `idle` seconds."""
        return CallTimeout(
            server=self.server_name,
            tool=self.name,
            incarnation=self.slot.incarnation,
            delivery=self.delivery,
            timeout=self.timeout if idle is None else idle,
            idle=idle is not None,
        )

    # -- its slots ------------------------------------------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        """Whether a server may have acted on it, in this slot or an earlier one."""
        delivery = self.slot.delivery
        return Delivery.UNKNOWN if self._acted_before and delivery is Delivery.NOT_SENT else delivery

    def own_meta(self) -> dict[str, Any]:
        """The `_meta` that its caller gave, without what is None."""
        return {key: value for key, value in (self.asked.meta or {}).items() if value is not None}

    def message(self, slot: ReplySlot) -> Request:
        """The message that sends it. From now on it waits in this slot, as long as it has time."""
        asked, found, self.slot = self.asked, self.found, slot
        assert found is not None  # it was found
        self.servers.timer.watch(slot, self._started + self.timeout)
        meta = self.own_meta() if asked.meta else {}
        context = get_current() if self.operation is None else self.operation.context
        if context:  # an empty context has nothing to inject, and finding that out takes the propagators longer
            inject(meta, context)
        limited = asked.idle_timeout is not None or self.timeout < math.inf
        if limited:
            slot.limit()
        return Request(found.server, self.method, self.name, self.params(), meta, slot, limited)

    async def submit(self, hand_on: Callable[[Request], None] | None = None) -> Outcome:
        """Give it to `hand_on`, or else to the router, and wait in a new slot, as long as it has time.

        Raises:
            CallTimeout: It has none, or there was no progress in time.
            BreakerOpen: It must not be sent.
            SupervisorClosed: The router has ended.
        """
        asked = self.asked
        if self.slot.sent and self.slot.may_have_acted:
            self._acted_before = True
        if self.timeout == 0:
            raise self.timed_out()
        if hand_on is None:
            self._check_admitted()
        attentive = asked.on_progress is not None or asked.idle_timeout is not None
        idle = None if asked.idle_timeout is None else IdleLimit(asked.idle_timeout)
        try:
            message = self.message(self.new_slot(idle, attentive=attentive))
            with self._attention(idle) if attentive else _AT_EASE:
                if hand_on is not None:
                    hand_on(message)
                    return await message.slot.wait(self.on_said)
                try:
                    await self.servers.router.submit([message])
                except trio.BrokenResourceError:
                    raise SupervisorClosed from None
                return await message.slot.wait(self.on_said)
            raise AssertionError  # the limits end it with an error of their own
        finally:
            self.settle()

    def _check_admitted(self) -> None:
        """Ask the circuit breaker before the server.

        Raises:
            BreakerOpen: It must not be sent.
        """
        refusing = self.servers.breakers.admit(self, self.server_name)
        if refusing is not None:
            failures, retry_in = refusing.failures, refusing.retry_in
            raise BreakerOpen(server=self.server_name, tool=self.name, failures=failures, retry_in=retry_in)

    def settle(self) -> None:
        """The present slot is decided, or left: its server's circuit breaker hears what that says of the server."""
        self.servers.breakers.settle(self, self.server_name, self.slot)

    def new_slot(self, idle: IdleLimit | None, *, attentive: bool) -> ReplySlot:
        """A slot to wait in; `attentive`: progress is wanted."""
        return ReplySlot(wants_progress=attentive, idle=idle)

    @property
    def on_said(self) -> ProgressCallback | NoticeCallback | None:
        """What is told of all that the server says before its answer."""
        return self.asked.on_progress

    def renew_slot(self) -> None:
        """After an answer that is a question: whether its server has acted is unknown until it gives another."""
        before, self.slot = self.slot, ReplySlot()
        self._acted_before = self._acted_before or before.sent
        self.slot.follow(before)

    @contextmanager
    def _attention(self, idle: IdleLimit | None) -> Generator[None, None, None]:
        """The limits of who hears of progress: the callback runs on the call's time, and no timer could end that."""
        try:
            with self.in_time():
                if idle is None:
                    yield
                    return
                with idle.scope:
                    yield
                if idle.scope.cancelled_caught:
                    raise self.timed_out(idle.seconds)
        except CallTimeout:
            self.slot.expire()
            raise

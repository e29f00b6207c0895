"""One call as its caller asks for it, and the same call under way: where it waits, how much time it has, whether a
server may have acted on it, and, once it has to wait for its server, the target of that wait. Calls are of tools, and
of whatever else a server answers: see the subclasses.

Everything here runs in the caller's task: the object is found, the parameters are encoded and the result is judged
where somebody waits for it, so that a large call or answer delays only its own caller. The caller's deadline and
cancellation are therefore the call's.

A call has one time limit and one place of truth for each thing that may go wrong:

    found        the object of the call: a tool, a resource, a prompt. It is looked up once; only a
                 call that has to wait for its server looks again, and may then find another server.
    slot         the place where it waits now: a new slot each time the call is sent, again after a loss,
                 or once more with the answers that its server asked for.
    delivery     whether a server may have acted. What an earlier slot knows still counts: once a
                 server may have acted on the call, no later slot can say that it was not sent.
    bound        the slot in which it waits for its server to begin it, if it was agreed to or its tool is
                 pinned: it is taken back from there as soon as that is declared otherwise.
    target       the waits for its server, made for the first of them: most calls are sent at once
                 and need none.

The time limit counts from the beginning, over all attempts and waits. One that the caller has named is a limit of all
of that; any other stands still while the host answers a question of the server. A timer ends the wait in a slot; a
scope of its own is opened only where other code runs on the call's time, which no timer could end: a callback for
progress, work on a large answer.

The circuit breaker is asked before each attempt, and each slot is settled with it once, also when the caller gives
up.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar, get_args

import trio

from mcp_nursery.actors.argument_checks import (
    LARGEST,
    Check,
    check_argument,
    function_or_none,
    mapping_or_none,
    one_of,
    seconds,
    seconds_or_none,
)
from mcp_nursery.actors.deadlines import Deadline
from mcp_nursery.actors.enums import Delivery, ListKind, ServerState
from mcp_nursery.actors.errors import (
    BreakerOpen,
    CallError,
    CallTimeout,
    InvalidArguments,
    NurseryError,
    ServerDown,
    SupervisorClosed,
)
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc.codec import encode_exactly, inject_trace
from mcp_nursery.actors.limits import CALL_SETTINGS
from mcp_nursery.actors.messages import CALL_TOOL, Request
from mcp_nursery.actors.outcomes import Answered, Outcome
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.actors.reply import PROGRESS, IdleLimit, NoticeCallback, ProgressCallback, Relay, ReplySlot

from ..decisions.restart_policy import HOLD, WhenDown
from ..decisions.state_machine import CALLS_WAIT, Snapshot
from ..decisions.task_states import TaskState
from ..security.redaction import Redactor
from ..servers.observable import NON_TOOLS, Observable
from ..servers.view import ServerView
from ..status import server_down

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from ..telemetry.telemetry import Operation, Telemetry
    from ..tools.approval_rules import Agreement
    from ..transports import Transport

Resend = Literal["safe", "always", "never"]


_WORDS: Final = one_of(get_args(WhenDown)[0], optional=True)


def _when_down(value: object) -> str | None:
    return None if seconds(value) is None else (wanted := _WORDS(value)) and f"seconds >= 0, {wanted}"


_OPTION_CHECKS: Final[Mapping[str, Check]] = {
    "timeout": seconds_or_none,
    "idle_timeout": seconds_or_none,
    "when_down": _when_down,
    "on_progress": function_or_none,
    "meta": mapping_or_none,
    "resend": one_of(Resend),
}
"""The checks of the options."""
_USUAL: Final = (None, None, "safe")
"""The idle limit, the callback and `resend` of most calls, hosts' own and clients' of a gateway."""


@frozen
class Call:
    """One tool call with its options. The fields have the same meaning as for `Supervisor.call_tool`.

    Raises:
        ValueError: A time, `when_down`, `resend`, `on_progress` or `meta` has a value that is not allowed.
    """

    name: str
    """The tool's public name; with `server`, the server's own name of it."""
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    """A JSON object; None for an empty one."""
    server: str | None = field(default=None, kw_only=True)
    """The server of the tool; None if `name` is public."""
    timeout: float | None = field(default=None, kw_only=True)
    """Seconds for the whole call, from its beginning; None: the server's."""
    idle_timeout: float | None = field(default=None, kw_only=True)
    """Seconds without progress; None: no limit."""
    when_down: WhenDown | None = field(default=None, kw_only=True)
    """`"wait"`, `"fail"`, `"reconnect"`, `"hold"`, seconds to hold it, or None: wait while the server is `connecting`
    or `idle`."""
    resend: Resend = field(default="safe", kw_only=True)
    """`"safe"`, `"always"` or `"never"`."""
    on_progress: ProgressCallback | None = field(default=None, kw_only=True, repr=False)
    """`async (progress, total, message)`, called in order, before the result."""
    meta: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    """Additional `_meta` of the request."""

    def __attrs_post_init__(self) -> None:
        timeout, when_down, meta = self.timeout, self.when_down, self.meta
        if (
            (self.idle_timeout, self.on_progress, self.resend) == _USUAL
            and (timeout is None or (type(timeout) in (int, float) and 0 <= timeout <= LARGEST))
            and (when_down is None or (type(when_down) is float and when_down >= 0))
            and (meta is None or type(meta) is dict)
        ):
            return
        for option, check in _OPTION_CHECKS.items():
            check_argument(option, getattr(self, option), check)


def encode_arguments(arguments: object, name: str, server: str | None) -> bytes | None:
    """Arguments as they go over the wire, for the tool of this name; None for none.

    Raises:
        InvalidArguments: They are not a JSON object.
    """
    if arguments is None:
        return None
    try:
        if isinstance(arguments, (dict, Mapping)):  # most are the former: checking for the latter runs Python code
            return encode_exactly(dict(arguments))  # pyright: ignore[reportUnknownArgumentType]
        decode = ": decode the JSON first" if isinstance(arguments, str) else ""
        problem = f"the arguments of a tool must be an object, not {type(arguments).__name__}{decode}"
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"the arguments cannot be sent as JSON: {error}"
    raise InvalidArguments(problem, server=server, tool=name)


_NO_SLOT: Final = ReplySlot()
"""The slot of a call that was not sent yet."""


class Found(Protocol):
    """The object of a call: a tool, or whatever else a server has."""

    @property
    def server(self) -> str:
        """The name of its server."""
        ...

    @property
    def available(self) -> bool:
        """True if that server is connected."""
        ...


F = TypeVar("F", bound=Found)
R = TypeVar("R")


@define(eq=False, repr=False)
class ActiveCall(ABC, Generic[F, R]):
    """One call under way, in its caller's task: of a tool, or any other request that results in an `R`."""

    asked: Call
    servers: ServerView
    agreed: "Agreement | None" = field(default=None, kw_only=True)
    """The agreement to it; None if none was needed."""
    timeout: float = field(default=math.inf, init=False)
    """Seconds for the whole call."""
    deadline: Deadline | None = field(default=None, init=False)
    """The deadline that follows from that; None if there is no limit."""
    slot: ReplySlot = field(default=_NO_SLOT, init=False)
    """The slot in which it waits, or waited last."""
    found: F | None = field(default=None, init=False)
    """The object of the call; None until that is found."""
    operation: "Operation | None" = field(default=None, init=False)
    """The trace and the measurement of it; None if neither is recorded, and before it began."""
    trace: "Context | None" = field(default=None, init=False)
    """The context of its trace, which its server is told; None: that of its caller."""
    target: "Target | None" = field(default=None, init=False)
    """The waits for its server; None before the first: see `target_of`."""
    relay: Relay | None = field(default=None, init=False)
    """The client on whose behalf it is made, which gets the server's words as they came; None: the host."""
    on_said: NoticeCallback | None = field(default=None, init=False)
    """The callback that gets all that the server sends before its answer, if it is relayed."""
    sent_to: "Transport | None" = field(default=None, init=False)
    """The transport of its server when it was handed on: the answer is of that server, whatever the configuration says
    by then."""
    bound: ReplySlot | None = field(default=None, init=False)
    """The slot in which the call waits for a server to begin it, if the call depends on declared definitions."""
    duration: float = field(default=0.0, init=False)
    """Seconds from its beginning to its answer."""
    was_asked: bool = field(default=False, init=False)
    """True if a server has answered it with a question: its result depends on more than its arguments."""
    _started: float = field(factory=trio.current_time, init=False)
    _acted_before: bool = field(default=False, init=False)
    """True if a server may have acted before the call came to its present slot."""

    # -- what differs from one kind of call to another ------------------------------------------------------------

    method = ""
    """The method of the protocol."""
    answers_questions: ClassVar[bool] = True
    """True if the host answers the server's questions; if not, a question is the call's answer."""
    awaited: ClassVar[str | None] = NON_TOOLS
    """The changes that it waits for while its object is unknown: see `AwaitedTools`. None: those of its own name."""

    lists: ClassVar[Collection[ListKind]] = ()
    """The lists in which its object would be."""

    def listers(self) -> Iterable[str]:
        """The servers that may list it."""
        return self.servers.snapshots

    @abstractmethod
    def find(self) -> F | None:
        """The object of the call, as it is known now."""

    def prepare(self) -> Steps[None]:
        """Do the long part of `find` in steps."""
        return
        yield

    @abstractmethod
    def former_owner(self) -> str | None:
        """A server that had the object until it came to its present state."""

    def check_allowed(self) -> None:
        """Refuse an object that exists and must not be used.

        Raises:
            NotApproved: It is held back.
        """

    def possible_owners(self) -> Sequence[str]:
        """The servers that may have an object of this name, as far as the name shows."""
        return ()

    @abstractmethod
    def unknown(self, down: Sequence[str]) -> NurseryError:
        """The error if no server has the object; `down`: servers that are not connected, one of which may have it."""

    @property
    def tool_name(self) -> str | None:
        """The server's own name of the called tool, once it was found; None if the object is no tool."""
        return None

    @property
    @abstractmethod
    def repeatable(self) -> bool:
        """True if a server may execute it twice, by the definition that was found last."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its object, as its server has it, or as the caller named it."""

    @abstractmethod
    def params(self) -> bytes:
        """The parameters of its request, once the object was found: a JSON object without `_meta`."""

    @abstractmethod
    def given(self, result: Any, incarnation: int, *, small: bool) -> Steps[R]:
        """The caller's result, made from the typed one.

        Raises:
            ValueError: It has no JSON form.
        """

    # -- what it goes to ------------------------------------------------------------------------------------------

    def begin(self, found: F | None) -> None:
        """Begin, with the object known or still to be found. This sets the time limit: the call's own, else the
        server's as far as that is known, else the environment's."""
        self.found = found
        if self.asked.timeout is not None:
            self.timeout = float(self.asked.timeout)
        else:
            server = self.asked.server if found is None else found.server
            known = None if server is None else self.servers.snapshots.get(server)
            own = None if known is None else known.value.spec.call_timeout
            self.timeout = self.servers.default_timeout if own is None else own or math.inf
        ends = self._started + self.timeout
        self.deadline = (
            None if ends == math.inf else Deadline(ends, self.servers.timer, stands_still=self.asked.timeout is None)
        )
        if self.servers.telemetry is not None:
            self._begin_operation(self.servers.telemetry)

    def _begin_operation(self, telemetry: "Telemetry") -> None:
        self.operation = self.operation or telemetry.operation(self.method)
        about = telemetry.about(self.server_name)
        self.operation.begin(about, None if self.found is None else self.redactor.said(self.name))
        self.trace = self.operation.context

    def count_failure(self, server: str, error: BaseException | None) -> None:
        """Count its end without a result, for the server for which its beginning was counted; None: its caller gave
        up."""
        delivery = error.delivery if isinstance(error, CallError) else self.delivery
        kind = "Cancelled" if error is None else type(error).__name__
        self.servers.counter.fail_call(server, self.tool_name, self.elapsed, kind, delivery.value)

    def count_unchecked(self) -> None:
        """Count that its result was not checked against the output schema."""
        self.servers.counter.tally(self.server_name).unchecked += 1

    def end_attempt(self, ended: object) -> None:
        """Record the end of the attempt that waited in the present slot, and its error."""
        if self.operation is not None:
            self.operation.record_attempt(self.slot, self.delivery, ended)

    def end(self, ended: R | BaseException | None) -> None:
        """Record the end of the call; None: its caller gave up."""
        if self.operation is None:
            return
        delivery = ended.delivery if isinstance(ended, CallError) else self.delivery
        if self.slot is not _NO_SLOT:
            self.operation.record_attempt(self.slot, delivery, ended)
        self.operation.finish(self.slot, delivery, ended, duration=self.elapsed)

    @property
    def server_name(self) -> str:
        """The name of its server; empty if that is not known."""
        return self.asked.server or "" if self.found is None else self.found.server

    @property
    def redactor(self) -> Redactor:
        """The redactor of its server's secrets."""
        return self.servers.redactor(self.server_name)

    # -- its time -------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self._started

    def in_time(self) -> AbstractContextManager[None]:
        """A context manager that ends its block when the call's time is over.

        Raises:
            CallTimeout: The time was over before the block was done.
        """
        return nullcontext() if self.deadline is None else self._timed(self.deadline)

    @contextmanager
    def _timed(self, deadline: Deadline) -> Generator[None, None, None]:
        with deadline.scope() as scope:
            yield
        if scope.cancelled_caught:
            raise self.timed_out()

    @contextmanager
    def standing_still(self) -> Generator[None, None, None]:
        """Let the time of the call stand still in the block, unless its caller has named the limit: somebody is
        asked."""
        if self.deadline is not None:
            self.deadline.pause()
        try:
            yield
        finally:
            if self.deadline is not None:
                self.deadline.resume()

    def timed_out(self, idle: float | None = None) -> CallTimeout:
        """The error of a call whose time is over, or that got no progress for `idle` seconds."""
        return CallTimeout(
            server=self.server_name,
            tool=self.name,
            incarnation=self.slot.incarnation,
            delivery=self.delivery,
            timeout=self.timeout if idle is None else idle,
            idle=idle is not None,
            raised_by=CALL_SETTINGS if idle is None and self.asked.timeout is None else "",
        )

    # -- its slots ------------------------------------------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        """The delivery in this slot or an earlier one: whether a server may have acted on it."""
        delivery = self.slot.delivery
        return Delivery.UNKNOWN if self._acted_before and delivery is Delivery.NOT_SENT else delivery

    def own_meta(self) -> dict[str, Any]:
        """The `_meta` that its caller gave, without members that are None."""
        return {key: value for key, value in (self.asked.meta or {}).items() if value is not None}

    def message(self, slot: ReplySlot) -> Request:
        """The message that sends the call. From now on the call waits in this slot, as long as it has time."""
        asked, found = self.asked, self.found
        assert found is not None  # it was found
        limited = asked.idle_timeout is not None or self.timeout < math.inf
        if limited:
            has_waited = self.target is not None or self.slot is not _NO_SLOT
            slot.limit(trio.current_time() if has_waited else self._started, self.deadline)
            if self.deadline is not None:
                self.servers.timer.watch(slot, self.deadline.at)
        self.slot = slot
        known = self.servers.snapshots.get(found.server)
        self.sent_to = None if known is None else known.value.spec.transport
        if self.agreed is not None or (self.servers.pinned and self.method == CALL_TOOL):
            self.bound = slot
            self.servers.projection.reviewed.add(self)
        meta = self.own_meta() if asked.meta else {}
        inject_trace(meta, self.trace)
        return Request(found.server, self.method, self.name, self.params(), meta, slot, limited)

    def find_again(self) -> F | None:
        """The object that was found, as it is known now.

        Raises:
            NurseryError: See `find`.
        """
        return self.find()

    def check_bound(self) -> None:
        """Refuse to send a bound call if it may not be sent any more.

        Raises:
            NotApproved: Its object is held back, or is not as it was agreed to.
        """
        if self.bound is not None and self.find_again() is None:
            self.check_allowed()

    def review(self) -> None:
        """Take the call back if its object is gone, or not as it was agreed to, unless its server has begun it."""
        if self.slot is not self.bound or self.slot.decided:
            return
        try:
            found = self.find_again()
        except NurseryError:
            found = None
        if found is None:
            self.slot.withdraw()

    # -- the task that its server makes of it -----------------------------------------------------------------------

    def made_task(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """The task in an answer, whose result is then the call's; None if it is none."""
        return None if self.slot.codec is None else self.slot.codec.made_task(raw)

    @property
    def outlived(self) -> bool:
        """True if its task goes on when the caller gives up: somebody else can go on with it."""
        return False

    def count_task(self, before: str | None, after: str) -> None:
        """Count the status of its task, in place of the one `before`."""
        self.servers.counter.count_task(self.server_name, before, after)
        if self.operation is not None:
            self.operation.record_task(before, after)

    def hand_over(self, task: TaskState) -> bool:
        """Hand its task over, now that its caller has given up. True if somebody goes on with it. Never waits."""
        del task
        return False

    async def task_made(self, task: TaskState) -> TaskState:
        """Take notice that its server has made a task of it. Returns the task as it is to be followed."""
        return task

    async def task_changed(self, task: TaskState) -> None:
        """Take notice of a change of its task, or of an answer that was given and is about to be sent."""

    async def tell_progress(self, progress: float, message: str) -> None:
        """Tell its caller of progress of our own, while no server can have reported any."""
        if self.delivery is Delivery.NOT_SENT:
            await self.tell(progress, message)

    async def tell(self, progress: float, message: str | None) -> None:
        """Tell its caller of progress."""
        if self.asked.on_progress is not None:
            await self.asked.on_progress(progress, None, message)
        elif self.on_said is not None:
            await self.on_said(PROGRESS, {"progress": progress} | ({} if message is None else {"message": message}))

    async def submit(
        self, hand_on: Callable[[Request], None] | None = None, *, earlier: CallError | None = None
    ) -> Outcome:
        """Send the call by `hand_on`, or else by the router, and wait in a new slot, as long as it has time. `earlier`
        is the error of an earlier attempt.

        Raises:
            CallTimeout: Its time is over, or there was no progress in time.
            BreakerOpen: The breaker refuses the call. An earlier error, if any, is raised instead.
            SupervisorClosed: The router has ended.
        """
        asked = self.asked
        if self.slot.sent:
            self._acted_before = True
        if self.deadline is not None and trio.current_time() >= self.deadline.at:  # it may be known only now
            raise self.timed_out()
        if hand_on is None and self.servers.breakers.circuits:
            self._check_admitted(earlier)
        on_said = asked.on_progress or self.on_said
        idle = None if asked.idle_timeout is None else IdleLimit(asked.idle_timeout)
        try:
            follows = asked.on_progress is not None or idle is not None
            wants_progress = follows or (self.relay is not None and "progressToken" in (asked.meta or {}))
            message = self.message(ReplySlot(wants_progress=wants_progress, idle=idle, relay=self.relay))
            if hand_on is not None:
                hand_on(message)
            else:
                await self.servers.router.submit([message])
            if message.slot.decided:  # at once, and there is no wait for its outcome
                await trio.lowlevel.cancel_shielded_checkpoint()
            if idle is None and (on_said is None or self.timeout == math.inf):
                return await message.slot.wait(on_said)
            with self._attention(idle):
                return await message.slot.wait(on_said)
            raise AssertionError  # the limits end it with an error of their own
        except trio.BrokenResourceError:
            raise SupervisorClosed from None
        finally:
            self.settle()

    def _check_admitted(self, earlier: CallError | None) -> None:
        """Ask the circuit breaker before the server.

        Raises:
            BreakerOpen: The breaker refuses the call. An earlier error, if any, is raised instead.
        """
        refusing = self.servers.breakers.admit(self, self.server_name)
        if refusing is not None:
            if earlier is not None:
                raise earlier  # the fate of the call says more than the server's present state
            failures, retry_in = refusing.failures, refusing.retry_in
            raise BreakerOpen(server=self.server_name, tool=self.name, failures=failures, retry_in=retry_in)

    def settle(self) -> None:
        """Report the present slot, decided or left, to its server's circuit breaker."""
        breakers, slot = self.servers.breakers, self.slot
        if breakers.circuits or type(slot.outcome) is not Answered:  # or it says nothing new
            breakers.settle(self, self.server_name, slot)

    def renew_slot(self) -> None:
        """Take a new slot after an answer that is a question: whether the server has acted is unknown until its next
        answer."""
        before, self.slot = self.slot, ReplySlot()
        self._acted_before = self._acted_before or before.sent
        self.slot.follow(before)

    @contextmanager
    def _attention(self, idle: IdleLimit | None) -> Generator[None, None, None]:
        """The limits of a call with a callback or an idle limit: the callback runs on the call's time, and no timer
        could end that."""
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


class Target:
    """The object that one call has found so far, and the states of its server that it has seen."""

    def __init__(self, call: ActiveCall[Any, Any]) -> None:
        self._call = call
        self._asked = call.asked
        self._servers = call.servers
        when_down = HOLD if call.asked.when_down == "hold" else call.asked.when_down
        self._hold = 0.0 if when_down is None or isinstance(when_down, str) else when_down
        """Seconds that it is held at most while its server restarts; 0: it is not held."""
        self._owner = call.asked.server
        """The server of the tool, if that is known."""
        self._unsure: Sequence[str] = ()
        """Connected servers whose lists may be old, and that may have the object."""
        self._listed_again = False
        """True if such lists were fetched again for this call."""
        self._lost_incarnation = 0
        self._started: int | None = None
        """The incarnation that had ended when this call had the next one started."""
        self._took_part = False
        """True if the call has waited for an attempt since it was sent last: it must have no other begun early."""
        self._held_until: float | None = None
        """The time until which it is held, on Trio's clock; None before it met a pause before a restart."""
        self._told: float = -math.inf
        """The progress that the caller of the held call was told last."""

    # -- which tool -----------------------------------------------------------------------------------------------

    async def find(self) -> Found:
        """The object of the call. If it is unknown, waits until every first attempt is settled, and lists that may be
        old were fetched again.

        Raises:
            NurseryError: See `look`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            await by_turns(self._call.prepare())
            if (found := self.look()) is not None:
                return found
            if self._unsure:
                servers, self._unsure, self._listed_again = self._unsure, (), True
                await self._servers.refresh_old(servers, self._call.lists)
            elif self._owner is None:
                await self._servers.awaited_tools.wait(self._call.awaited or self._asked.name)
            else:
                await self._change(self._servers.snapshot(self._owner))

    def look(self) -> Found | None:
        """The object of the call, as it is known now; None if it may yet come.

        Raises:
            UnknownTool: No server has it, every first attempt is settled, and no list may be old. Or
                `UnknownResource`, `UnknownPrompt`.
            NotApproved: It is held back.
            ServerDown: Its server is not connected, and the call does not wait for that.
            UnknownServer: There is no server of the name that was given.
            SupervisorClosed: The block is being left.
        """
        self._servers.check_open()
        call, asked = self._call, self._asked
        found: Found | None = call.find()
        if found is not None:
            return found
        call.check_allowed()
        self._owner = owner = asked.server or call.former_owner()
        if owner is None and self._may_come():
            return None
        snapshots = self._servers.snapshots
        down = [] if owner else [name for name, one in snapshots.items() if not _connected(one.value)]
        self._owner = owner = owner or self._never_heard_of(down)
        known = None if owner is None else self._servers.snapshot(owner).value
        if known is not None and not self._is_connected(known, self._waits(patient=False)):
            return None
        self._unsure = [] if self._listed_again else self._may_have_it_now(owner)
        if self._unsure:
            return None
        raise call.unknown(down)

    def _never_heard_of(self, down: Sequence[str]) -> str | None:
        """The server that has never listed anything, if no other can have an object of this name."""
        parts = self._servers.catalogue.value.parts
        blank = {server for server in down if parts[server].is_blank}
        owners = self._call.possible_owners() if blank else ()
        return owners[0] if len(owners) == 1 and owners[0] in blank else None

    def _may_have_it_now(self, owner: str | None) -> Sequence[str]:
        """The connected servers that may have gained the object without announcing it."""
        now, snapshots = trio.current_time(), self._servers.snapshots
        servers = self._call.listers() if self._call.lists and self._call.timeout > 0 else ()
        known = [snapshots[name].value for name in servers if name in snapshots and owner in (None, name)]
        return [one.spec.name for one in known if _connected(one) and one.definitions.old_from <= now]

    def _may_come(self) -> bool:
        """True if a first attempt that may bring an unknown name is under way, or was begun just now."""
        for server in self._servers.awaited_tools.unlisted():
            self._servers.wake(server)
        return self._servers.awaited_tools.expected

    # -- its server -----------------------------------------------------------------------------------------------

    async def ready(self, *, patient: bool) -> Found:
        """Wait until an incarnation other than the one that was left is connected; if `patient`, through the pause
        before a restart as well. Returns the object as it is then.

        Raises:
            NurseryError: See `look`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        waits, server = self._waits(patient=patient), self._servers.snapshot(self._call.server_name)
        while not self._is_connected(server.value, waits) or server.value.incarnation == self._lost_incarnation:
            await self._change(server)
            self._servers.check_open()
        return await self.find()

    async def _change(self, server: Observable[Snapshot]) -> None:
        """Wait until the server may have changed, or the call is held no longer. The caller of a held call is told of
        each attempt."""
        snapshot = server.value
        if self._held_until is None or _connected(snapshot):
            await server.changed()
            return
        progress = snapshot.attempt - snapshot.max_attempts - 1  # it has to grow, and the server's own begins at 0
        with trio.move_on_at(self._held_until):
            if progress > self._told:
                self._told = progress
                message = f"restarting, attempt {snapshot.attempt} of {snapshot.max_attempts}"
                await self._call.tell_progress(progress, message)
            else:
                await server.changed()

    def leave(self, incarnation: int | None) -> None:
        """Leave this incarnation: only another can take the call."""
        self._lost_incarnation, self._took_part = incarnation or 0, False
        if self._call.slot.sent:
            self._held_until = None

    async def noticed(self, lost: int | None) -> None:
        """Wait until the keeper knows of a loss too: a caller that knows of it must not see the server as connected."""
        observable = self._servers.snapshots.get(self._call.server_name)
        if observable is not None:
            await observable.wait(
                lambda now: self._servers.closed or now.incarnation != lost or not _connected(now) or None
            )

    def _is_connected(self, snapshot: Snapshot, waits: frozenset[ServerState]) -> bool:
        """True if the server is connected; False if the call waits for it, after starting it if calls do so.

        Raises:
            ServerDown: The call does not wait in this state.
        """
        if _connected(snapshot):
            return True
        self._servers.request_start(snapshot.spec.name)
        if self._held_until is None and self._hold and snapshot.state is ServerState.WAITING:
            self._held_until = trio.current_time() + self._hold
        if self._held_until is not None and trio.current_time() >= self._held_until:
            raise self._down(snapshot)
        if waits and self._starts(snapshot):
            return False
        if snapshot.state not in waits or snapshot.abandoned:
            raise self._down(snapshot)
        return False

    def _starts(self, snapshot: Snapshot) -> bool:
        """True if this call has the server started, and that start has not begun yet. A call starts its server once."""
        self._took_part = self._took_part or snapshot.state is ServerState.CONNECTING
        skips_delay = self._asked.when_down == "reconnect" and not self._took_part
        skips_delay = skips_delay or (self._hold > 0 and snapshot.was_stable)
        is_due = snapshot.state is ServerState.WAITING and skips_delay
        if not (is_due or snapshot.revives_on_call):
            return False
        if self._started is None:
            self._started = snapshot.incarnation
            start = self._servers.skip_restart_delay if is_due else self._servers.revive
            start(snapshot.spec.name)
        return self._started == snapshot.incarnation

    def _waits(self, *, patient: bool) -> frozenset[ServerState]:
        """The states in which this call waits for its server."""
        if self._asked.when_down == "fail":
            return frozenset()
        if self._asked.when_down == "wait":
            return CALLS_WAIT | {ServerState.WAITING, ServerState.FAILED}
        if patient or self._hold:
            return CALLS_WAIT | {ServerState.WAITING}
        return CALLS_WAIT

    def _down(self, snapshot: Snapshot) -> ServerDown:
        return server_down(snapshot, now=trio.current_time(), tool=self._call.name)


def target_of(call: ActiveCall[Any, Any]) -> Target:
    """The target of a call, made for the first wait: most calls are sent at once and need none."""
    if call.target is None:
        call.target = Target(call)
    return call.target


def _connected(snapshot: Snapshot) -> bool:
    return snapshot.state is ServerState.CONNECTED

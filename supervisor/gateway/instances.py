"""Further instances of servers: for sessions that have one each, and for servers that ask and do not say for whom.

An instance is a supervisor of its own for that one server. One of a session is its own until that ends. Others are
leased: as long as a principal has calls at one, nobody else has.
"""

import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Hashable
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, Protocol, TypeVar

import trio
from attrs import define, field

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    ConfigError,
    InstancesTaken,
    NurseryError,
    ServerDown,
    SupervisorClosed,
    UnknownServer,
)
from mcp_nursery.actors.nurseries import run_alongside

from ..events import EventStream, PromptsChanged, ResourcesChanged, StateChanged, ToolsChanged
from ..notices import Notice
from ..security.untrusted_marks import clean_name
from ..spec import ServerSpec
from ..state_machine import SHUT
from ..supervisor import Supervisor
from .catalogues import status_of
from .downstream import Incoming
from .levels import LogLevel

logger: Final = logging.getLogger(__name__)

SESSION_IDLE: Final = 1_800.0
"""Seconds after which a session's instance ends that it does not use, if its spec has no idle stop."""
LEASE_IDLE: Final = 60.0
"""Seconds after which one ends that was leased and is not used."""
AGAIN: Final = 60.0
"""Seconds after which one is started for a lease again, after one could not be."""

ListChanged = ToolsChanged | PromptsChanged | ResourcesChanged
T = TypeVar("T")


class Words(Protocol):
    """Hears what further instances say unasked."""

    def note_change(self, event: ListChanged, owner: Hashable) -> None:
        """A list of one has changed; `owner`: the session that it is for, None if it is leased."""
        ...

    def note_notice(self, notice: Notice, owner: Hashable) -> None:
        """One has said something that is about no request."""
        ...

    def wanted_level(self, server: str, owner: Hashable, has_log: bool) -> str | None:  # noqa: FBT001
        """The least severe log messages that are wanted of one, None if nobody has said so."""
        ...


_MOST_GIVEN_UP: Final = 2
"""Principals with calls given up at one member: more say no more, it serves nobody."""
_ANYBODY: Final = "anybody"
"""Clients that nobody knows count as one."""


def owner_of(incoming: Incoming) -> Hashable:
    """Whose instances the request of a client may use: its session, or all that a client without sessions asks for."""
    return incoming.session or incoming.principal or _ANYBODY


@define(eq=False)
class _Member:
    """A supervisor of a server, and whose calls are at it."""

    supervisor: Supervisor | None = None
    users: Counter[Hashable] = field(factory=Counter[Hashable])
    given_up: dict[Hashable, int] = field(factory=dict[Hashable, int])
    """Whose calls it may still be working on, though nobody waits for them, and in which incarnation."""

    def serves(self, principal: Hashable) -> bool:
        """Whether nobody else's calls are at it."""
        return not {*self.users, *self.given_up} - {principal}

    @contextmanager
    def used_by(self, principal: Hashable) -> Generator[None, None, None]:
        """A call is at it, for as long as the block lasts."""
        self.users[principal] += 1
        self.changed()
        try:
            yield
        finally:
            self.users[principal] -= 1
            if not self.users[principal]:
                del self.users[principal]
            self.changed()

    def changed(self) -> None:
        """A call has begun or ended."""

    async def ready(self) -> Supervisor | None:
        """Its supervisor; None if there is none any more."""
        return self.supervisor


@define(eq=False, kw_only=True)
class _Instance(_Member):
    """A further instance."""

    spec: ServerSpec
    idle_after: float
    session: Hashable = None
    """Whose it is for good; None: it is leased."""
    life: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Ends it; the deadline is that of an idle one."""
    opened: trio.Event = field(factory=trio.Event, init=False)
    failure: NurseryError | None = field(default=None, init=False)
    level: LogLevel | None = field(default=None, init=False)
    """Once it is there."""

    def changed(self) -> None:
        """See `_Member`. One that may be working on somebody's call is no other's any more."""
        if self.users:
            self.life.deadline = math.inf
        elif self.given_up and self.session is None:
            self.life.cancel()
        else:
            self.life.deadline = trio.current_time() + self.idle_after

    async def ready(self) -> Supervisor | None:
        """See `_Member`. None for a lease that could not be had.

        Raises:
            NurseryError: It is a session's, and cannot be started.
        """
        await self.opened.wait()
        if self.session is None:
            return None if self.life.cancel_called else self.supervisor
        if self.failure is not None:
            raise self.failure
        if self.supervisor is None or self.life.cancel_called:
            raise _ended(self.spec.name)
        return self.supervisor


def _ended(server: str) -> CallError:
    return CallError("this session's instance of it has ended", server=server, tool=None)


class Instances:
    """The instances of a gateway's servers.

    Args:
        supervisor: Has the one instance of each that is always there.
        nursery: Where others live.
        words: Hears what others say unasked. What a leased one says is for all: its calls may change more than its own.
    """

    def __init__(self, supervisor: Supervisor, nursery: trio.Nursery, words: Words) -> None:
        self._supervisor = supervisor
        self._nursery = nursery
        self._words = words
        self._first: dict[str, _Member] = {}
        """Those that are always there."""
        self._more: dict[str, list[_Instance]] = {}
        """All others, until everything they owned is closed."""
        self._asking: set[str] = set()
        """Servers that ask, and do not say for which call."""
        self._again_at: dict[str, float] = {}

    # -- requests -------------------------------------------------------------------------------------------------

    def note_question(self, server: str) -> None:
        """A server has asked, and did not say for which call."""
        self._asking.add(server)

    async def call(
        self, server: str, incoming: Incoming, principal: Hashable, make: Callable[[Supervisor], Awaitable[T]]
    ) -> T:
        """Make a request where it belongs.

        Raises:
            InstancesTaken: All instances that there may be are other sessions'.
            NurseryError: See `Supervisor.request`.
        """
        spec = self._supervisor.spec(server)
        member = self._of_session(spec, incoming) if spec.instances == "session" else self._leased(spec, principal)
        with member.used_by(principal):
            supervisor = await member.ready()
            if supervisor is not None:
                return await self._made(member, server, principal, make(supervisor))
        first = self._first_of(server)
        with first.used_by(principal):
            return await self._made(first, server, principal, make(self._supervisor))

    async def _made(self, member: _Member, server: str, principal: Hashable, made: Awaitable[T]) -> T:
        try:
            return await made
        except (trio.Cancelled, CallTimeout):
            self._note_given_up(member, server, principal)
            raise
        except SupervisorClosed:
            if isinstance(member, _Instance) and member.life.cancel_called:
                raise _ended(server) from None
            raise

    @asynccontextmanager
    async def news(self, server: str, incoming: Incoming) -> AsyncGenerator[Supervisor, None]:
        """The supervisor whose news of a server a client is told, for as long as the block lasts.

        Raises:
            NurseryError: As for `call`.
        """
        spec = self._supervisor.spec(server)
        if spec.instances != "session":
            yield self._supervisor
            return
        member = self._of_session(spec, incoming)
        with member.used_by(member.session):
            supervisor = await member.ready()
            assert supervisor is not None  # or it would have raised
            yield supervisor

    # -- which of them --------------------------------------------------------------------------------------------

    def _of_session(self, spec: ServerSpec, incoming: Incoming) -> _Instance:
        """The one of a client's session, or of all that a client without sessions asks for."""
        session = owner_of(incoming)
        if incoming.session is not None and incoming.session.ended:
            raise _ended(spec.name)
        there = self._more.get(spec.name, [])
        for each in there:
            if each.session == session and not each.life.cancel_called:
                return each
        if len(there) >= spec.max_instances:
            first_free = min(each.life.deadline for each in there) - trio.current_time()
            retry_in = None if math.isinf(first_free) else max(first_free, 0.0)
            raise InstancesTaken(server=spec.name, most=spec.max_instances, retry_in=retry_in)
        return self._begin(spec, session, SESSION_IDLE)

    def _leased(self, spec: ServerSpec, principal: Hashable) -> _Member:
        """Where nobody else has calls, if it matters; the first one if there is no such."""
        name = spec.name
        first = self._first_of(name)
        if name not in self._asking or spec.instances == "single":
            return first
        if first.given_up:
            self._forget_given_up(first, name)
        there = self._more.get(name, [])
        serving = [each for each in (first, *there) if each.serves(principal) and not _is_ending(each)]
        for each in serving:
            if principal in each.users:
                return each
        if serving:
            return serving[0]
        if len(there) < spec.max_instances and trio.current_time() >= self._again_at.get(name, 0):
            return self._begin(spec, None, LEASE_IDLE)
        return first

    def _first_of(self, server: str) -> _Member:
        first = self._first.get(server)
        if first is None:
            first = self._first[server] = _Member(self._supervisor)
        return first

    # -- their lives ----------------------------------------------------------------------------------------------

    def _begin(self, spec: ServerSpec, session: Hashable, idle_after: float) -> _Instance:
        if spec.stop_idle_after is not None:
            idle_after = spec.stop_idle_after or math.inf
        instance = _Instance(spec=spec, session=session, idle_after=idle_after)
        self._more.setdefault(spec.name, []).append(instance)
        self._nursery.start_soon(self._live, instance)
        return instance

    async def _live(self, instance: _Instance) -> None:
        name = instance.spec.name
        try:
            with instance.life:
                async with self._supervisor.open_instance(name) as supervisor, supervisor.events() as events:
                    if instance.session is None:
                        await supervisor.reconnect(name)  # joins the attempt that is under way
                    instance.supervisor = supervisor
                    instance.level = LogLevel(
                        supervisor, name, partial(self._words.wanted_level, name, instance.session)
                    )
                    instance.level.review(self._nursery)
                    instance.opened.set()
                    async with run_alongside(partial(self._hear_notices, supervisor, instance.session)):
                        await self._hear_changes(events, instance.level, instance.session)
        except (ConfigError, ServerDown, SupervisorClosed, UnknownServer) as error:
            instance.failure = error
            if instance.session is None:
                self._again_at[name] = trio.current_time() + AGAIN
                logger.warning("%s: another instance could not be started; its questions are refused", clean_name(name))
        finally:
            self._more[name].remove(instance)
            instance.opened.set()

    async def _hear_notices(self, supervisor: Supervisor, owner: Hashable) -> None:
        async with supervisor.notices() as notices:
            async for notice in notices:
                self._words.note_notice(notice, owner)

    async def _hear_changes(self, events: EventStream, level: LogLevel, owner: Hashable) -> None:
        """That it has lists at all, once it is connected, is no change of them."""
        listed_at = math.inf
        async for event in events:
            match event:
                case StateChanged(new=ServerState.CONNECTED):
                    listed_at = min(listed_at, event.at)
                    level.review(self._nursery)
                case ToolsChanged() | PromptsChanged() | ResourcesChanged() if event.at > listed_at:
                    self._words.note_change(event, owner)
                case _:
                    pass

    def levels(self, server: str, owner: Hashable = None) -> list[LogLevel]:
        """Of its further instances that are there; with `owner` those of that one."""
        there = (each for each in self._more.get(server, []) if owner in (None, each.session))
        return [each.level for each in there if each.level is not None]

    def end(self, of: Callable[[Hashable], bool]) -> None:
        """End those of these sessions and principals; None is all whom nobody knows."""
        for there in self._more.values():
            for instance in there:
                whose = instance.session
                if whose is not None and of(None if whose is _ANYBODY else whose):
                    instance.life.cancel()

    def review(self, begun_again: Collection[str] = ()) -> None:
        """Servers were stopped, removed or configured anew: end what is not wanted any more.

        Args:
            begun_again: Those that begin again.
        """
        if not self._first and not self._more:
            return
        states = {one.name: one.state for one in self._supervisor.status()}
        for name, there in self._more.items():
            shut = name in begun_again or states.get(name, ServerState.STOPPED) in SHUT
            for instance in there:
                if shut or self._supervisor.spec(name) != instance.spec:
                    instance.life.cancel()
        gone = self._first.keys() - states.keys()
        for name in gone:
            del self._first[name]
        for name in {*begun_again, *gone}:
            self._asking.discard(name)
            self._again_at.pop(name, None)

    # -- calls that nobody waits for ------------------------------------------------------------------------------

    def _note_given_up(self, member: _Member, server: str, principal: Hashable) -> None:
        """It may still be working on this call."""
        self._forget_given_up(member, server)
        if len(member.given_up) < _MOST_GIVEN_UP:
            member.given_up[principal] = self._incarnation(member, server)

    def _forget_given_up(self, member: _Member, server: str) -> None:
        """Another incarnation knows nothing of them."""
        current = self._incarnation(member, server)
        member.given_up = {one: number for one, number in member.given_up.items() if number == current}

    @staticmethod
    def _incarnation(member: _Member, server: str) -> int:
        assert member.supervisor is not None  # a call is at it
        status = status_of(member.supervisor, server)
        return 0 if status is None else status.incarnation


def _is_ending(member: _Member) -> bool:
    return isinstance(member, _Instance) and member.life.cancel_called

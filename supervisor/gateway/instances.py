"""Further instances of servers: for sessions that have one each, and for servers that ask and do not say for whom.

An instance is a supervisor of its own for that one server. One of a session is its own until that ends. Others are
leased: as long as a principal has calls at one, nobody else has.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import (
    ConfigError,
    InstancesTaken,
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
from .access import Principal
from .downstream import Incoming, Session
from .instance import FurtherInstance, Instance, ended
from .levels import LogLevel
from .offers import gateway_callbacks

logger: Final = logging.getLogger(__name__)

SESSION_IDLE: Final = 1_800.0
"""Seconds after which a session's instance ends that it does not use, if its spec has no idle stop."""
LEASE_IDLE: Final = 60.0
"""Seconds after which one ends that was leased and is not used."""
SHARE: Final = 0.5
"""Part of a server's `max_instances` that sessions of one client may have, rounded up: others are left the rest."""
AGAIN: Final = 60.0
"""Seconds after which one is started for a lease again, after one could not be."""

ListChanged = ToolsChanged | PromptsChanged | ResourcesChanged
T = TypeVar("T")


class Audience(Protocol):
    """The clients: they hear what further instances say unasked."""

    def note_change(self, event: ListChanged, owner: Hashable) -> None:
        """A list of one has changed; `owner`: the session that it is for, None if it is leased."""
        ...

    def note_notice(self, notice: Notice, owner: Hashable) -> None:
        """One has said something that is about no request."""
        ...

    def wanted_level(self, server: str, owner: Hashable, has_log: bool) -> str | None:  # noqa: FBT001
        """The least severe log messages that are wanted of one, None if nobody has said so."""
        ...


_ANYBODY: Final = "anybody"
"""Clients that nobody knows count as one."""


def owner_of(incoming: Incoming) -> Hashable:
    """Whose instances the request of a client may use: its session, or all that a client without sessions asks for."""
    return incoming.session or incoming.principal or _ANYBODY


def _client_of(user: Hashable) -> Hashable:
    """The client of a session, or the one that has none; None: nobody has authenticated it."""
    return user.client if isinstance(user, Session) else user if isinstance(user, Principal) else None


def _taken_by(user: Hashable, there: Iterable[FurtherInstance]) -> list[FurtherInstance]:
    """Those that the client of this user has, whichever sessions it is with."""
    client = _client_of(user)
    return [each for each in there if client in map(_client_of, {each.owner, *each.users})] if client else []


def _share(spec: ServerSpec) -> int:
    return math.ceil(spec.max_instances * SHARE)


def _free_in(taken: Iterable[FurtherInstance]) -> float | None:
    """Seconds until one of these ends that nobody uses; None: all are in use."""
    first = min(each.life.deadline for each in taken) - trio.current_time()
    return None if math.isinf(first) else max(first, 0.0)


class Instances:
    """The instances of a gateway's servers.

    Args:
        supervisor: Has the one instance of each that is always there.
        nursery: Where others live.
        audience: Hears what others say unasked. What a leased one says is for all: its calls may change more than its
            own.
    """

    def __init__(self, supervisor: Supervisor, nursery: trio.Nursery, audience: Audience) -> None:
        self._supervisor = supervisor
        self._nursery = nursery
        self._audience = audience
        self._first: dict[str, Instance] = {}
        """Those that are always there."""
        self._more: dict[str, list[FurtherInstance]] = {}
        """All others, until everything they owned is closed."""
        self._asking: set[str] = set()
        """Servers that ask, and do not say for which call."""
        self._again_at: dict[str, float] = {}

    # -- requests -------------------------------------------------------------------------------------------------

    def note_question(self, server: str, *, of_somebody: bool) -> None:
        """A server has asked, and did not say for which call. Nobody knows the user of that call unless it was one `of
        somebody`: his next one counts as another's, and is to find an instance that has been started."""
        self._asking.add(server)
        spec = self._supervisor.spec(server)
        if not of_somebody and spec.instances == "shared" and not self._more.get(server) and self._may_begin(server):
            self._begin(spec, None, LEASE_IDLE).changed()

    async def call(
        self, server: str, incoming: Incoming, principal: Hashable, make: Callable[[Supervisor], Awaitable[T]]
    ) -> T:
        """Make a request where it belongs.

        Raises:
            InstancesTaken: All instances that there may be are other sessions'.
            NurseryError: See `Supervisor.request`.
        """
        spec = self._supervisor.spec(server)
        instance = self._of_session(spec, incoming) if spec.instances == "session" else self._leased(spec, principal)
        with instance.used_by(principal):
            supervisor = await instance.ready()
            if supervisor is not None:
                return await instance.made(principal, make(supervisor))
        first = self._first_of(server)
        with first.used_by(principal):
            return await first.made(principal, make(self._supervisor))

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
        instance = self._of_session(spec, incoming)
        with instance.used_by(instance.owner):
            supervisor = await instance.ready()
            assert supervisor is not None  # or it would have raised
            yield supervisor

    # -- which of them --------------------------------------------------------------------------------------------

    def _of_session(self, spec: ServerSpec, incoming: Incoming) -> FurtherInstance:
        """The one of a client's session, or of all that a client without sessions asks for."""
        owner = owner_of(incoming)
        if incoming.session is not None and incoming.session.ended:
            raise ended(spec.name)
        there = self._more.get(spec.name, [])
        for each in there:
            if each.owner == owner and not each.is_ending:
                return each
        own, share, most = _taken_by(owner, there), _share(spec), spec.max_instances
        if len(own) >= share:
            raise InstancesTaken(server=spec.name, most=share, retry_in=_free_in(own), own=True)
        if len(there) >= most:
            raise InstancesTaken(server=spec.name, most=most, retry_in=_free_in(there))
        session = incoming.session
        return self._begin(spec, owner, SESSION_IDLE, None if session is None else session.capabilities)

    def _leased(self, spec: ServerSpec, principal: Hashable) -> Instance:
        """Where nobody else has calls, if it matters; the first one if there is no such."""
        name = spec.name
        first = self._first_of(name)
        if name not in self._asking or spec.instances == "single":
            return first
        if first.given_up:
            first.forget_given_up()
        there = self._more.get(name, [])
        serving = [each for each in (first, *there) if each.serves(principal) and not each.is_ending]
        for each in serving:
            if principal in each.users:
                return each
        if serving:
            return serving[0]
        has_room = len(there) < spec.max_instances and len(_taken_by(principal, there)) < _share(spec)
        if has_room and self._may_begin(name):
            return self._begin(spec, None, LEASE_IDLE)
        return first

    def _may_begin(self, server: str) -> bool:
        """Whether another could perhaps be started for a lease."""
        return trio.current_time() >= self._again_at.get(server, 0)

    def _first_of(self, server: str) -> Instance:
        first = self._first.get(server)
        if first is None:
            level = self._level(self._supervisor, server, None)
            first = self._first[server] = Instance(server, self._supervisor, level)
        return first

    def _level(self, supervisor: Supervisor, server: str, owner: Hashable) -> LogLevel:
        return LogLevel(supervisor, server, partial(self._audience.wanted_level, server, owner))

    # -- their lives ----------------------------------------------------------------------------------------------

    def _begin(
        self, spec: ServerSpec, owner: Hashable, idle_after: float, capabilities: Mapping[str, Any] | None = None
    ) -> FurtherInstance:
        if spec.stop_idle_after is not None:
            idle_after = spec.stop_idle_after or math.inf
        callbacks = None if capabilities is None else gateway_callbacks(capabilities)
        instance = FurtherInstance(spec.name, spec=spec, owner=owner, idle_after=idle_after, callbacks=callbacks)
        self._more.setdefault(spec.name, []).append(instance)
        self._nursery.start_soon(self._live, instance)
        return instance

    async def _live(self, instance: FurtherInstance) -> None:
        name, owner = instance.server, instance.owner
        try:
            with instance.life:
                async with (
                    self._supervisor.open_instance(name, callbacks=instance.callbacks) as supervisor,
                    supervisor.events() as events,
                ):
                    if owner is None:
                        await supervisor.reconnect(name)  # joins the attempt that is under way
                    instance.supervisor = supervisor
                    level = instance.level = self._level(supervisor, name, owner)
                    level.review(self._nursery)
                    instance.opened.set()
                    async with run_alongside(partial(self._hear_notices, supervisor, owner)):
                        await self._hear_changes(events, level, owner)
        except (ConfigError, ServerDown, SupervisorClosed, UnknownServer) as error:
            instance.failure = error
            if owner is None:
                self._again_at[name] = trio.current_time() + AGAIN
                logger.warning("%s: another instance could not be started; its questions are refused", clean_name(name))
        finally:
            self._more[name].remove(instance)
            instance.opened.set()

    async def _hear_notices(self, supervisor: Supervisor, owner: Hashable) -> None:
        async with supervisor.notices() as notices:
            async for notice in notices:
                self._audience.note_notice(notice, owner)

    async def _hear_changes(self, events: EventStream, level: LogLevel, owner: Hashable) -> None:
        """That it has lists at all, once it is connected, is no change of them."""
        listed_at = math.inf
        async for event in events:
            match event:
                case StateChanged(new=ServerState.CONNECTED):
                    listed_at = min(listed_at, event.at)
                    level.review(self._nursery)
                case ToolsChanged() | PromptsChanged() | ResourcesChanged() if event.at > listed_at:
                    self._audience.note_change(event, owner)
                case _:
                    pass

    def levels(self, server: str, owner: Hashable = None) -> list[LogLevel]:
        """Of its instances that are there; with `owner` of the one that is always there, and of that one's."""
        more = (each for each in self._more.get(server, []) if owner in (None, each.owner))
        return [each.level for each in (self._first_of(server), *more) if each.level is not None]

    def end(self, of: Callable[[Hashable], bool]) -> None:
        """End those of these sessions and principals; None is all whom nobody knows."""
        for there in self._more.values():
            for instance in there:
                whose = instance.owner
                if whose is not None and of(None if whose is _ANYBODY else whose):
                    instance.life.cancel()

    def review(self, begun_again: Collection[str] = (), removed: Collection[str] = ()) -> None:
        """Servers were stopped, removed or configured anew: end what is not wanted any more.

        Args:
            begun_again: Those that begin again.
            removed: Those that were removed: others may have their names by now.
        """
        if not self._first and not self._more:
            return
        states = {one.name: one.state for one in self._supervisor.status()}
        for name, there in self._more.items():
            shut = name in begun_again or states.get(name, ServerState.STOPPED) in SHUT
            for instance in there:
                if shut or self._supervisor.spec(name) != instance.spec:
                    instance.life.cancel()
        gone = {*removed, *(self._first.keys() - states.keys())}
        for name in gone:
            self._first.pop(name, None)
        for name in {*begun_again, *gone}:
            self._asking.discard(name)
            self._again_at.pop(name, None)

"""Further instances of servers: for sessions that have one each, and for servers whose questions do not name a call.

An instance is a supervisor of its own for that one server. An instance of a session belongs to it until the session
ends. Other instances are leased: while one works on calls of a principal, it works on no others.
"""

import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import Any, Final, Protocol

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import (
    CallError,
    ConfigError,
    InstancesTaken,
    ServerDown,
    SupervisorClosed,
    UnknownServer,
)
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.nurseries import run_alongside

from ...calls.relayed import RelayedResult
from ...decisions.state_machine import SHUT
from ...events import EventStream, PromptsChanged, ResourcesChanged, StateChanged, ToolsChanged
from ...notices import Notice
from ...security.untrusted_marks import clean_name
from ...spec import ServerSpec, short_digest
from ...supervisor import Supervisor
from ..auth.principal import Principal
from ..bridge import Json
from ..client_request import ClientRequest
from ..clients import ClientSession
from ..views.view import status_of
from .ask_client import gateway_callbacks
from .instance import FurtherInstance, Instance, LeaseFailed, LogLevel, instance_ended

logger: Final = logging.getLogger(__name__)

SESSION_IDLE: Final = 1_800.0
"""Seconds after which an unused instance of a session ends, if its spec has no idle stop."""
LEASE_IDLE: Final = 60.0
"""Seconds after which an unused leased instance ends."""
SHARE: Final = 0.5
"""Part of a server's `max_instances` that sessions of one client may have, rounded up: the rest is left to others."""
AGAIN: Final = 60.0
"""Seconds until another instance is started for a lease, after one could not be started."""

ListChanged = ToolsChanged | PromptsChanged | ResourcesChanged


class Audience(Protocol):
    """The clients, as recipients of the notifications of further instances."""

    def publish_change(self, event: ListChanged, owner: Hashable) -> None:
        """Notify of a changed list; `owner`: the session that has the instance, None if it is leased."""
        ...

    def publish_notice(self, notice: Notice, owner: Hashable) -> None:
        """Pass on a notification that is about no request."""
        ...

    def wanted_level(self, server: str, owner: Hashable, has_log: bool) -> str | None:  # noqa: FBT001
        """The level of the least severe log messages that are wanted of an instance; None if no client has asked."""
        ...


_ANYBODY: Final = "anybody"
"""The owner of instances for all clients that are not authenticated: they count as one."""


def owner_of(request: ClientRequest) -> Hashable:
    """The owner of the instances that the request of a client may use: its session, or the client itself if it has no
    sessions."""
    return request.session or request.principal or _ANYBODY


def _client_of(user: Hashable) -> Hashable:
    """The client of a user, which is a session or a client without one; None: it is not authenticated."""
    return user.client if isinstance(user, ClientSession) else user if isinstance(user, Principal) else None


def _instances_of(user: Hashable, there: Iterable[FurtherInstance]) -> list[FurtherInstance]:
    """The instances that the client of this user has, with any of its sessions."""
    client = _client_of(user)
    return [each for each in there if client in map(_client_of, {each.owner, *each.users})] if client else []


def _client_share(spec: ServerSpec) -> int:
    return math.ceil(spec.max_instances * SHARE)


def _seconds_until_free(taken: Iterable[FurtherInstance]) -> float | None:
    """Seconds until the first idle instance of these ends; None: all are in use."""
    first = min(each.life.deadline for each in taken) - trio.current_time()
    return None if math.isinf(first) else max(first, 0.0)


class InstancePool:
    """The instances of a gateway's servers: the main instance of each, which its supervisor has and which is always
    there, and further ones in the nursery. `audience` is the recipient of their notifications about no request. Those
    of a leased instance are for all clients: its calls may change more than that instance."""

    def __init__(self, supervisor: Supervisor, nursery: trio.Nursery, audience: Audience) -> None:
        self._supervisor = supervisor
        self._nursery = nursery
        self._audience = audience
        self._first: dict[str, Instance] = {}
        """The main instances."""
        self._more: dict[str, list[FurtherInstance]] = {}
        """The further instances, until everything that they own is closed."""
        self._asking: set[str] = set()
        """Servers that have asked a question without naming its call."""
        self._again_at: dict[str, float] = {}
        self._objects: dict[str, tuple[ServerSpec, str]] = {}
        """The servers in memory that have made tasks, each with the text that `reached` returns for it."""

    # -- requests -------------------------------------------------------------------------------------------------

    def record_question(self, server: str, *, of_somebody: bool) -> None:
        """Record that a server has asked a question without naming its call: from now on calls of different principals
        are kept apart. `of_somebody`: the call has a known principal. Without one, the next call of the same client
        counts as another's, and an instance is started for it now."""
        self._asking.add(server)
        spec = self._supervisor.spec(server)
        if not of_somebody and spec.instances == "shared" and not self._more.get(server) and self._may_start(server):
            self._start(spec, None, LEASE_IDLE).update_deadline()

    async def request(
        self, server: str, request: ClientRequest, params: Json, meta: Json, **options: Any
    ) -> RelayedResult:
        """Make a request, given as its client made it, to the instance that it belongs to, with the parameters and the
        `_meta` that the server is sent. The options are `when_down`, `on_notice`, `on_question`, `agreed` and
        `follow_tasks` of `Supervisor.request`.

        Raises:
            InstancesTaken: All instances that there may be belong to other sessions.
            NurseryError: See `Supervisor.request`.
        """
        principal = request.principal or object()
        on_unclear = partial(self.record_question, server, of_somebody=request.principal is not None)
        asked: Json = {"method": request.method, "params": params, "meta": meta, "on_unclear": on_unclear, **options}
        asked["for_models"] = not request.apps
        if request.method in LISTED:  # a list says what a server offers, in any instance
            return await self._supervisor.request(server, principal=principal, **asked)
        spec = self._supervisor.spec(server)
        request.went_by = spec
        if spec.on_disconnect == "keep":
            asked["keep_task"] = lambda: request.gone()  # noqa: PLW0108  # another request may attend it by then
        if request.reached is not None and request.reached != self.reached(spec):
            raise CallError("the server of this task is reached in another way now", server=server, tool=None)
        instance: Instance
        if spec.instances == "session" or request.instance:
            instance = self._session_instance(spec, request)
            request.went_to = instance.name
        else:
            instance = self._lease(spec, principal)
        try:
            return await instance.request(principal, asked)
        except LeaseFailed:
            return await self._main_instance(server).request(principal, asked)

    @asynccontextmanager
    async def follow(self, server: str, request: ClientRequest) -> AsyncGenerator[Supervisor, None]:
        """The supervisor whose events of a server are for this client, for as long as the block lasts.

        Raises:
            NurseryError: As for `request`.
        """
        spec = self._supervisor.spec(server)
        if spec.instances != "session":
            yield self._supervisor
            return
        instance = self._session_instance(spec, request)
        with instance.use(instance.owner):
            yield await instance.ready()

    def has(self, server: str, name: str) -> bool:
        """True if the instance of this name is here, and takes calls."""
        return any(each.name == name and not each.is_ending for each in self._more.get(server, []))

    def reached(self, spec: ServerSpec) -> str:
        """The short digest of how a server is reached, to which alone the ids of its tasks belong. A server in memory
        has none: the first in its place has an empty text, and each that follows a random one."""
        if digest := short_digest(spec):
            return digest
        name, text = spec.name, ""
        if name in self._objects:
            known, text = self._objects[name]
            if known.transport == spec.transport:
                return text
            text = token_hex(16)
        status = status_of(self._supervisor, name)
        if name not in self._objects or (status is not None and self._supervisor.spec(name) is spec):
            self._objects[name] = spec, text
        return text

    async def notify(self, server: str, owner: Hashable, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a server a notification of a client: the client's own instance, where each has one.

        Raises:
            UnknownServer, ConfigError, SupervisorClosed: See `Supervisor.notify`.
        """
        if self._supervisor.spec(server).instances != "session":
            await self._supervisor.notify(server, method, params)
            return
        for each in self._more.get(server, []):
            if each.owner == owner and each.supervisor is not None and not each.is_ending:
                await each.supervisor.notify(server, method, params)

    # -- the choice of an instance --------------------------------------------------------------------------------

    def _session_instance(self, spec: ServerSpec, request: ClientRequest) -> FurtherInstance:
        """The instance of a client's session, or of a client without sessions. It is started if there is none."""
        owner = owner_of(request)
        if request.session is not None and request.session.ended:
            raise instance_ended(spec.name)
        there = self._more.get(spec.name, [])
        for each in there:
            wanted = each.name == request.instance if request.instance else each.owner == owner
            if wanted and not each.is_ending:
                return each
        if request.instance:
            raise instance_ended(spec.name)
        own, share, most = _instances_of(owner, there), _client_share(spec), spec.max_instances
        if len(own) >= share:
            raise InstancesTaken(server=spec.name, most=share, retry_in=_seconds_until_free(own), own=True)
        if len(there) >= most:
            raise InstancesTaken(server=spec.name, most=most, retry_in=_seconds_until_free(there))
        return self._start(spec, owner, SESSION_IDLE, request.session)

    def _lease(self, spec: ServerSpec, principal: Hashable) -> Instance:
        """The instance for a call of this principal: where calls are kept apart, one that works on no other principal's
        calls, if there is room for it; else the main one."""
        name = spec.name
        first = self._main_instance(name)
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
        has_room = len(there) < spec.max_instances and len(_instances_of(principal, there)) < _client_share(spec)
        if has_room and self._may_start(name):
            return self._start(spec, None, LEASE_IDLE)
        return first

    def _may_start(self, server: str) -> bool:
        """True if another instance may be started for a lease: the last failure is long enough ago."""
        return trio.current_time() >= self._again_at.get(server, 0)

    def _main_instance(self, server: str) -> Instance:
        first = self._first.get(server)
        if first is None:
            level = self._level(self._supervisor, server, None)
            first = self._first[server] = Instance(server, self._supervisor, level)
        return first

    def _level(self, supervisor: Supervisor, server: str, owner: Hashable) -> LogLevel:
        return LogLevel(supervisor, server, partial(self._audience.wanted_level, server, owner))

    # -- their lives ----------------------------------------------------------------------------------------------

    def _start(
        self, spec: ServerSpec, owner: Hashable, idle_after: float, session: ClientSession | None = None
    ) -> FurtherInstance:
        if spec.stop_idle_after is not None:
            idle_after = spec.stop_idle_after or math.inf
        callbacks = None if session is None else gateway_callbacks(session.capabilities)
        instance = FurtherInstance(spec.name, spec=spec, owner=owner, idle_after=idle_after, callbacks=callbacks)
        self._more.setdefault(spec.name, []).append(instance)
        self._nursery.start_soon(self._run, instance)
        return instance

    async def _run(self, instance: FurtherInstance) -> None:
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
                    async with run_alongside(partial(self._forward_notices, supervisor, owner)):
                        await self._follow_changes(events, level, owner)
        except (ConfigError, ServerDown, SupervisorClosed, UnknownServer) as error:
            instance.failure = error
            if owner is None:
                self._again_at[name] = trio.current_time() + AGAIN
                logger.warning("%s: another instance could not be started; its questions are refused", clean_name(name))
        finally:
            self._more[name].remove(instance)
            instance.opened.set()

    async def _forward_notices(self, supervisor: Supervisor, owner: Hashable) -> None:
        async with supervisor.notices() as notices:
            async for notice in notices:
                self._audience.publish_notice(notice, owner)

    async def _follow_changes(self, events: EventStream, level: LogLevel, owner: Hashable) -> None:
        """Publish the changes of an instance's lists. Its first lists, once it is connected, are no change."""
        listed_at = math.inf
        async for event in events:
            match event:
                case StateChanged(new=ServerState.CONNECTED):
                    listed_at = min(listed_at, event.at)
                    level.review(self._nursery)
                case ToolsChanged() | PromptsChanged() | ResourcesChanged() if event.at > listed_at:
                    self._audience.publish_change(event, owner)
                case _:
                    pass

    def levels(self, server: str, owner: Hashable = None) -> list[LogLevel]:
        """The log levels of a server's instances; with `owner`, of the main instance and of that owner's."""
        more = (each for each in self._more.get(server, []) if owner in (None, each.owner))
        return [each.level for each in (self._main_instance(server), *more) if each.level is not None]

    def end(self, of: Callable[[Hashable], bool]) -> None:
        """End the instances of these sessions and principals; None stands for all that are not authenticated."""
        for there in self._more.values():
            for instance in there:
                whose = instance.owner
                if whose is not None and of(None if whose is _ANYBODY else whose):
                    instance.life.cancel()

    def review(self, begun_again: Collection[str] = (), removed: Collection[str] = ()) -> None:
        """End the instances of servers that begin again, because they were stopped or configured anew, and of servers
        that were removed: others may have their names by now."""
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

"""One instance of a server: the principals whose calls it works on, its lifetime, and the level of its log messages."""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import CallError, CallTimeout, NurseryError, ServerError, SupervisorClosed
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import define, field

from ...callbacks import Callbacks
from ...calls.relayed import RelayedResult
from ...spec import ServerSpec
from ...supervisor import Supervisor
from ...tools.approval_rules import of_any_definition
from ..bridge import is_modern
from ..views.view import status_of


@define(eq=False)
class LogLevel:
    """The level of log messages of one instance of a server. It is set anew in each incarnation."""

    _supervisor: Supervisor
    _server: str
    _wanted: Callable[[bool], str | None]
    """The function that returns the least severe level that a client wants, None if no client has asked. Its argument
    says whether the server has logs."""
    _sent: tuple[int, str] | None = field(default=None, init=False)
    """The last incarnation whose level was set, and that level."""
    _turn: trio.StrictFIFOLock = field(factory=trio.StrictFIFOLock, init=False)
    _waits: bool = field(default=False, init=False)
    """True if a review waits for its turn; it will find the level that is wanted by then."""

    async def send(self) -> None:
        """Set the level, if the instance is connected and has a different one.

        Raises:
            NurseryError: The level could not be set, or was refused.
        """
        async with self._turn:
            await self._send()

    async def _send(self) -> None:
        due = self._due()
        if due is None:
            return
        try:
            await self._supervisor.request(
                self._server, "logging/setLevel", {"level": due[1]}, when_down="fail", resend="never"
            )
        except ServerError:
            self._sent = due
            raise
        self._sent = due

    def review(self, nursery: trio.Nursery) -> None:
        """Set the level, in a task of this nursery, if it differs. After a failure it is set at the next connection."""
        if not self._waits and self._due() is not None:
            self._waits = True
            nursery.start_soon(self._try)

    async def _try(self) -> None:
        with suppress(NurseryError):
            async with self._turn:
                self._waits = False
                await self._send()

    def _due(self) -> tuple[int, str] | None:
        """The incarnation that is to be sent a level, and the level."""
        status = status_of(self._supervisor, self._server)
        if status is None or status.state is not ServerState.CONNECTED or is_modern(status.protocol_version):
            return None
        try:
            hello = self._supervisor.hello(self._server) or {}
            level = self._wanted("logging" in (hello.get("capabilities") or {}))
        except NurseryError:  # it is just ending, or its server was removed
            return None
        due = None if level is None else (status.incarnation, level)
        return None if due == self._sent else due


MOST_GIVEN_UP: Final = 2
"""Principals with given-up calls that one instance records: with two, it serves no principal anyway."""


class LeaseFailed(Exception):
    """The error of an instance that was to be leased, and could not be started or is ending: the call goes to the main
    instance."""


@define(eq=False)
class Instance:
    """The main instance of a server, which is always there, and the principals whose calls it works on."""

    server: str
    supervisor: Supervisor | None = None
    level: LogLevel | None = None
    """The level of its log messages, once it is open."""
    users: Counter[Hashable] = field(factory=Counter[Hashable], init=False)
    given_up: dict[Hashable, int] = field(factory=dict[Hashable, int], init=False)
    """The principals whose cancelled calls it may still be working on, and the incarnation of those calls."""

    @property
    def is_ending(self) -> bool:
        """True if it takes no more calls."""
        return False

    def serves(self, principal: Hashable) -> bool:
        """True if it works on no calls of other principals."""
        return not {*self.users, *self.given_up} - {principal}

    @contextmanager
    def use(self, principal: Hashable) -> Generator[None, None, None]:
        """A block in which it works on a call."""
        self.users[principal] += 1
        self.update_deadline()
        try:
            yield
        finally:
            self.users[principal] -= 1
            if not self.users[principal]:
                del self.users[principal]
            self.update_deadline()

    def update_deadline(self) -> None:
        """Adapt its lifetime to the calls that it works on."""

    async def ready(self) -> Supervisor:
        """The supervisor, once it is open.

        Raises:
            LeaseFailed: The instance was to be leased, and could not be started, or is ending.
            NurseryError: The instance is a session's, and cannot be started.
        """
        assert self.supervisor is not None  # this one is always there
        return self.supervisor

    async def request(self, principal: Hashable, asked: Mapping[str, Any]) -> RelayedResult:
        """Make a request of a principal to the instance, with the other arguments of `Supervisor.request`.

        Raises:
            LeaseFailed, NurseryError: See `ready` and `Supervisor.request`.
        """
        with self.use(principal):
            supervisor = await self.ready()
            try:
                return await supervisor.request(self.server, principal=principal, **asked)
            except (trio.Cancelled, CallTimeout):
                self._record_given_up(principal)
                raise
            except SupervisorClosed:
                if self.is_ending:
                    raise instance_ended(self.server) from None
                raise

    def _record_given_up(self, principal: Hashable) -> None:
        self.forget_given_up()
        if len(self.given_up) < MOST_GIVEN_UP:
            self.given_up[principal] = self._incarnation

    def forget_given_up(self) -> None:
        """Forget calls that were given up in an earlier incarnation: the current one does not work on them."""
        current = self._incarnation
        self.given_up = {one: number for one, number in self.given_up.items() if number == current}

    @property
    def _incarnation(self) -> int:
        assert self.supervisor is not None  # a call was at it
        status = status_of(self.supervisor, self.server)
        return 0 if status is None else status.incarnation


@define(eq=False)
class FurtherInstance(Instance):
    """An instance of a session, or one that is leased."""

    spec: ServerSpec = field(kw_only=True)
    idle_after: float = field(kw_only=True)
    owner: Hashable = field(kw_only=True)
    """The permanent owner; None: it is leased."""
    callbacks: Callbacks | None = field(kw_only=True)
    """The callbacks for the questions that the client of its session can answer; None: for those that any client
    can."""
    name: str = field(factory=partial(secrets.token_hex, 8), init=False)
    """The name of the instance in the ids of its tasks."""
    life: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The scope that it runs in; its deadline is that of an idle instance."""
    opened: trio.Event = field(factory=trio.Event, init=False)
    failure: NurseryError | None = field(default=None, init=False)

    @override
    async def request(self, principal: Hashable, asked: Mapping[str, Any]) -> RelayedResult:
        # What was agreed to is what all clients are shown, by the main instance. This one may declare a tool otherwise.
        return await super().request(principal, {**asked, "agreed": of_any_definition(asked.get("agreed"))})

    @property
    def is_ending(self) -> bool:
        """True if it takes no more calls."""
        return self.life.cancel_called

    def update_deadline(self) -> None:
        """Adapt its lifetime to its calls. An unused leased instance that may still work on a cancelled call ends."""
        if self.users:
            self.life.deadline = math.inf
        elif self.given_up and self.owner is None:
            self.life.cancel()
        else:
            self.life.deadline = trio.current_time() + self.idle_after

    async def ready(self) -> Supervisor:
        """The supervisor of the instance, once it is open."""
        await self.opened.wait()
        if self.supervisor is not None and not self.is_ending and self.failure is None:
            return self.supervisor
        if self.owner is None:
            raise LeaseFailed
        raise self.failure or instance_ended(self.server)


def instance_ended(server: str) -> CallError:
    """The error of a call to a session's instance that has ended."""
    return CallError("this session's instance of it has ended", server=server, tool=None)

"""One instance of a server: whose calls are at it, those included that nobody waits for, and how long it lasts."""

import math
from collections import Counter
from collections.abc import Awaitable, Generator, Hashable
from contextlib import contextmanager
from typing import Final, TypeVar

import trio
from attrs import define, field

from mcp_nursery.actors.errors import CallError, CallTimeout, NurseryError, SupervisorClosed

from ..callbacks import Callbacks
from ..spec import ServerSpec
from ..supervisor import Supervisor
from .catalogues import status_of
from .levels import LogLevel

MOST_GIVEN_UP: Final = 2
"""Principals with calls given up at one instance: more say no more, it serves nobody."""

T = TypeVar("T")


@define(eq=False)
class Instance:
    """An instance of a server, and whose calls are at it. This one is always there."""

    server: str
    supervisor: Supervisor | None = None
    level: LogLevel | None = None
    """Once it is there."""
    users: Counter[Hashable] = field(factory=Counter[Hashable], init=False)
    given_up: dict[Hashable, int] = field(factory=dict[Hashable, int], init=False)
    """Whose calls it may still be working on, though nobody waits for them, and in which incarnation."""

    @property
    def is_ending(self) -> bool:
        """Whether it takes no more calls."""
        return False

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

    async def made(self, principal: Hashable, request: Awaitable[T]) -> T:
        """The result of a request to it."""
        try:
            return await request
        except (trio.Cancelled, CallTimeout):
            self._note_given_up(principal)
            raise
        except SupervisorClosed:
            if self.is_ending:
                raise ended(self.server) from None
            raise

    def _note_given_up(self, principal: Hashable) -> None:
        self.forget_given_up()
        if len(self.given_up) < MOST_GIVEN_UP:
            self.given_up[principal] = self._incarnation

    def forget_given_up(self) -> None:
        """Another incarnation knows nothing of calls that were given up."""
        current = self._incarnation
        self.given_up = {one: number for one, number in self.given_up.items() if number == current}

    @property
    def _incarnation(self) -> int:
        assert self.supervisor is not None  # a call was at it
        status = status_of(self.supervisor, self.server)
        return 0 if status is None else status.incarnation


@define(eq=False)
class FurtherInstance(Instance):
    """A further instance."""

    spec: ServerSpec = field(kw_only=True)
    idle_after: float = field(kw_only=True)
    owner: Hashable = field(kw_only=True)
    """Whose it is for good; None: it is leased."""
    callbacks: Callbacks | None = field(kw_only=True)
    """What it may ask: what the client of its session can be asked; None: what any client can."""
    life: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Ends it; the deadline is that of an idle one."""
    opened: trio.Event = field(factory=trio.Event, init=False)
    failure: NurseryError | None = field(default=None, init=False)

    @property
    def is_ending(self) -> bool:
        """See `Instance`."""
        return self.life.cancel_called

    def changed(self) -> None:
        """See `Instance`. One that may be working on somebody's call is no other's any more."""
        if self.users:
            self.life.deadline = math.inf
        elif self.given_up and self.owner is None:
            self.life.cancel()
        else:
            self.life.deadline = trio.current_time() + self.idle_after

    async def ready(self) -> Supervisor | None:
        """See `Instance`. None for a lease that could not be had.

        Raises:
            NurseryError: It is a session's, and cannot be started.
        """
        await self.opened.wait()
        if self.owner is None:
            return None if self.is_ending else self.supervisor
        if self.failure is not None:
            raise self.failure
        if self.supervisor is None or self.is_ending:
            raise ended(self.server)
        return self.supervisor


def ended(server: str) -> CallError:
    """A session's instance is there no more."""
    return CallError("this session's instance of it has ended", server=server, tool=None)

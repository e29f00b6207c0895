"""A host on the full screen: one task draws, the others follow the host, the keys and the signals."""

import signal
import time
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from typing import Final, TypeAlias

import trio

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside
from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.protocol import ToolSummary
from mcp_nursery.supervisor.events import Event, SnapshotEvent
from mcp_nursery.supervisor.orders import ORDERS, OrderHost
from mcp_nursery.supervisor.status import ServerStatus

from ..failures import message_of
from ..lives import ServerHistory, record_event
from ..output import safe_line
from ..statuses import is_step, line_of_event
from .screen import Action, Order, Pane, Screen, Shown
from .terminal import Terminal

REDRAW: Final = 0.25
"""Seconds between two reads of the servers' statuses: a countdown in tenths stays readable."""
_SHORTEST: Final = 0.03
"""Seconds between two drawings, however much happens."""
_SLOW_POLL: Final = 2.0
"""Seconds between two reads of a server's tools, and of the times of calls, which take longer to compute."""


@frozen
class OwnHost:
    """The supervisor of this process, with the methods of a `ControlClient`."""

    _supervisor: Supervisor

    async def status(self) -> Sequence[ServerStatus]:
        """Return the status of every server now."""
        return self._supervisor.status()

    async def medians(self) -> Mapping[str, float]:
        """Return the p50 of the calls, in seconds, for each server that has any."""
        seen = self._supervisor.statistics(by_tool=False).by_server.items()
        return {name: one.latency.p50 for name, one in seen if one.latency is not None}

    async def tools(self, server: str) -> Sequence[ToolSummary]:
        """Return a server's part of the catalogue now."""
        return [ToolSummary.of(tool) for tool in self._supervisor.tools if tool.server == server]

    def events(self) -> AbstractAsyncContextManager[AsyncIterable[Event]]:
        """Return the events, for a block."""
        return self._supervisor.events()

    @asynccontextmanager
    async def stderr(self, server: str, *, follow: bool) -> AsyncGenerator[AsyncIterable[str], None]:
        """Return what a server writes to standard error, for a block; it is always followed."""
        del follow
        async with self._supervisor.stderr(server) as lines:
            yield lines

    async def give_order(self, order: str, **given: object) -> object:
        """Carry out an order, and return its outcome: see `ORDERS`."""
        return await ORDERS[order](OrderHost(self._supervisor), given)


WatchedHost: TypeAlias = OwnHost | ControlClient
"""The supervisor here, or another process."""


@define(eq=False)
class Viewer:
    """The view of a host on the screen of a terminal. One task draws; the others change the screen and wake it."""

    host: WatchedHost
    terminal: Terminal
    screen: Screen
    lost: bool = field(default=False, init=False)
    """True if the terminal has gone."""
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _pane_changed: trio.Event = field(factory=trio.Event, init=False)
    """Set when the pane may have other content."""
    _signals: set[int] = field(factory=set[int], init=False)
    """The signals that the drawing task has to handle."""
    _running: set[Order] = field(factory=set[Order], init=False)
    _lives: dict[str, ServerHistory] = field(factory=dict[str, ServerHistory], init=False)

    async def look(self) -> None:
        """Show everything until a person quits, or the terminal has gone.

        Raises:
            NurseryError: The host no longer reports its servers.
        """
        self.screen.lives, self.screen.seen_since = self._lives, trio.current_time()
        self.screen.plain = self.terminal.is_plain
        with self._scope:
            async with open_bare_nursery() as nursery:
                for task in (self._draw, self._follow_events, self._follow_pane, self._follow_signals):
                    nursery.start_soon(task)
                nursery.start_soon(self._follow_keys, nursery)
                try:
                    await self._follow_status()
                finally:
                    nursery.cancel_scope.cancel()

    def add_line(self, line: str) -> None:
        """Add a line to the events, from any thread. The next read of the statuses draws it."""
        self.screen.add_event(f"{time.strftime('%H:%M:%S')} {safe_line(line)}")

    def _wake(self) -> None:
        self._changed.set()
        self._pane_changed.set()

    def _end_lost(self) -> None:
        self.lost = True
        self._scope.cancel()

    # -- the host -----------------------------------------------------------------------------------------------------

    async def _follow_status(self) -> None:
        for look in count():
            self.screen.statuses = await self.host.status()
            self.screen.now = trio.current_time()
            if look % round(_SLOW_POLL / REDRAW) == 0:
                self.screen.medians = await self.host.medians()
            self._wake()
            await trio.sleep(REDRAW)

    async def _follow_events(self) -> None:
        try:
            async with self.host.events() as events:
                async for event in events:
                    record_event(self._lives, event, trio.current_time())
                    if not isinstance(event, SnapshotEvent) and not is_step(event):
                        self.add_line(line_of_event(event))
                        self._wake()
        except NurseryError as error:
            self.add_line(f"no more events: {message_of(error)}")

    async def _follow_pane(self) -> None:
        while True:
            shown = self.screen.shown
            self.screen.clear()
            async with run_alongside(partial(self._fill, shown)):
                while self.screen.shown == shown:
                    self._pane_changed = trio.Event()
                    await self._pane_changed.wait()

    async def _fill(self, shown: Shown) -> None:
        try:
            if shown.server is None:
                return
            if shown.pane is Pane.TOOLS:
                await self._follow_tools(shown.server)
            else:
                await self._follow_stderr(shown.server)
        except NurseryError as error:
            self.screen.add_stderr(message_of(error))

    async def _follow_tools(self, server: str) -> None:
        while True:
            self.screen.set_tools(await self.host.tools(server))
            self._wake()
            await trio.sleep(_SLOW_POLL)

    async def _follow_stderr(self, server: str) -> None:
        async with self.host.stderr(server, follow=True) as lines:
            async for line in lines:
                self.screen.add_stderr(line)
                self._wake()

    # -- the person ---------------------------------------------------------------------------------------------------

    async def _follow_keys(self, nursery: trio.Nursery) -> None:
        try:
            while True:
                for key in await self.terminal.keys():
                    self._begin(self.screen.press(key), nursery)
                self._wake()
        except trio.BrokenResourceError:
            self._end_lost()

    def _begin(self, order: Order | None, nursery: trio.Nursery) -> None:
        if order is None or order in self._running:
            return
        if order.action is Action.QUIT:
            self._scope.cancel()
        else:
            self._running.add(order)
            nursery.start_soon(self._carry_out, order)

    async def _carry_out(self, order: Order) -> None:
        what = f"{order.action} {order.server}"
        self.screen.note = f"{what}: under way"
        try:
            await self.host.give_order(order.action, server=order.server)
            self.screen.note = f"{what}: done"
        except NurseryError as error:
            self.screen.note = f"{order.action}: {message_of(error)}"
        finally:
            self._running.discard(order)
        self._wake()

    # -- the terminal -------------------------------------------------------------------------------------------------

    async def _follow_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT) as signals:
            async for signum in signals:
                self._signals.add(signum)
                self._wake()

    async def _draw(self) -> None:
        try:
            while True:
                self._changed = trio.Event()
                await self._handle_signals()
                await self.terminal.draw(self.screen.render(*self.terminal.size))
                await trio.sleep(_SHORTEST)
                await self._changed.wait()
        except trio.BrokenResourceError:
            self._end_lost()

    async def _handle_signals(self) -> None:
        signals, self._signals = self._signals, set()
        if signal.SIGTSTP in signals:
            await self.terminal.suspend()
        elif signal.SIGCONT in signals:
            await self.terminal.enter()
        elif signals:
            self.terminal.forget()

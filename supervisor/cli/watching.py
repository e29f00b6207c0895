"""Servers while they run, for as long as somebody looks: a full screen that takes orders, or a line for each event."""

import io
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, redirect_stderr
from functools import partial
from itertools import count
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.control.protocol import ToolSummary, event_document
from mcp_nursery.supervisor.events import Event, SnapshotEvent, StateChanged
from mcp_nursery.supervisor.status import ServerStatus

from .event_lines import line_of_event
from .failures import message_of
from .output import StdoutClosed, safe_line, send_json_line, send_line
from .screen import Action, Order, Pane, Screen, Shown
from .terminal import Terminal, open_tty, taken

REDRAW: Final = 0.25
"""Seconds between two looks at the servers: a countdown in tenths stays readable."""
_SHORTEST: Final = 0.03
"""Seconds between two drawings, however much happens."""
_SELDOM: Final = 2.0
"""Seconds between two looks at a server's tools, and at how long calls take: it is longer to find out."""


class Host(Protocol):
    """A host that somebody watches and tells what to do: the supervisor here, or another process."""

    async def status(self) -> Sequence[ServerStatus]:
        """Where every server stands now."""
        ...

    async def medians(self) -> Mapping[str, float]:
        """The p50 of each server's calls, in seconds, of those that have any."""
        ...

    async def tools(self, server: str) -> Sequence[ToolSummary]:
        """A server's part of the catalogue now."""
        ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterable[Event]]:
        """What happens."""
        ...

    def stderr(self, server: str, *, follow: bool) -> AbstractAsyncContextManager[AsyncIterable[str]]:
        """What a server writes to standard error."""
        ...

    async def reconnect(self, server: str) -> None:
        """Start a server afresh now, and wait for the outcome."""
        ...

    async def stop(self, server: str) -> None:
        """End a server."""
        ...

    async def start(self, server: str) -> None:
        """Start a server that does not run."""
        ...


@frozen
class OwnHost:
    """The supervisor of this process."""

    _supervisor: Supervisor

    async def status(self) -> Sequence[ServerStatus]:
        """See `Host`."""
        return self._supervisor.status()

    async def medians(self) -> Mapping[str, float]:
        """See `Host`."""
        seen = self._supervisor.statistics(by_tool=False).by_server.items()
        return {name: one.latency.p50 for name, one in seen if one.latency is not None}

    async def tools(self, server: str) -> Sequence[ToolSummary]:
        """See `Host`."""
        return [ToolSummary.of(tool) for tool in self._supervisor.tools if tool.server == server]

    def events(self) -> AbstractAsyncContextManager[AsyncIterable[Event]]:
        """See `Host`."""
        return self._supervisor.events()

    @asynccontextmanager
    async def stderr(self, server: str, *, follow: bool) -> AsyncGenerator[AsyncIterable[str], None]:
        """See `Host`; it is always followed."""
        del follow
        async with self._supervisor.stderr(server) as lines:
            yield lines

    async def reconnect(self, server: str) -> None:
        """See `Host`."""
        await self._supervisor.reconnect(server)

    async def stop(self, server: str) -> None:
        """See `Host`."""
        await self._supervisor.stop_server(server)

    async def start(self, server: str) -> None:
        """See `Host`."""
        await self._supervisor.start_server(server)


async def watch(host: Host, title: str, *, as_json: bool) -> bool:
    """Show how the servers of a host do: on the full screen, where there is one, until a person quits; otherwise in
    lines, until nothing more happens. Whether a person quit."""
    tty = None if as_json else open_tty()
    if tty is None:
        async with host.events() as events:
            await print_events(events, as_json=as_json)
        return False
    async with taken(tty) as terminal:
        viewer = Viewer(host, terminal, Screen(title))
        with redirect_stderr(_Lines(viewer.tell)) if sys.stderr.isatty() else nullcontext():
            await viewer.look()
    if viewer.lost:
        raise StdoutClosed
    return True


class _Lines(io.TextIOBase):
    """What is printed while there is nowhere to print to, line by line: the log."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def write(self, text: str) -> int:
        for line in filter(str.strip, text.splitlines()):
            self._tell(line)
        return len(text)


@define(eq=False)
class Viewer:
    """A host on a screen on a terminal. One task draws; the others change what is on the screen, and say so."""

    host: Host
    terminal: Terminal
    screen: Screen
    lost: bool = field(default=False, init=False)
    """Whether the terminal has gone."""
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _turned: trio.Event = field(factory=trio.Event, init=False)
    """The pane is to show something else."""
    _signals: set[int] = field(factory=set[int], init=False)
    """Those that the drawing task has to deal with."""
    _under_way: set[Order] = field(factory=set[Order], init=False)

    async def look(self) -> None:
        """Show everything until a person quits, or the terminal has gone.

        Raises:
            NurseryError: The host says no more where its servers stand.
        """
        with self._scope:
            async with open_bare_nursery() as nursery:
                for task in (self._draw, self._follow_events, self._follow_pane, self._follow_signals):
                    nursery.start_soon(task)
                nursery.start_soon(self._follow_keys, nursery)
                try:
                    await self._follow_status()
                finally:
                    nursery.cancel_scope.cancel()

    def tell(self, line: str) -> None:
        """Show a line among the events. From any thread: the next look at the servers draws it."""
        self.screen.add_event(f"{time.strftime('%H:%M:%S')} {safe_line(line)}")

    def _touch(self) -> None:
        self._changed.set()
        self._turned.set()

    def _lose(self) -> None:
        self.lost = True
        self._scope.cancel()

    # -- what the host says -------------------------------------------------------------------------------------------

    async def _follow_status(self) -> None:
        for look in count():
            self.screen.statuses = await self.host.status()
            if look % round(_SELDOM / REDRAW) == 0:
                self.screen.medians = await self.host.medians()
            self._touch()
            await trio.sleep(REDRAW)

    async def _follow_events(self) -> None:
        try:
            async with self.host.events() as events:
                async for event in events:
                    if not isinstance(event, SnapshotEvent) and not _is_step(event):
                        self.tell(line_of_event(event))
                        self._touch()
        except NurseryError as error:
            self.tell(f"no more events: {message_of(error)}")

    async def _follow_pane(self) -> None:
        while True:
            shown = self.screen.shown
            self.screen.clear()
            async with run_alongside(partial(self._fill, shown)):
                while self.screen.shown == shown:
                    self._turned = trio.Event()
                    await self._turned.wait()

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
            self._touch()
            await trio.sleep(_SELDOM)

    async def _follow_stderr(self, server: str) -> None:
        async with self.host.stderr(server, follow=True) as lines:
            async for line in lines:
                self.screen.add_stderr(line)
                self._touch()

    # -- what the person says -----------------------------------------------------------------------------------------

    async def _follow_keys(self, nursery: trio.Nursery) -> None:
        try:
            while True:
                for key in await self.terminal.keys():
                    self._obey(self.screen.press(key), nursery)
                self._touch()
        except trio.BrokenResourceError:
            self._lose()

    def _obey(self, order: Order | None, nursery: trio.Nursery) -> None:
        if order is None or order in self._under_way:
            return
        if order.action is Action.QUIT:
            self._scope.cancel()
        else:
            self._under_way.add(order)
            nursery.start_soon(self._carry_out, order)

    async def _carry_out(self, order: Order) -> None:
        acts = {
            Action.RECONNECT: self.host.reconnect,
            Action.STOP: self.host.stop,
            Action.START: self.host.start,
        }
        what = f"{order.action} {order.server}"
        self.screen.note = f"{what}: under way"
        try:
            await acts[order.action](order.server)
            self.screen.note = f"{what}: done"
        except NurseryError as error:
            self.screen.note = f"{order.action}: {message_of(error)}"
        finally:
            self._under_way.discard(order)
        self._touch()

    # -- the terminal -------------------------------------------------------------------------------------------------

    async def _follow_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT) as signals:
            async for signum in signals:
                self._signals.add(signum)
                self._touch()

    async def _draw(self) -> None:
        try:
            while True:
                self._changed = trio.Event()
                await self._deal_with_signals()
                await self.terminal.draw(self.screen.render(*self.terminal.size))
                await trio.sleep(_SHORTEST)
                await self._changed.wait()
        except trio.BrokenResourceError:
            self._lose()

    async def _deal_with_signals(self) -> None:
        signals, self._signals = self._signals, set()
        if signal.SIGTSTP in signals:
            await self.terminal.suspend()
        elif signal.SIGCONT in signals:
            await self.terminal.enter()
        elif signals:
            self.terminal.forget()


def _is_step(event: Event) -> bool:
    """Whether it is another step of the same state."""
    return isinstance(event, StateChanged) and event.old is event.new


async def print_events(events: AsyncIterable[Event], *, as_json: bool) -> None:
    """Where each server stands, and then what happens, until nothing more does: a line each."""
    async for event in events:
        if as_json:
            await send_json_line({"time": time.time(), **event_document(event)})
        elif not _is_step(event):
            await send_line(f"{time.strftime('%H:%M:%S')} {safe_line(line_of_event(event))}")

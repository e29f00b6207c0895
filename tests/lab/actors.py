"""An actor that lives in a test, with a server that is scripted or does not open, and what it reported."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from mcp_nursery.actors.messages import Connected, Ended, Ending, ExitReason
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.server_actor import ServerActor
from mcp_nursery.supervisor.testing import ScriptedServer

from .sessions import Lab, connection
from .tool_requests import tool_request

TOLD = Loss("stopped")


@define
class Seen:
    """An actor, what it reported and when, and how its calls ended."""

    nursery: trio.Nursery
    actor: ServerActor = field(init=False)
    reports: list[tuple[float, Any]] = field(factory=list[tuple[float, Any]])
    outcomes: dict[object, tuple[float, object, object]] = field(factory=dict[object, tuple[float, object, object]])
    connected: trio.Event = field(factory=trio.Event)
    ending: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)

    def report(self, report: object) -> None:
        self.reports.append((trio.current_time(), report))
        for kind, event in ((Connected, self.connected), (Ending, self.ending), (Ended, self.ended)):
            if isinstance(report, kind):
                event.set()

    @property
    def story(self) -> list[tuple[float, type]]:
        return [(at, type(report)) for at, report in self.reports]

    @property
    def owner(self) -> Any:
        return next(report.owner for _, report in self.reports if isinstance(report, Connected))

    @property
    def reason(self) -> ExitReason:
        (reason,) = (report.reason for _, report in self.reports if isinstance(report, Ending))
        return reason

    def send(
        self, name: object, tool: str = "echo", arguments: bytes = b"{}", *, hand_over: bool = True
    ) -> trio.CancelScope:
        """A call by a caller of its own, whose outcome is kept under its name with the time and the delivery. Handed
        over as the router does, or left in the mailbox."""
        slot = ReplySlot()
        slot.route(1, self.owner.control)
        call = tool_request(server="x", tool=tool, arguments=arguments, meta={}, slot=slot)
        if not (hand_over and self.owner.mailbox.hand_over([call])):
            self.owner.mailbox.put_nowait(call)
        self.nursery.start_soon(self._wait, name, slot, scope := trio.CancelScope())
        return scope

    async def _wait(self, name: object, slot: ReplySlot, scope: trio.CancelScope) -> None:
        outcome: object = "gave up"
        with scope:
            outcome = await slot.wait(_no_progress)
        assert name not in self.outcomes
        self.outcomes[name] = (trio.current_time(), outcome, slot.delivery)


async def _no_progress(*_report: Any) -> None:
    raise AssertionError


SETTINGS: dict[str, Any] = {
    "incarnation": 3,
    "connect_timeout": 30,
    "era": None,
    "mailbox_size": 256,
    "max_in_flight": 256,
}


@asynccontextmanager
async def living(server: Any, **settings: Any) -> AsyncGenerator[Seen, None]:
    """An actor from its start until it has ended; it is stopped if the test does not do it."""
    connector = server.transport.connector(close_grace=1) if isinstance(server, ScriptedServer) else server
    async with trio.open_nursery() as nursery:
        seen = Seen(nursery)
        seen.actor = ServerActor(connector, report=seen.report, **{**SETTINGS, **settings})
        nursery.start_soon(seen.actor.run)
        yield seen
        seen.actor.stop()
        await seen.ended.wait()


async def ignore(_arguments: object) -> None:
    await trio.sleep_forever()


def sleeps(seconds: float) -> Callable[[object], Awaitable[str]]:
    async def tool(_arguments: object) -> str:
        await trio.sleep(seconds)
        return f"slept {seconds}"

    return tool


class Slow:
    """A connector whose transport takes its time to open, and to close after a failure to."""

    def __init__(self, opens_after: float = 0.0, closes_after: float = 0.0, fails: Exception | None = None) -> None:
        self.opens_after, self.closes_after, self.fails = opens_after, closes_after, fails
        self.server = ScriptedServer()

    @asynccontextmanager
    async def connect(self, host: Any) -> AsyncGenerator[Any, None]:
        try:
            await trio.sleep(self.opens_after)
            if self.fails is not None:
                raise self.fails
            async with self.server.transport.connector(close_grace=1).connect(host) as connection:
                yield connection
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.closes_after)


class Scripted:
    """A connector to a server that is told what to answer."""

    def __init__(self, **script: Any) -> None:
        self.script = script
        self.lab: Lab | None = None

    @asynccontextmanager
    async def connect(self, host: Any) -> AsyncGenerator[Any, None]:
        async with connection(host, **self.script) as (self.lab, opened):
            yield opened

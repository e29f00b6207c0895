"""An actor that lives in a test, with a server that is scripted or does not open, and what it reported."""

from contextlib import asynccontextmanager

import trio
from attrs import define, field

from mcp_nursery.actors.messages import Connected, Ended, Ending, ExitReason
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.server import ServerActor
from mcp_nursery.supervisor.testing import ScriptedServer

from ..tool_requests import tool_request
from .session.lab import connection

TOLD = Loss("stopped")


@define
class Seen:
    """An actor, what it reported and when, and how its calls ended."""

    actor: ServerActor
    nursery: trio.Nursery
    reports: list = field(factory=list)
    outcomes: dict = field(factory=dict)
    connected: trio.Event = field(factory=trio.Event)
    ending: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)

    def report(self, report):
        self.reports.append((trio.current_time(), report))
        for kind, event in ((Connected, self.connected), (Ending, self.ending), (Ended, self.ended)):
            if isinstance(report, kind):
                event.set()

    @property
    def story(self):
        return [(at, type(report)) for at, report in self.reports]

    @property
    def owner(self):
        return next(report.owner for _, report in self.reports if isinstance(report, Connected))

    @property
    def reason(self) -> ExitReason:
        (reason,) = (report.reason for _, report in self.reports if isinstance(report, Ending))
        return reason

    def send(self, name, tool="echo", arguments=b"{}"):
        """A call by a caller of its own, whose outcome is kept under its name with the time and the delivery."""
        slot = ReplySlot()
        slot.route(1, self.owner.control)
        call = tool_request(server="x", tool=tool, arguments=arguments, meta={}, slot=slot)
        self.owner.mailbox.put_nowait(call)
        self.nursery.start_soon(self._wait, name, slot, scope := trio.CancelScope())
        return scope

    async def _wait(self, name, slot, scope):
        outcome = "gave up"
        with scope:
            outcome = await slot.wait(_no_progress)
        assert name not in self.outcomes
        self.outcomes[name] = (trio.current_time(), outcome, slot.delivery)


async def _no_progress(*_report):
    raise AssertionError


SETTINGS = {"incarnation": 3, "connect_timeout": 30, "era": None, "mailbox_size": 256, "max_in_flight": 256}


@asynccontextmanager
async def living(server, **settings):
    """An actor from its start until it has ended; it is stopped if the test does not do it."""
    connector = server.transport.connector(close_grace=1) if isinstance(server, ScriptedServer) else server
    async with trio.open_nursery() as nursery:
        seen = Seen(None, nursery)
        seen.actor = ServerActor(connector, report=seen.report, **{**SETTINGS, **settings})
        nursery.start_soon(seen.actor.run)
        yield seen
        seen.actor.stop()
        await seen.ended.wait()


async def ignore(_arguments):
    await trio.sleep_forever()


def sleeps(seconds):
    async def tool(_arguments):
        await trio.sleep(seconds)
        return f"slept {seconds}"

    return tool


class Slow:
    """A connector whose transport takes its time to open, and to close after a failure to."""

    def __init__(self, opens_after=0.0, closes_after=0.0, fails=None):
        self.opens_after, self.closes_after, self.fails = opens_after, closes_after, fails
        self.server = ScriptedServer()

    @asynccontextmanager
    async def connect(self, host):
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

    def __init__(self, **script):
        self.script = script
        self.lab = None

    @asynccontextmanager
    async def connect(self, host):
        async with connection(host, **self.script) as (self.lab, opened):
            yield opened

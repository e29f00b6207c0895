"""What is traced and measured of servers: connects, restarts, failures, states, mailboxes."""

import threading
import time

import pytest
import trio
import trio.testing
from attrs import evolve
from opentelemetry.trace import StatusCode

from mcp_nursery.supervisor import (
    Call,
    HttpTransport,
    MemoryStore,
    RestartPolicy,
    ServerSpec,
    StdioTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.config.deferred import defer
from mcp_nursery.supervisor.config.discovery import EntryOrigin
from mcp_nursery.supervisor.decisions.state_machine import Snapshot
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.telemetry.attributes import about_server
from mcp_nursery.supervisor.telemetry.providers import telemetry_of
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.recording import Recording
from ...lab.specs import hang, spec


async def test_connects_and_restarts(autojump_clock):
    """One span for each incarnation, inside of one from the failure to the recovery."""
    recording = Recording()
    server = ScriptedServer(Life(dies_after=10), Life(refuses="no such luck"), Life())
    lab = spec(server, policy=RestartPolicy(delays=(2, 5)))
    with recording.tracer.start_as_current_span("host"):
        async with open_supervisor([lab], state=MemoryStore(), **recording.providers):
            await trio.sleep(60)
    host, restart = recording.span("host"), recording.span("restart lab")
    first, failed, second = recording.named("connect lab")
    assert first.parent.span_id == restart.parent.span_id == host.context.span_id
    assert failed.parent.span_id == second.parent.span_id == restart.context.span_id
    numbers = [
        [span.attributes[f"mcp_nursery.{name}"] for name in ("server", "incarnation", "attempt", "outcome")]
        for span in (first, failed, second, restart)
    ]
    assert numbers == [
        ["lab", 1, 1, "connected"],
        ["lab", 2, 2, "waiting"],
        ["lab", 3, 3, "connected"],
        ["lab", 3, 3, "connected"],
    ]
    assert [span.attributes.get("error.type") for span in (first, failed, restart)] == [None, "connect_failed", "lost"]
    assert failed.status.status_code is StatusCode.ERROR
    assert restart.status.status_code is StatusCode.UNSET
    assert recording.values("mcp_nursery.restarts", "mcp_nursery.server") == {("lab",): 2}
    assert recording.values("mcp_nursery.failures", "error.type") == {("lost",): 1, ("connect_failed",): 1}


async def test_a_server_that_gives_up(autojump_clock):
    recording = Recording()
    lab = spec(ScriptedServer(Life(refuses="no such luck")), policy=RestartPolicy(delays=(2,)))
    async with open_supervisor([lab], state=MemoryStore(), **recording.providers):
        await trio.sleep(60)
    assert [span.status.status_code for span in recording.named("connect lab")] == [StatusCode.ERROR] * 2
    restart = recording.span("restart lab")
    assert restart.status.status_code is StatusCode.ERROR
    assert restart.attributes["mcp_nursery.outcome"] == "failed"


async def test_what_a_person_ends_is_no_failure(autojump_clock):
    """Nor is a restart that somebody asked for one of the policy's."""
    recording = Recording()
    lab = spec(ScriptedServer(Life(), Life(connects_after=3)))
    async with open_supervisor([lab], state=MemoryStore(), **recording.providers) as supervisor:
        await supervisor.reconnect("lab")
        await supervisor.start_server("lab")
        await supervisor.stop_server("lab")
        await supervisor.start_server("lab")
        await trio.sleep(1)
    assert recording.points("mcp_nursery.failures") == recording.points("mcp_nursery.restarts") == []
    assert [span.status.status_code for span in recording.spans] == [StatusCode.UNSET] * 3


async def test_what_is_borrowed_is_told_once(autojump_clock):
    """By who keeps it: also its calls, whoever makes them."""
    recording = Recording()
    lab = spec(ScriptedServer(Life(dies_after=4), Life()), policy=RestartPolicy(delays=(2,)))
    async with open_supervisor([lab], state=MemoryStore(), **recording.providers) as parent:
        for _ in range(2):
            async with open_supervisor(borrow=parent) as child:
                await child.call_tool("echo", server="lab")
                await trio.sleep(10)
                assert recording.values("mcp_nursery.servers", "mcp_nursery.server") == {("lab",): 1}
    assert len(recording.named("connect lab")) == 2
    assert recording.values("mcp_nursery.restarts", "mcp_nursery.server") == {("lab",): 1}
    assert recording.values("mcp_nursery.failures", "error.type") == {("lost",): 1}


async def test_states_and_mailboxes(autojump_clock):
    """As an exporter sees them from its own thread; nothing is left of a server that was removed, or of a supervisor
    that is closed."""
    recording = Recording()
    seen = []

    def export():
        seen.append(recording.values("mcp_nursery.servers", "mcp_nursery.server", "mcp_nursery.state"))

    async def collect():
        thread = threading.Thread(target=export)
        thread.start()
        thread.join()  # in one step: no clock moves meanwhile
        await trio.lowlevel.checkpoint()
        return seen[-1]

    lab = spec(ScriptedServer(tools={"hang": hang}), max_in_flight=1)
    down = spec(ScriptedServer(Life(refuses="no")), "down", policy=RestartPolicy(delays=()))
    async with open_supervisor([lab, down], state=MemoryStore(), **recording.providers) as supervisor:
        assert await collect() == {("lab", "connected"): 1, ("down", "failed"): 1}
        async with supervisor.fan_out([Call("mcp_lab_hang")] * 5):
            await trio.testing.wait_all_tasks_blocked()
            assert recording.values("mcp_nursery.mailbox.size", "mcp_nursery.server") == {("lab",): 4}
        await supervisor.remove_server("down")
        assert await collect() == {("lab", "connected"): 1}
        async with open_supervisor([lab], state=MemoryStore(), **recording.providers):
            assert await collect() == {("lab", "connected"): 2}
        assert await collect() == {("lab", "connected"): 1}
    assert await collect() == {}
    assert not recording.points("mcp_nursery.mailbox.size")


def seconds_of_a_change(servers):
    """The least of three times, with so many others."""
    told = telemetry_of(None, Recording().providers["meter_provider"])
    snapshots = [Snapshot(ServerSpec(f"s{n}", StdioTransport("x")), ServerState.CONNECTING) for n in range(servers)]
    for snapshot in snapshots:
        told.record_step(None, snapshot)
    times = []
    for pid in range(3):
        changed = [(snapshot, evolve(snapshot, pid=pid)) for snapshot in snapshots[:100]]
        began = time.process_time()
        for old, new in changed:
            told.record_step(old, new)
        times.append(time.process_time() - began)
    told.close()
    return min(times)


def test_a_change_costs_the_same_however_many_servers_there_are():
    """A copy of all of them for each change takes forty times as long."""
    assert seconds_of_a_change(20_000) < 8 * seconds_of_a_change(100) + 0.001


def about(transport):
    return dict(about_server(Snapshot(ServerSpec("lab", transport), ServerState.CONNECTING)))


TCP = {"mcp_nursery.server": "lab", "network.transport": "tcp", "network.protocol.name": "http"}


def test_what_is_said_of_a_server():
    """Of a URL its host and port alone, and none that a variable stands for."""
    assert about(StdioTransport("x")) == {"mcp_nursery.server": "lab", "network.transport": "pipe"}
    url = "https://me:hunter2@example.com/hunter2?key=hunter2"
    assert about(HttpTransport(url)) == TCP | {"server.address": "example.com", "server.port": 443}
    assert about(HttpTransport("http://[::1]:80/")) == TCP | {"server.address": "::1", "server.port": 80}
    for url in ("https://${HOST}/mcp", "https://x:${PORT}/", "${URL}"):
        assert about(HttpTransport(url)) == TCP
    known = HttpTransport("https://example.com/mcp?key=${KEY}")
    later = defer(known, env={}, server="lab", origin=EntryOrigin("/f.json"))
    assert later is not known
    assert about(later) == TCP | {"server.address": "example.com", "server.port": 443}


def test_nobody_listens():
    """A process without an SDK has providers that do nothing: they are told nothing."""
    assert telemetry_of(None, None) is None


@pytest.mark.parametrize("kind", ["tracer_provider", "meter_provider"])
def test_somebody_listens(kind):
    nobody = {"tracer_provider": None, "meter_provider": None}
    assert telemetry_of(**nobody | {kind: Recording().providers[kind]}) is not None

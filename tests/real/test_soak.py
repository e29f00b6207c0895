"""Many random kills under load: every call has one outcome, and nothing is executed twice that must run once.

`MCP_NURSERY_SOAK=1000 pytest tests/real/test_soak.py -s` kills as often as it is told, and says what became
of the calls.
"""

import os
import signal
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager
from random import Random

import psutil
import pytest
import trio

from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ConnectionLost,
    HttpTransport,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import Delivery
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import LAB, eventually, is_alive, lab, next_state, status_of
from ..lab.remote import free_port

pytestmark = pytest.mark.night

KILLS = int(os.environ.get("MCP_NURSERY_SOAK", "100"))
SEED = int(os.environ.get("MCP_NURSERY_SOAK_SEED", "7"))
SERVERS = ("a", "b", "c")
CALLERS = 6
"""Tasks that call each server without a rest."""
TOOLS = ("commit", "look", "sleep")

POLICY = RestartPolicy(delays=[0.02] * 1000, stable_after=0)
"""Every connection counts, and a port may be closed for long: a thousand kills in a row must not end in `failed`."""


def all_tasks():
    """Every task of the run."""
    found, rest = set(), [trio.lowlevel.current_root_task()]
    while rest:
        task = rest.pop()
        found.add(task)
        rest.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return found


def children():
    """Those of this process; servers of other tests may be among them."""
    return set(psutil.Process().children())


def open_files():
    return len(os.listdir("/proc/self/fd"))


class Load:
    """Callers of all servers, and what became of each call."""

    def __init__(self, supervisor, chance):
        self.supervisor = supervisor
        self.chance = chance
        self.outcomes = {}
        """By token: the tool, and a result or an error."""
        self.longest = 0.0
        self.over = False

    async def call(self, server, caller):
        number = 0
        while not self.over:
            number += 1
            await self.one(server, f"{server}.{caller}.{number}")

    async def one(self, server, token):
        tool = self.chance.choices(TOOLS, (5, 5, 1))[0]
        takes = self.chance.choice([0, 0.01])  # a kill between the deed and the answer is what this is about
        arguments = {"seconds": 0.05, "label": token} if tool == "sleep" else {"token": token, "takes": takes}
        timeout = self.chance.choice([None, None, 10, 0.02])
        began = time.monotonic()
        try:
            outcome = await self.supervisor.call_tool(tool, arguments, server=server, timeout=timeout, when_down="wait")
        except NurseryError as error:
            outcome = error
        self.note(token, tool, outcome, time.monotonic() - began)

    async def fan_out(self):
        """A bulk across all servers, now and then."""
        number = 0
        while not self.over:
            number += 1
            tokens = [f"{server}.bulk.{number}" for server in SERVERS]
            calls = [Call("commit", {"token": token}, server=token[0], when_down="wait") for token in tokens]
            began = time.monotonic()
            for token, outcome in zip(tokens, await self.supervisor.gather(calls), strict=True):
                self.note(token, "commit", outcome, time.monotonic() - began)
            await trio.sleep(0.01)

    def note(self, token, tool, outcome, took):
        assert token not in self.outcomes, "a call with two outcomes"
        self.outcomes[token] = tool, outcome
        self.longest = max(self.longest, took)


class OverStdio:
    """Processes of the supervisor's own, which starts them again."""

    def __init__(self, journal):
        self.specs = [lab(server, journal=journal, policy=POLICY, breaker=None) for server in SERVERS]
        self.pids = set()

    @asynccontextmanager
    async def kept(self):
        yield

    def check_files(self, before):
        assert open_files() == before

    async def kill(self, supervisor, server, times, chance):
        """Kill a server at random moments of its life, its start included."""
        async with supervisor.events() as events:
            for _ in range(times):
                await trio.sleep(chance.random() * 0.03)
                status = status_of(supervisor, server)
                if status.pid is not None and chance.random() < 0.3:
                    victim = status.pid  # connected, or on its way there
                else:
                    victim = (await supervisor.wait_connected(server)).pid
                    await trio.sleep(chance.random() * 0.02)
                self.pids.add(victim)
                os.kill(victim, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                await next_state(events, ServerState.WAITING, server)


class OverHttp:
    """Processes on ports of their own, each with somebody who starts it again on the same port."""

    def __init__(self, journal):
        self.journal = journal
        self.ports = {server: free_port() for server in SERVERS}
        self.specs = [
            ServerSpec(server, HttpTransport(f"http://127.0.0.1:{port}/mcp"), policy=POLICY, breaker=None)
            for server, port in self.ports.items()
        ]
        self.running = {}
        self.pids = set()

    @asynccontextmanager
    async def kept(self):
        async with trio.open_nursery() as nursery:
            for server in SERVERS:
                await nursery.start(self.keep, server)
            yield
            nursery.cancel_scope.cancel()

    async def keep(self, server, *, task_status):
        command = [sys.executable, "-I", "-S", LAB, f"port={self.ports[server]}", f"journal={self.journal.path}"]
        while True:
            self.running[server] = await trio.lowlevel.open_process([str(part) for part in command])
            self.pids.add(self.running[server].pid)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            try:
                await self.running[server].wait()
            finally:
                with trio.CancelScope(shield=True):
                    self.running[server].kill()
                    await self.running[server].wait()

    def check_files(self, before):
        """How many connections are kept for later varies; they are all gone at the end."""

    async def kill(self, supervisor, server, times, chance):
        """Kill a server at random moments, its start and the supervisor's way back to it included."""
        for _ in range(times):
            await trio.sleep(chance.random() * 0.03)
            if chance.random() < 0.7:
                await supervisor.wait_connected(server)
                await trio.sleep(chance.random() * 0.1)
            victim = self.running[server]
            victim.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            await eventually(lambda victim=victim: self.running[server] is not victim)


@pytest.mark.parametrize("seed", [SEED])
@pytest.mark.parametrize("transport", [OverStdio, OverHttp])
async def test_random_kills_under_load(journal, transport, seed):
    """Q15, R2, R3, Q2, Q14, Q20: the ledger against the outcomes, call by call; no task, file or process is left."""
    chance, servers = Random(seed), transport(journal)
    others = children()
    tasks, held, began = all_tasks(), open_files(), time.monotonic()
    with trio.fail_after(60 + KILLS / 2):
        async with servers.kept(), open_supervisor(servers.specs) as supervisor:
            for server in SERVERS:
                await supervisor.wait_connected(server)
            files = open_files()
            load = Load(supervisor, chance)
            async with trio.open_nursery() as nursery:
                for server in SERVERS:
                    for caller in range(CALLERS):
                        nursery.start_soon(load.call, server, caller)
                nursery.start_soon(load.fan_out)
                async with trio.open_nursery() as killers:
                    for number, server in enumerate(SERVERS):
                        share = (KILLS + number) // len(SERVERS)
                        killers.start_soon(servers.kill, supervisor, server, share, chance)
                load.over = True
            for server in SERVERS:
                await supervisor.wait_connected(server)
            servers.check_files(files)
            assert len(children() - others) == len(SERVERS)
            counts = supervisor.statistics().calls
            assert (counts.in_flight, counts.done + counts.failed) == (0, len(load.outcomes))
    assert all_tasks() == tasks
    assert open_files() <= held
    assert children() <= others
    assert not [pid for pid in servers.pids if is_alive(pid)]
    story = judge(load, journal)
    story |= {"kills": KILLS, "starts": journal.count("start"), "seconds": round(time.monotonic() - began, 1)}
    print(story | {"longest call": round(load.longest, 2)})  # noqa: T201 - for who asks for it with -s


def judge(load, journal):
    """Every outcome against what the servers wrote down; how many there were of each kind."""
    committed, looked = Counter(journal.details("commit")), Counter(journal.details("look"))
    assert set(committed) | set(looked) <= set(load.outcomes)
    for token, (tool, outcome) in load.outcomes.items():
        told, times = type(outcome), (committed if tool == "commit" else looked)[token]
        assert told in (CallTimeout, ConnectionLost) or not isinstance(outcome, NurseryError), outcome
        if tool == "sleep":
            continue
        most = 2 if tool == "look" else 1
        least = 0 if isinstance(outcome, NurseryError) else 1
        if getattr(outcome, "delivery", None) is Delivery.NOT_SENT:
            most = 0
        assert least <= times <= most, (token, tool, outcome, times)
    kinds = Counter(type(outcome).__name__ for _, outcome in load.outcomes.values())
    assert kinds["ConnectionLost"] > 0
    assert kinds["ToolResult"] > 0
    twice = sum(times == 2 for times in looked.values())
    lost = [token for token, (_, outcome) in load.outcomes.items() if isinstance(outcome, ConnectionLost)]
    done = sum(committed[token] for token in lost)
    return {"calls": len(load.outcomes), **kinds, "lost but done": done, "reads sent twice": twice}

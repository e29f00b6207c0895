"""Many random kills under load: every call has one outcome, and nothing is executed twice that must run once.

`MCP_NURSERY_SOAK=1000 pytest tests/real/test_soak.py -s` kills as often as it is told, and prints what happened.
"""

import os
import signal
import time
from collections import Counter
from random import Random

import psutil
import pytest
import trio

from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ConnectionLost,
    Delivery,
    NurseryError,
    RestartPolicy,
    ServerState,
    open_supervisor,
)

from .harness import is_alive, lab, next_state, status_of

KILLS = int(os.environ.get("MCP_NURSERY_SOAK", "100"))
SEED = int(os.environ.get("MCP_NURSERY_SOAK_SEED", "7"))
SERVERS = ("a", "b", "c")
CALLERS = 6
"""Tasks that call each server without a rest."""
TOOLS = ("commit", "look", "sleep")

POLICY = RestartPolicy(delays=[0.02, 0.02, 0.02], stable_after=0)
"""Every connection counts: a thousand kills in a row must not end in `failed`."""


def all_tasks():
    """Every task of the run."""
    found, rest = set(), [trio.lowlevel.current_root_task()]
    while rest:
        task = rest.pop()
        found.add(task)
        rest.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return found


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


async def kill(supervisor, server, times, chance, pids):
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
            pids.add(victim)
            os.kill(victim, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            await next_state(events, ServerState.WAITING, server)


@pytest.mark.parametrize("seed", [SEED])
async def test_random_kills_under_load(journal, seed):
    """Q15, R2, R3, Q2, Q14: the ledger against the outcomes, call by call; no task, file or process is left."""
    chance, pids = Random(seed), set()
    specs = [lab(server, journal=journal, policy=POLICY) for server in SERVERS]
    tasks, began = all_tasks(), time.monotonic()
    with trio.fail_after(60 + KILLS / 2):
        async with open_supervisor(specs) as supervisor:
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
                        killers.start_soon(kill, supervisor, server, share, chance, pids)
                load.over = True
            for server in SERVERS:
                await supervisor.wait_connected(server)
            assert open_files() == files
            assert len(psutil.Process().children()) == len(SERVERS)
            counts = supervisor.statistics().calls
            assert (counts.in_flight, counts.done + counts.failed) == (0, len(load.outcomes))
    assert all_tasks() == tasks
    assert psutil.Process().children() == []
    assert not [pid for pid in pids if is_alive(pid)]
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

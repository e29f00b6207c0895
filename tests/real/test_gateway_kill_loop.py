"""Q33, Q34: servers that are killed all the time, and clients of every kind in front of them: every request gets one
answer, no session ends, no call is made twice, and nothing is left."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from random import Random

import psutil
import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import RestartPolicy

from ..lab.gateways import PROGRAM, served
from ..lab.processes import LAB, Journal, eventually, lab
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, opened, request, stdio_client

EVERY = 0.3
"""Seconds between two kills."""
SERVERS = ("a", "b", "c")
POLICY = RestartPolicy(delays=[0.05] * 10_000)
WORDS = ("The tool may have acted", "It restarts in", "Wait a little and call again")
"""One of these says whether and when to call again."""


class Load:
    """Clients that call without a rest, and what became of it."""

    def __init__(self, seed, tool):
        self.chance = Random(seed)
        self.tool = tool
        self.over = False
        self.committed, self.failed, self.numbers = [], Counter(), Counter()

    async def use(self, client, version, name):
        """Call until it is over, and then until each server answers again: in the same session."""
        while not self.over:
            await self.call(client, version, name, self.chance.choice(SERVERS), self.chance.choice([0, 0.05, 0.2]))
        for server in SERVERS:
            with trio.fail_after(30):
                while not await self.call(client, version, name, server, 0):  # noqa: ASYNC110 - no event of ours
                    await trio.sleep(0.1)

    async def call(self, client, version, name, server, takes):
        self.numbers[name] += 1
        number, token = self.numbers[name] + 1, f"{name}-{self.numbers[name]}"
        arguments = {"token": token, "takes": takes}
        frame = request(version, number, "tools/call", name=self.tool(server), arguments=arguments)
        with trio.fail_after(30):
            answer = answer_in(await client.ask(frame), number)
        result = answer["result"]  # an error of the protocol would not reach the model
        text = result["content"][0]["text"]
        if not result.get("isError"):
            assert text == "committed"
            self.committed.append(token)
            return True
        assert any(word in text for word in WORDS), text
        self.failed[text.split("\n")[0]] += 1
        return False


async def kill(load, seconds, victims):
    """Kill one after another, for so long, and on until it were half as many as a quick machine has time for."""
    kills, until = 0, trio.current_time() + seconds
    while trio.current_time() < until or kills < seconds / EVERY / 2:
        await trio.sleep(EVERY)
        living = victims()
        if living:
            os.kill(load.chance.choice(living).pid, signal.SIGKILL)
            kills += 1


def labs(*parents):
    """The servers that run now."""
    found = [child for parent in parents for child in psutil.Process(parent).children(recursive=True)]
    return [each for each in found if is_lab(each)]


def is_lab(process):
    try:
        return str(LAB) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def tasks():
    return trio.lowlevel.current_statistics().tasks_living


@pytest.mark.parametrize(
    ("seconds", "clients"),
    [pytest.param(4, 6, marks=pytest.mark.slow), pytest.param(60, 20, marks=pytest.mark.night)],
)
@pytest.mark.timeout(240)
async def test_every_request_is_answered_once_while_servers_are_killed(tmp_path, seconds, clients):
    journals = [Journal(tmp_path / name) for name in SERVERS]
    specs = [lab(name, journal=journal, policy=POLICY) for name, journal in zip(SERVERS, journals, strict=True)]
    load = Load(7, "{}_commit".format)
    async with served(specs) as (gateway, url):
        async with http_client(url, NEW) as client:  # so that all is there that is there for all clients
            await load.call(client, NEW, "first", "a", 0)
        await trio.testing.wait_all_tasks_blocked(0.1)
        before, files = tasks(), len(os.listdir("/proc/self/fd"))
        async with trio.open_nursery() as nursery:

            async def use_http(version, name):
                async with http_client(url, version) as client:
                    await load.use(await opened(client, version), version, name)
                    if version == OLD:
                        await client.end()

            for index in range(clients):
                nursery.start_soon(use_http, OLD if index % 2 else NEW, f"client{index}")
            await kill(load, seconds, lambda: labs(os.getpid()))
            load.over = True
        assert not gateway.news._sessions
        # Hypercorn closes connections when it gets to it.
        await eventually(lambda: tasks() <= before and len(os.listdir("/proc/self/fd")) <= files)
    await eventually(lambda: not labs(os.getpid()))
    noted = Counter(token for journal in journals for token in journal.details("commit"))
    assert set(noted.values()) == {1}
    assert set(load.committed) <= set(noted)
    assert len(load.committed) == len(set(load.committed)) > seconds
    assert load.failed


@pytest.mark.slow
async def test_a_client_on_standard_streams_keeps_its_session_while_servers_are_killed(tmp_path):
    journals = {name: Journal(tmp_path / name) for name in SERVERS}
    config = tmp_path / "servers.json"
    lab_args = ["-I", "-S", str(LAB)]
    entries = {
        name: {
            "command": sys.executable,
            "args": [*lab_args, f"journal={each.path}"],
            "restartDelays": list(POLICY.delays[:100]),
        }
        for name, each in journals.items()
    }
    config.write_text(json.dumps({"mcpServers": entries}))
    load = Load(8, "{}_commit".format)
    async with stdio_client([PROGRAM, "serve", "--config", str(config)], stderr=subprocess.PIPE) as client:
        await opened(client, OLD)
        await eventually(lambda: len(labs(client.pid)) == len(SERVERS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.use, client, OLD, "stdio")
            with trio.move_on_after(3):
                while True:
                    await trio.sleep(EVERY)
                    for victim in labs(client.pid)[:1]:
                        victim.kill()
            load.over = True
        numbers = Counter(message["id"] for message in map(json.loads, client.heard) if "id" in message)
        left = [psutil.Process(client.pid), *labs(client.pid)]
    assert set(numbers.values()) == {1}
    assert len(numbers) == load.numbers["stdio"] + 1
    await eventually(lambda: not any(each.is_running() for each in left))
    noted = Counter(token for journal in journals.values() for token in journal.details("commit"))
    assert set(noted.values()) == {1}
    assert set(load.committed) <= set(noted)

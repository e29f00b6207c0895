"""W1: the first list of a host that lists once: real servers that start late, both fronts, both eras."""

import json
import os
import stat
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from ..lab.gateways import PROGRAM, served_over_http
from ..lab.processes import LAB
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, opened, request, stdio_client

pytestmark = pytest.mark.slow

CHANGED = "notifications/tools/list_changed"


class Late:
    """A server that starts when it is let go."""

    def __init__(self, folder, name):
        self._door, self.command = folder / f"{name}.door", folder / name
        os.mkfifo(self._door)
        self.command.write_text(f'#!/bin/sh\nread _ < "{self._door}"\nexec "{sys.executable}" -I -S "{LAB}"\n')
        self.command.chmod(stat.S_IRWXU)

    async def let_go(self):
        await trio.to_thread.run_sync(self._door.write_text, "go\n", abandon_on_cancel=True)


@pytest.fixture
def late(tmp_path):
    return [Late(tmp_path, name) for name in ("one", "two")]


@pytest.fixture
def config(tmp_path, late):
    file = tmp_path / "servers.json"
    file.write_text(
        json.dumps({"mcpServers": {server.command.name: {"command": str(server.command)} for server in late}})
    )
    return ["--config", str(file)]


@asynccontextmanager
async def client_of(front, version, args, path=""):
    with trio.fail_after(60):
        if front == "stdio":
            async with stdio_client([PROGRAM, "serve", *args]) as client:
                yield client
        else:
            async with served_over_http(*args) as (_, url), http_client(url + path, version) as client:
                yield client


async def listed(client, version):
    said = await client.ask(request(version, 9, "tools/list"))
    return {tool["name"] for tool in answer_in(said[-1:], 9)["result"]["tools"]}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_first_list_has_what_is_still_being_started(late, config, front, version):
    async with client_of(front, version, config) as client, trio.open_nursery() as nursery:
        await opened(client, version)
        for server in late:
            nursery.start_soon(server.let_go)
        names = await listed(client, version)
        assert names >= {"one_echo", "two_echo"}
        assert await listed(client, version) == names


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_at_the_address_of_one_server_that_one_is_waited_for(late, config, version):
    async with client_of("http", version, config, "/one") as client, trio.open_nursery() as nursery:
        nursery.start_soon(late[0].let_go)
        await opened(client, version)
        assert "echo" in await listed(client, version)


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_in_front_of_one_command_it_is_waited_for(late, version):
    async with client_of("stdio", version, ["--", str(late[0].command)]) as client, trio.open_nursery() as nursery:
        nursery.start_soon(late[0].let_go)
        await opened(client, version)
        assert "echo" in await listed(client, version)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_what_comes_after_the_gate_is_told(late, config, front, version):
    async with client_of(front, version, [*config, "--gate", "0.2"]) as client, trio.open_nursery() as nursery:
        heard, begun = [], trio.Event()

        async def hear(frame):
            heard.append(json.loads(frame).get("method"))
            begun.set()
            if CHANGED in heard:
                nursery.cancel_scope.cancel()

        async def news():
            if version == NEW:
                wanted = {"toolsListChanged": True}
                await client.ask(request(NEW, 8, "subscriptions/listen", notifications=wanted), hear)
                return
            if front == "http":
                await nursery.start(client.listen)
            begun.set()
            await client.until(lambda message: message.get("method") == CHANGED)
            nursery.cancel_scope.cancel()

        await opened(client, version)
        nursery.start_soon(news)
        await begun.wait()
        assert await listed(client, version) == set()
        await late[0].let_go()
        await trio.sleep_forever()
    assert nursery.cancel_scope.cancelled_caught


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_with_lazy_a_server_whose_tools_are_known_starts_when_it_is_called(tmp_path, version):
    """The first gateway has to learn what there is; the next offers that, and has no process until a call comes."""
    starts, command = tmp_path / "starts", tmp_path / "lab"
    command.write_text(f'#!/bin/sh\necho start >> "{starts}"\nexec "{sys.executable}" -I -S "{LAB}"\n')
    command.chmod(stat.S_IRWXU)
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"lab": {"command": str(command)}}}))
    for run in (1, 2):
        async with client_of("stdio", version, ["--config", str(file), "--lazy"]) as client:
            await opened(client, version)
            assert "lab_echo" in await listed(client, version)
            assert starts.read_text() == "start\n"
            if run == 2:
                call = request(version, 3, "tools/call", name="lab_echo", arguments={"text": "t"})
                assert "result" in answer_in((await client.ask(call))[-1:], 3)
                assert starts.read_text() == "start\n" * 2


@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_session_is_told_of_nothing_that_its_first_list_has(late, config, front, start):
    """Servers connect once the first list is asked for: the first change that the session is told of is a later one."""
    if start == "warm":
        async with client_of(front, OLD, config) as client, trio.open_nursery() as nursery:
            await opened(client, OLD)
            for server in late:
                nursery.start_soon(server.let_go)
            await listed(client, OLD)
    async with client_of(front, OLD, config) as client, trio.open_nursery() as nursery:
        await opened(client, OLD)
        first = set()

        async def list_first():
            first.update(await listed(client, OLD))
            await client.ask(request(OLD, 7, "tools/call", name="one_grow", arguments={"names": ["more"]}))

        nursery.start_soon(list_first)
        if front == "http":
            await nursery.start(client.listen)
        for server in late:
            nursery.start_soon(server.let_go)
        await client.until(lambda message: message.get("method") == CHANGED)
        assert await listed(client, OLD) - first == {"one_more"}
        nursery.cancel_scope.cancel()

"""Servers that change, and the clients in front of them."""

import json
import stat
import sys

import pytest
import trio

from mcp_nursery.supervisor import ServerSpec, StdioTransport

from ..lab.gateways import PROGRAM, served
from ..lab.processes import AT_ONCE, LAB, eventually, lab
from ..lab.raw_clients import NEW, OLD, http_client, opened, request, stdio_client

pytestmark = pytest.mark.slow

CHANGED = "notifications/tools/list_changed"


def changes(frames):
    return [json.loads(frame)["method"] for frame in frames if "list_changed" in frame]


async def names(client, version):
    [said] = [frame for frame in await client.ask(request(version, 99, "tools/list")) if '"tools"' in frame]
    return {tool["name"] for tool in json.loads(said)["result"]["tools"]}


async def test_every_kind_of_client_is_told_of_a_burst_once(tmp_path):
    heard, grown = [], [f"tool{number}" for number in range(20)]
    async with (
        served([lab("one")]) as (_, url),
        http_client(f"{url}/one", OLD) as one,
        http_client(url, OLD) as every,
        http_client(url, NEW) as listener,
        trio.open_nursery() as nursery,
    ):
        for client in (one, every):
            await opened(client, OLD)
            await nursery.start(client.listen)
        begun = trio.Event()

        async def hear(frame):
            begun.set()
            heard.append(frame)

        wanted = {"toolsListChanged": True}
        nursery.start_soon(listener.ask, request(NEW, 8, "subscriptions/listen", notifications=wanted), hear)
        await begun.wait()
        for round_ in range(2):  # what comes twice of the first would be there before the second
            burst = [f"{name}_{round_}" for name in grown]
            await one.ask(request(OLD, 9, "tools/call", name="grow", arguments={"names": burst}))
            told = [round_ + 1] * 3
            await eventually(
                lambda told=told: [len(changes(by)) for by in (one.unasked, every.unasked, heard)] == told, within=10
            )
            assert await names(one, OLD) >= set(burst)
            assert await names(every, OLD) >= {f"one_{name}" for name in burst}
        assert set(changes([*heard, *one.unasked, *every.unasked])) == {CHANGED}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_session_goes_on_when_its_server_is_upgraded_and_is_told(tmp_path, front):
    program = tmp_path / "server"

    def write(flags):
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{LAB}" {flags}\n')
        program.chmod(stat.S_IRWXU)

    write("")
    if front == "stdio":
        async with stdio_client([PROGRAM, "serve", "--", str(program)]) as client:
            await opened(client, OLD)
            assert "newer" not in await names(client, OLD)
            write("more=newer")
            await client.ask(request(OLD, 9, "tools/call", name="crash", arguments={}))
            with trio.fail_after(20):
                await client.until(lambda message: message.get("method") == CHANGED)
            assert "newer" in await names(client, OLD)
    else:
        spec = ServerSpec("one", StdioTransport(str(program), []), policy=AT_ONCE)
        async with served([spec]) as (_, url), http_client(url, OLD) as client, trio.open_nursery() as nursery:
            await opened(client, OLD)
            await nursery.start(client.listen)
            write("more=newer")
            await client.ask(request(OLD, 9, "tools/call", name="one_crash", arguments={}))
            with trio.fail_after(20):
                await client.until(lambda message: message.get("method") == CHANGED)
            assert "one_newer" in await names(client, OLD)
            nursery.cancel_scope.cancel()

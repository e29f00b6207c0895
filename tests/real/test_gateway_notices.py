"""What servers say unasked reaches the clients that it is for, and none other."""

import json
import sys

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import ServerSpec, StdioTransport
from mcp_nursery.supervisor.gateway import Principal

from ..lab import PROGRAMS
from ..lab.gateways import PROGRAM, served
from ..lab.raw_clients import NEW, OLD, http_client, opened, request, stdio_client

pytestmark = pytest.mark.slow

DONE = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}'
TICK = '{"jsonrpc":"2.0","method":"notifications/com.example/tick","params":{"n":9007199254740993}}'
TOOL = {"name": "say", "inputSchema": {"type": "object"}}


def log(level, data):
    params = {"level": level, "data": data}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params})


def saying(tmp_path):
    """The command of a server that says something after each of its answers."""
    said = [DONE, *(log("info", number) for number in range(20)), log("error", "bad"), TICK, log("error", "last")]
    script = {"pages": [[TOOL]], "calls": {"say": said}}
    script["answers"] = {"logging/setLevel": ['{"jsonrpc":"2.0","id":$ID,"result":{}}']}
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    return [sys.executable, str(PROGRAMS / "stdio_scripted.py"), OLD, str(path), str(tmp_path / "log")]


def is_last(message):
    return message.get("params", {}).get("data") == "last"


def said_in(frames):
    """What was said unasked: data of logs, and methods of the rest."""
    messages = [message for message in map(json.loads, frames) if "method" in message]
    return [message["params"].get("data", message["method"]) for message in messages if "params" in message]


EVERYTHING = [*range(20), "bad", "notifications/com.example/tick", "last"]
SEVERE = ["bad", "notifications/com.example/tick", "last"]


async def test_the_client_on_standard_streams_hears_all_in_order(tmp_path):
    async with stdio_client([PROGRAM, "serve", "--", *saying(tmp_path)]) as client:
        await opened(client, OLD)
        await client.ask(request(OLD, 5, "tools/call", name="say", arguments={}))
        with trio.fail_after(10):
            await client.until(is_last)
        assert said_in(client.heard) == EVERYTHING
        assert TICK in client.heard


async def test_each_session_hears_what_it_wants_and_may(tmp_path):
    command = saying(tmp_path)
    spec = ServerSpec("one", StdioTransport(command[0], command[1:]))
    async with (
        served([spec]) as (_, url),
        http_client(f"{url}/one", OLD) as all_of_it,
        http_client(f"{url}/one", OLD) as severe,
        http_client(url, OLD) as everybody,
        http_client(f"{url}/one", NEW) as caller,
        trio.open_nursery() as nursery,
    ):
        for client in (all_of_it, severe, everybody):
            await opened(client, OLD)
            await nursery.start(client.listen)
        await severe.ask(request(OLD, 5, "logging/setLevel", level="error"))
        await caller.ask(request(NEW, 5, "tools/call", name="say", arguments={}))
        with trio.fail_after(10):
            for client in (all_of_it, severe, everybody):
                await client.until(is_last)
        assert said_in(all_of_it.unasked) == EVERYTHING
        assert said_in(severe.unasked) == SEVERE
        assert said_in(everybody.unasked) == [each for each in EVERYTHING if "notifications" not in str(each)]
        nursery.cancel_scope.cancel()


async def test_who_has_to_say_who_he_is_hears_only_of_his_own_calls(tmp_path):
    command = saying(tmp_path)
    spec = ServerSpec("one", StdioTransport(command[0], command[1:]))

    async def user(scope):
        return Principal("Ann")

    async with (
        served([spec], http={"authenticate": user}) as (gateway, url),
        http_client(f"{url}/one", OLD) as client,
        gateway.supervisor.notices() as notices,
        trio.open_nursery() as nursery,
    ):
        await opened(client, OLD)
        await nursery.start(client.listen)
        await client.ask(request(OLD, 5, "tools/call", name="say", arguments={}))
        with trio.fail_after(10):
            async for notice in notices:
                if notice.params.get("data") == "last":
                    break
        await trio.testing.wait_all_tasks_blocked()
        assert client.unasked == []
        nursery.cancel_scope.cancel()

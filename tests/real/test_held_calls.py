"""W13: a server that was killed between two turns of a host: the next call is held behind `serve`, and answered."""

import json
import os
import signal
import sys
from functools import partial

import psutil
import pytest
import trio
import trio.testing

from ..lab.gateways import served_over_http
from ..lab.processes import LAB, eventually
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, opened, request
from .test_first_lists import client_of

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-I", "-S", str(LAB)]
FRONTS = ["stdio", "http"]


@pytest.fixture
def configured(tmp_path):
    """`--config FILE` of two servers, with these keys of the first."""

    def write(**keys):
        command, *args = COMMAND
        entry = {"command": command, "args": args}
        file = tmp_path / "servers.json"
        file.write_text(json.dumps({"mcpServers": {"one": entry | keys, "two": entry}}))
        return ["--config", str(file)]

    return write


async def kill(pid):
    """Kill a server; returns when its gateway has noticed, as it has long since between two turns."""
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not psutil.pid_exists(pid))


async def asked(client, version, number, tool, told=None, **arguments):
    """The result of a call, and its progress."""
    meta = {} if told is None else {"_meta": {"progressToken": "p"}}
    said = await client.ask(request(version, number, "tools/call", name=tool, arguments=arguments, **meta))
    for message in map(json.loads, said):
        if message.get("method") == "notifications/progress":
            assert message["params"].pop("progressToken") == "p"
            told.append(message["params"])
    return answer_in(said[-1:], number)["result"]


def text_of(result):
    return result["content"][0]["text"]


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("of", "version"), [("command", OLD), ("config", NEW)])
async def test_the_next_call_is_answered(front, version, of, configured):
    """At once after a stable connection: the ladder would let it wait for a minute."""
    if of == "command":
        args = ["--restart-delays", "60", "--stable-after-seconds", "0", "--", *COMMAND]
    else:
        args = configured(restartDelays=[60], stableAfterSeconds=0)
    prefix = "" if of == "command" else "one_"
    async with client_of(front, version, args) as client:
        call, told = partial(asked, client, version), []
        await opened(client, version)
        before = text_of(await call(2, f"{prefix}pid"))
        await kill(int(before))
        result = await call(3, f"{prefix}sleep", told, seconds=0, label="rested")
        assert text_of(result) == "rested"
        assert told == [{"progress": -1, "message": "restarting, attempt 2 of 2"}]
        assert text_of(await call(4, f"{prefix}pid")) != before


@pytest.mark.parametrize("front", FRONTS)
async def test_a_dead_server_delays_nobody_else(front, configured):
    args = [*configured(restartDelays=[60]), "--hold", "1"]
    async with client_of(front, OLD, args) as client:
        await opened(client, OLD)
        await kill(int(text_of(await asked(client, OLD, 2, "one_pid"))))
        order = []

        async def call(number, tool):
            result = await asked(client, OLD, number, tool, text="here")
            order.append((tool, bool(result.get("isError"))))
            return result

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, 3, "one_echo")
            await trio.testing.wait_all_tasks_blocked()  # it was sent
            nursery.start_soon(call, 4, "two_echo")
        assert order == [("two_echo", False), ("one_echo", True)]


async def test_a_gateway_that_is_to_hold_nothing_refuses():
    args = ["--hold", "0", "--restart-delays", "60", "--stable-after-seconds", "0", "--", *COMMAND]
    async with client_of("stdio", OLD, args) as client:
        await opened(client, OLD)
        await kill(int(text_of(await asked(client, OLD, 2, "pid"))))
        result = await asked(client, OLD, 3, "echo", text="here")
        assert "the server is waiting" in text_of(result)


async def test_an_adopted_session_meets_no_gap_either(tmp_path, monkeypatch):
    """Its server at the second replica has died, and the session comes from the first."""
    key = tmp_path / "key"
    key.write_text("a key that is long enough for ids")
    key.chmod(0o600)
    args = ["--replica-key", str(key), "--restart-delays", "60", "--stable-after-seconds", "0", "--", *COMMAND]
    with trio.fail_after(60):
        async with served_over_http(*args) as (_, one), http_client(one, OLD) as client:
            await opened(client, OLD)
            monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
            async with served_over_http(*args) as (_, two), http_client(two, OLD) as other:
                await opened(other, OLD)
                await kill(int(text_of(await asked(other, OLD, 2, "pid"))))
                other.session = client.session
                assert text_of(await asked(other, OLD, 3, "sleep", seconds=0, label="rested")) == "rested"

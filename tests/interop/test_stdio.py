"""Servers on standard streams that nobody here wrote: through the command line, and through a supervisor."""

import json
import os
import signal
import time

import psutil
import pytest
import trio
from attrs import evolve

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.status import ServerState

from ..lab.timely import in_time, timely
from .cases import CASES

pytestmark = pytest.mark.interop


def spec_of(case, command):
    program, *arguments = command
    return ServerSpec(case.name, StdioTransport(program, arguments))


async def next_state(events, state):
    async for event in events:
        if getattr(event, "new", None) == state:
            return event
    raise AssertionError(f"never {state}")


def test_a_call_through_the_command_line(case, command, place, mcp_nursery):
    program, *arguments = command
    servers = {case.name: {"command": program, "args": arguments}}
    given = json.dumps(case.arguments(place))
    code, said = mcp_nursery(servers, "call", case.tool, "--server", case.name, "--args", given, "--yes")
    assert code == 0, said
    assert (said["server"], said["tool"], said["is_error"]) == (case.name, case.tool, False)
    assert case.answer in said["text"]
    assert said["content"][0]["type"] == "text"
    assert said["incarnation"] == 1
    assert 0 < said["duration"] < 30


@timely
async def test_a_call_through_a_supervisor(case, command, place):
    with trio.fail_after(120):
        async with open_supervisor([spec_of(case, command)], roots=[place]) as supervisor:
            status = await supervisor.wait_connected(case.name)
            assert status.transport == "stdio"
            assert status.protocol_version == case.protocol
            assert status.server_info["name"] == case.server
            assert status.server_info["version"]
            assert status.incarnation == status.attempt == 1
            assert status.error is None
            assert psutil.pid_exists(status.pid)
            family = [status.pid, *(child.pid for child in psutil.Process(status.pid).children(recursive=True))]

            listed = {tool.tool: tool for tool in await supervisor.list_tools(case.name)}
            assert case.tools <= listed.keys()
            assert status.tool_count == len(listed)
            assert all(tool.available and tool.description for tool in listed.values())
            name = listed[case.tool].name

            result = await supervisor.call_tool(name, case.arguments(place), timeout=60)
            assert not result.is_error
            assert case.answer in result.full_text
            assert (result.server, result.tool) == (case.name, case.tool)
            assert supervisor.status()[0].calls.done == 1
            left = time.monotonic()
    in_time(time.monotonic() - left, 5.0)
    assert not any(map(psutil.pid_exists, family))


@pytest.mark.parametrize("case", ["time", "everything"], indirect=True)
@timely
async def test_killed_and_started_again(case, command, place):
    """L6: noticed at once, started 2 s later by the default policy, of the same use as before."""
    with trio.fail_after(120):
        async with open_supervisor([spec_of(case, command)]) as supervisor, supervisor.events() as events:
            first = await supervisor.wait_connected(case.name)
            killed = trio.current_time()
            os.kill(first.pid, signal.SIGKILL)
            lost = await next_state(events, ServerState.WAITING)
            assert lost.error.startswith("killed by SIGKILL")
            again = await next_state(events, ServerState.CONNECTING)
            assert again.at - killed >= 2
            second = await supervisor.wait_connected(case.name)
            assert (second.incarnation, second.protocol_version) == (2, case.protocol)
            assert second.pid != first.pid
            result = await supervisor.call_tool(case.tool, case.arguments(place), server=case.name)
            assert case.answer in result.full_text
            assert result.incarnation == 2
    in_time(lost.at - killed, 0.5)
    in_time(again.at - killed, 2.7)


async def test_all_of_them_under_one_supervisor(commands, place):
    """L1: one fails in its work; what the others do is none of its business."""
    specs = [spec_of(case, commands(case.name)) for case in CASES.values()]
    texts = {}

    async def call(supervisor, case):
        result = await supervisor.call_tool(case.tool, case.arguments(place), server=case.name, timeout=60)
        texts[case.name] = result.full_text

    with trio.fail_after(120):
        async with open_supervisor(specs, roots=[place]) as supervisor:
            for case in CASES.values():
                await supervisor.wait_connected(case.name)
            os.kill(supervisor.status()[0].pid, signal.SIGKILL)
            async with trio.open_nursery() as nursery:
                for case in list(CASES.values())[1:]:
                    nursery.start_soon(call, supervisor, case)
            assert all(CASES[name].answer in text for name, text in texts.items())
            assert len(texts) == len(specs) - 1
            assert [status.incarnation for status in supervisor.status()[1:]] == [1] * len(texts)


@pytest.mark.parametrize("case", ["filesystem"], indirect=True)
@timely
async def test_the_folder_in_its_arguments(case, command, place, tmp_path, monkeypatch):
    """P3: a server that takes roots for its folders has those in its arguments, wherever its host works."""
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(120):
        async with open_supervisor([spec_of(case, command)]) as supervisor:
            result = await supervisor.call_tool(case.tool, case.arguments(place), server=case.name, timeout=60)
            assert case.answer in result.full_text
            told = await supervisor.call_tool("list_allowed_directories", server=case.name)
            assert told.content[0].text.split()[2:] == [str(place)]


@pytest.mark.parametrize("case", ["filesystem"], indirect=True)
def test_the_folder_in_its_arguments_in_a_file(case, command, place, tmp_path, mcp_nursery):
    """P3."""
    program, *arguments = command
    servers = {case.name: {"command": program, "args": [*arguments[:-1], str(tmp_path)]}}
    code, said = mcp_nursery(servers, "call", "list_allowed_directories", "--server", case.name, "--yes")
    assert (code, said["content"][0]["text"].split()[2:]) == (0, [str(tmp_path)])


@pytest.mark.parametrize("case", ["filesystem"], indirect=True)
@timely
async def test_the_folders_of_one_server(case, command, place, tmp_path, monkeypatch):
    """P3: a server that takes the host's roots for its folders keeps to its arguments if its spec has no roots, and
    has those that its spec names, also when the host's change."""
    (tmp_path / "own").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    specs = [
        evolve(spec_of(case, command), name="host"),
        evolve(spec_of(case, command), name="none", roots=[]),
        evolve(spec_of(case, command), name="own", roots=[tmp_path / "own"]),
        evolve(spec_of(case, command), name="cwd", roots="cwd"),
    ]

    async def folders(name):
        told = await supervisor.call_tool("list_allowed_directories", server=name, timeout=60)
        return told.content[0].text.partition(":")[2].split()

    async def until(name, wanted):
        while await folders(name) != wanted:  # it asks in its own time, and says nothing of it
            pass

    with trio.fail_after(120):
        async with open_supervisor(specs, roots=[tmp_path]) as supervisor:
            await supervisor.list_tools()
            await until("host", [str(tmp_path)])
            await until("own", [str(tmp_path / "own")])
            await until("cwd", [str(tmp_path / "here")])
            await supervisor.set_roots([place, tmp_path])
            await until("host", [str(place), str(tmp_path)])
            assert await folders("none") == [str(place)]
            assert await folders("own") == [str(tmp_path / "own")]

"""Q40: `mcp-nursery serve --search` as a process, real servers behind it and a client of the MCP SDK before it."""

import json
import sys

import pytest
import trio

from ..lab.gateways import ASKING, Answers, client_on
from ..lab.processes import LAB, Journal, eventually

pytestmark = pytest.mark.slow

MODES = ["legacy", "2026-07-28"]
FRONTS = ["stdio", "http"]
THROUGH_LAB = ["--search", "--", sys.executable, "-I", "-S", str(LAB)]


@pytest.mark.parametrize("era", ["old", "new"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("front", FRONTS)
async def test_what_is_found_is_called_as_if_it_were_listed(front, mode, era):
    user = Answers()
    with trio.fail_after(60):
        async with client_on(front, ["--search", "--", *ASKING, f"era={era}"], mode, user) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["call_tool", "find_tools"]
            found = await client.call_tool("find_tools", {"query": "talk lines", "limit": 1})
            tool = json.loads(found.content[0].text)
            assert tool["name"] == "talk"
            assert tool["input_schema"]["properties"]["lines"]["type"] == "integer"
            greeted = await client.call_tool("call_tool", {"name": "greet"})
            assert greeted.content[0].text == "hello Ann, 7"
            assert user.asked == ["What is your name?", "How old is Ann?"]
            assert greeted.model_dump() == (await client.call_tool("greet", {})).model_dump()
            wrong = await client.call_tool("call_tool", {"name": "talk", "arguments": {"lines": "two"}})
            assert wrong.is_error
            assert 'at /lines: "two" is not of type "integer"' in wrong.content[0].text
            unknown = await client.call_tool("call_tool", {"name": "great"})
            assert unknown.is_error
            assert "did you mean 'greet'" in unknown.content[0].text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("front", FRONTS)
async def test_progress_and_cancellation_pass(front, mode, tmp_path):
    journal, heard = Journal(tmp_path / "journal"), []

    async def progress(done, total, message):
        heard.append(done)

    with trio.fail_after(60):
        async with client_on(front, [*THROUGH_LAB, f"journal={journal.path}"], mode) as client:
            tick = {"name": "tick", "arguments": {"steps": 2, "every": 0.05}}
            await client.call_tool("call_tool", tick, progress_callback=progress)
            assert heard == [0, 1]
            async with trio.open_nursery() as nursery:
                asleep = {"name": "sleep", "arguments": {"seconds": 60, "label": "mine"}}
                nursery.start_soon(client.call_tool, "call_tool", asleep)
                await eventually(lambda: journal.count("sleep"))
                nursery.cancel_scope.cancel()
            cancelled = await client.call_tool("call_tool", {"name": "cancelled", "arguments": {"count": 1}})
            assert cancelled.content[0].text == "mine"


@pytest.mark.parametrize("mode", MODES)
async def test_the_death_of_a_server_is_told_as_for_a_tool_that_is_listed(mode):
    with trio.fail_after(60):
        async with client_on("stdio", THROUGH_LAB, mode) as client:
            lost = await client.call_tool("call_tool", {"name": "crash"})
            assert lost.is_error
            assert "The tool may have acted" in lost.content[0].text
            again = await client.call_tool("call_tool", {"name": "echo", "arguments": {"text": "two"}})
            assert (again.is_error, again.content[0].text) == (False, "two")

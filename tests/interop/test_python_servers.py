"""Servers built with FastMCP 4 and with the 1.x line of the SDK, over stdio and HTTP, in each era that they speak."""

from contextlib import contextmanager

import pytest
import trio

from mcp_nursery.supervisor import HttpTransport, ServerSpec, StdioTransport, open_supervisor

from ..lab import PROGRAMS
from ..lab.remote import free_port
from . import installing
from .host import Host
from .listening import listening

pytestmark = pytest.mark.interop

SCRIPT = PROGRAMS / "nursery_features.py"
FASTMCP, FIRST_LINE = "fastmcp==4.1.2", "mcp[ws]==1.30.0"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
NAME = "features"


@contextmanager
def running(requirement, transport, protocol):
    """The spec of it; of a remote one, the server runs."""
    with installing.needed_by_test(requirement):
        python = str(installing.python_with(requirement))
    if transport == "stdio":
        yield ServerSpec(NAME, StdioTransport(python, ["-I", str(SCRIPT)]), protocol=protocol)
        return
    port = free_port()
    with listening([python, "-I", str(SCRIPT), str(port)], {}, port):
        yield ServerSpec(NAME, HttpTransport(f"http://127.0.0.1:{port}/mcp"), protocol=protocol)


@pytest.fixture(params=["stdio", "http"])
def transport(request):
    return request.param


@pytest.fixture(
    params=[(FASTMCP, "auto", MODERN), (FASTMCP, "handshake", HANDSHAKE), (FIRST_LINE, "auto", HANDSHAKE)],
    ids=["fastmcp 4", "fastmcp 4 by the handshake", "sdk 1.x"],
)
def spoken(request):
    """What it is built with, what its spec says, and what comes of that."""
    return request.param


@pytest.fixture
def host():
    return Host()


@pytest.fixture
async def supervisor(spoken, transport, host, tmp_path):
    requirement, protocol, version = spoken
    with running(requirement, transport, protocol) as spec, trio.fail_after(60):
        async with open_supervisor([spec], callbacks=host.callbacks, roots=[tmp_path]) as supervisor:
            assert (await supervisor.wait_connected(NAME)).protocol_version == version
            yield supervisor


async def test_tools(supervisor, host):
    reports = []

    async def note(progress, total, message):
        reports.append((progress, total))

    weather = await supervisor.call_tool("weather", {"city": "Oslo"}, server=NAME)
    assert weather.structured == {"degrees": 4}
    failed = await supervisor.call_tool("fail", server=NAME)
    assert failed.is_error
    assert "not today" in failed.full_text
    counted = await supervisor.call_tool("count", {"to": 3}, server=NAME, on_progress=note)
    assert counted.full_text == "counted to 3"
    assert reports == [(1, 3), (2, 3), (3, 3)]
    for step in (1, 2, 3):
        assert f"step {step}" in str((await host.line(lambda line: True)).data)


async def test_what_its_tools_ask_of_the_host(supervisor, host, spoken, tmp_path):
    """By requests: 2026-07-28 has none, and the error says how the server can be spoken with instead."""
    asking = {"greet": {}, "think": {"topic": "birds"}, "where": {}}
    answers = {tool: await supervisor.call_tool(tool, given, server=NAME) for tool, given in asking.items()}
    texts = {tool: answer.full_text for tool, answer in answers.items()}
    if spoken[2] == MODERN:
        assert all(answer.is_error for answer in answers.values())
        assert all('"protocol": "handshake"' in text for text in texts.values())
        assert not host.asked
    else:
        assert texts == {"greet": "hello Ada", "think": "parrot: I heard birds", "where": tmp_path.as_uri()}


async def test_resources_and_prompts(supervisor):
    assert [resource.uri for resource in await supervisor.list_resources(NAME)] == ["note://today"]
    assert [template.uri_template for template in supervisor.resource_templates] == ["note://day/{day}"]
    assert (await supervisor.read_resource("note://today")).full_text == "Buy milk."
    assert (await supervisor.read_resource("note://day/monday")).full_text == "Nothing on monday."
    (prompt,) = await supervisor.list_prompts(NAME)
    assert [argument.name for argument in prompt.arguments] == ["topic"]
    (message,) = (await supervisor.get_prompt(prompt.name, {"topic": "birds"})).messages
    assert message.content.text == "Summarise what you know of birds."

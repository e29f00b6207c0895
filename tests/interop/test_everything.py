"""All that the reference server has, over each of its transports, is used through a supervisor."""

import pytest
import trio

from mcp_nursery.supervisor import open_supervisor

from .everything import NAME, TRANSPORTS, USES, running
from .host import Host

pytestmark = pytest.mark.interop


@pytest.fixture(params=TRANSPORTS)
def spec(request):
    with running(request.param) as spec:
        yield spec


@pytest.fixture
def host():
    return Host()


@pytest.fixture
async def supervisor(spec, host, tmp_path):
    with trio.fail_after(60):
        async with open_supervisor([spec], callbacks=host.callbacks, roots=[tmp_path]) as supervisor:
            await supervisor.wait_connected(NAME)
            yield supervisor


async def test_every_tool(supervisor, host):
    """Each answers what it should, and those that ask the host are answered."""
    listed = {tool.tool for tool in await supervisor.list_tools(NAME)}
    assert listed == {use.tool for use in USES}
    for use in USES:
        result = await supervisor.call_tool(use.tool, use.arguments, server=NAME)
        assert result.is_error is use.is_error
        assert use.answer in result.full_text
        assert tuple(block.type for block in result.content) == use.blocks
        if use.tool == "get-structured-content":
            assert result.structured == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    urls = [asked.url for asked in host.asked if getattr(asked, "url", None)]
    assert urls == ["https://example.org/visit", "https://modelcontextprotocol.io", "https://example.org/visit"]


async def test_progress(supervisor):
    reports = []

    async def note(progress, total, message):
        reports.append((progress, total))

    arguments = {"duration": 0.4, "steps": 4}
    await supervisor.call_tool("trigger-long-running-operation", arguments, server=NAME, on_progress=note)
    assert reports == [(1, 4), (2, 4), (3, 4), (4, 4)]


async def test_its_log(supervisor, host):
    """The first message of the simulation comes at once; of what level is left to chance."""
    await supervisor.call_tool("toggle-simulated-logging", server=NAME)
    message = await host.line(lambda line: "level" in line.data)
    assert message.data.lower().startswith(message.level)


async def test_roots_that_change(supervisor, host, tmp_path):
    """It asks for them, is told that they have changed, and asks again."""
    await host.line(lambda line: "1 root(s)" in line.data)
    await supervisor.set_roots([tmp_path, tmp_path / "new"])
    await host.line(lambda line: "2 root(s)" in line.data)
    told = await supervisor.call_tool("get-roots-list", server=NAME)
    assert f"URI: {(tmp_path / 'new').as_uri()}" in told.full_text

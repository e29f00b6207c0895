"""What `open_supervisor` takes, and what it says of the rest."""

import asyncio
import json
from typing import Any

import anyio
import pytest
import trio
from mcp.server.mcpserver import MCPServer

from mcp_nursery.supervisor import ConfigError, InProcessTransport, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.testing import ScriptedServer

FILE = {"mcpServers": {"off": {"command": "no-such-command", "enabled": False}}}


async def opened(given: Any) -> list[str]:
    async with open_supervisor(given) as supervisor:
        return [status.name for status in supervisor.status()]


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
async def test_a_file_s_path_is_that_file(autojump_clock: Any, tmp_path: Any, kind: Any) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps(FILE))
    assert await opened(kind(file)) == ["off"]
    async with open_supervisor([]) as supervisor:
        await supervisor.reload(kind(file))
        assert [status.name for status in supervisor.status()] == ["off"]
    with pytest.raises(ConfigError, match=r"nowhere\.json: cannot be read"):
        await opened(kind(tmp_path / "nowhere.json"))


async def test_one_spec_is_a_list_of_one(autojump_clock: Any) -> None:
    assert await opened(ServerSpec("lab", ScriptedServer().transport)) == ["lab"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (StdioTransport("x"), "not a bare StdioTransport, which has no name: ServerSpec('name', transport)"),
        ([InProcessTransport(object())], "not an iterable with a bare InProcessTransport, which has no name"),
        (MCPServer("lab"), "not a server object: ServerSpec('name', InProcessTransport(server))"),
        ([MCPServer("lab")], "a server object: ServerSpec('name', InProcessTransport(server))"),
        (FILE, "not a dict: write it to a file"),
        (None, "not NoneType"),
        ([42], "not an iterable with int in it"),
    ],
)
async def test_anything_else_is_told_what_is_wanted(autojump_clock: Any, given: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await opened(given)
    assert str(caught.value).startswith("servers must be specs, [ServerSpec(name, transport), …]")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("transport", [42, MCPServer("lab"), "npx -y foo", None])
def test_a_spec_needs_a_transport(transport: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^server 'lab': field 'transport': must be a transport, such as Stdio"
    ) as caught:
        ServerSpec("lab", transport)
    assert type(transport).__name__ in str(caught.value)


@pytest.mark.parametrize("run", [asyncio.run, lambda main: anyio.run(lambda: main)], ids=["asyncio", "anyio"])
def test_without_trio_it_says_what_to_do(run: Any) -> None:
    with pytest.raises(RuntimeError, match=r"runs on Trio.*trio\.run.*start_guest_run.*backend='trio'"):
        run(opened([]))


def test_under_anyio_on_trio_it_works() -> None:
    assert anyio.run(opened, [], backend="trio") == []


def test_as_a_guest_of_asyncio_it_works() -> None:
    """Beside an application that is on asyncio: its loop runs, and Trio's tasks within it."""

    async def host() -> list[str]:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outcomes: list[Any] = []

        def done(outcome: Any) -> None:
            outcomes.append(outcome)
            ended.set()

        given = [ServerSpec("lab", ScriptedServer().transport)]
        trio.lowlevel.start_guest_run(
            opened, given, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done
        )
        await ended.wait()
        return outcomes[0].unwrap()

    assert asyncio.run(host()) == ["lab"]

"""What is shown of a server: what it says of itself, and its calls; and what is left of both once it is removed."""

import pytest
import trio

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.messages import Handshake
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.decisions.server_info import introduction_of
from mcp_nursery.supervisor.errors import UnknownServer
from mcp_nursery.supervisor.security.redaction import PLAIN, Redactor
from mcp_nursery.supervisor.servers.call_counter import CallCounter
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.specs import WithEnvironment


def test_secrets_are_taken_out_of_every_text():
    """L16, L17: wherever the server has put them."""
    told = {"name": "lab", "version": "hunter2", "icons": [{"src": "https://x/?key=hunter2"}]}
    able = {"experimental": {"hunter2": {"key": ["hunter2"]}}, "tools": {}}
    handshake = Handshake(Era.MODERN, "2026-07-28", told, able, "say hunter2")
    shown = at_once(introduction_of(handshake, Redactor.of(["hunter2"]).said_in_pieces))
    assert "hunter2" not in repr(shown)
    assert (shown.server_info["version"], shown.instructions) == ("[REDACTED:config]", "say [REDACTED:config]")
    assert shown.server_info["icons"][0]["src"] == "https://x/?key=[REDACTED:config]"
    assert shown.capabilities == {
        "experimental": {"[REDACTED:config]": {"key": ["[REDACTED:config]"]}},
        "tools": {},
    }


@pytest.mark.parametrize(
    ("told", "pieces"),
    [
        pytest.param({"icons": [{"src": "data:" + "A" * 50_000}] * 10}, 900, id="large texts"),
        pytest.param({f"k{at}": {"a": "some words: here"} for at in range(1000)}, 2000, id="many texts"),
    ],
)
def test_a_long_introduction_is_made_in_pieces(told, pieces):
    made = introduction_of(
        Handshake(Era.MODERN, "2026-07-28", told, {"experimental": told}, None), PLAIN.said_in_pieces
    )
    assert sum(1 for _ in made) > 2 * pieces


@pytest.mark.parametrize("more", [{}, {"icons": [{"src": "https://x/", "mimeType": "image/png"}]}])
def test_whoever_gets_a_status_may_change_it(more):
    """Nobody else's changes with it."""
    told = {"name": "lab", "version": "1", **more}
    shown = at_once(introduction_of(Handshake(Era.MODERN, "2026-07-28", told, None, None), PLAIN.said_in_pieces))
    info = shown.own_info()
    assert info == told
    info["name"] = "other"
    for icon in info.get("icons", ()):
        icon.clear()
    assert shown.own_info() == told


async def test_what_a_server_can_do_and_where_it_comes_from(autojump_clock):
    """K4, L13: last known, as what it says of itself; a copy for whoever asks."""
    server = ScriptedServer(Life(), Life(refuses="gone"))
    spec = ServerSpec("lab", server.transport, source="/etc/servers.json", description="The lab.")
    async with open_supervisor([spec], gate=0) as supervisor:
        (before,) = supervisor.status()
        assert (before.capabilities, before.source, before.description) == (None, "/etc/servers.json", "The lab.")
        connected = await supervisor.wait_connected("lab")
        assert connected.capabilities == {"tools": {}}
        connected.capabilities["tools"]["mine"] = True
        server.crash()
        await trio.sleep(1)
        (lost,) = supervisor.status()
        assert (lost.state, lost.capabilities) == ("waiting", {"tools": {}})


def lab() -> ServerSpec:
    return ServerSpec("lab", WithEnvironment(ScriptedServer(), {"KEY": "opensesame-42"}))


async def test_nothing_is_kept_of_a_server_that_was_removed(autojump_clock):
    """Neither its secrets nor its counts, however often one comes and goes; one of the same name begins anew."""
    async with open_supervisor([], state=MemoryStore()) as supervisor:
        servers = supervisor._servers
        for _ in range(3):
            await supervisor.add_server(lab())
            await supervisor.wait_connected("lab")
            tool = supervisor.tool("mcp_lab_echo")
            await supervisor.call_tool("mcp_lab_echo")
            await supervisor.list_tools("lab", refresh=True)
            assert supervisor.status()[0].calls.done == 1
            assert "opensesame-42" not in servers.redactor("lab").text("it said opensesame-42")
            await supervisor.remove_server("lab")
            counter = servers.counter
            assert servers._secrets == counter._tallies == counter._users == counter._used_at == {}
            with pytest.raises(UnknownServer):
                await tool()


def test_what_is_in_use_is_kept_as_long():
    """L17: a call may end, and quote its server, after the server has gone: its host is slow, say."""
    gone = []
    counter = CallCounter(gone.append)

    async def main():
        counter.watch("lab", 300)
        counter.begin_call("lab")
        with counter.in_use(["lab"]):
            counter.forget("lab")
            counter.finish_call("lab", "echo", 0.1)
            assert (gone, counter.tally("lab").done) == ([], 1)
        assert (gone, counter.tally("lab").done) == (["lab"], 0)
        counter.watch("lab", 300)
        counter.begin_call("lab")
        counter.forget("lab")
        counter.watch("lab", 300)  # it is there again before its last call has ended
        counter.fail_call("lab", "echo", 0.2, "CallTimeout", "unknown")
        assert (gone, counter.tally("lab").failed) == (["lab"], 1)

    run_virtual(main)

"""G6: lists are shown from memory, and fetched again in the background when somebody looks at ones that are too old."""

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import RestartPolicy, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import nothing, spec

ERAS = pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])


def listed(server, method="tools/list"):
    return [at for at, asked in server.listings if asked == method]


def names(supervisor):
    return [tool.tool for tool in supervisor.tools]


@ERAS
async def test_a_list_that_is_too_old_is_fetched_again(modern, autojump_clock):
    """At the next look at it, which shows what was known; nobody waits, and nobody fetches what nobody looks at."""
    server = ScriptedServer(Life(modern=modern), tools={"echo": nothing})
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(299)
        assert names(supervisor) == ["echo"]
        server.tools["more"] = nothing
        await trio.sleep(1000)
        assert listed(server) == [0]
        assert names(supervisor) == names(supervisor) == ["echo"]
        assert await supervisor.list_tools() == supervisor.tools  # one look, and it does not wait either
        await trio.testing.wait_all_tasks_blocked()
        assert names(supervisor) == ["echo", "more"]
        assert listed(server) == [0, 1299]


async def test_a_server_says_how_long_its_list_is_fresh(autojump_clock):
    """Only what is too old is fetched again; one that says less than a second is asked once a second at most."""
    server = ScriptedServer(tools={"echo": nothing}, resources={"note:/a": nothing})
    server.fresh_for |= {"tools/list": 10, "resources/list": 3600}
    async with open_supervisor([spec(server)]) as supervisor:
        for _ in range(24):
            await trio.sleep(0.5)
            assert names(supervisor) == ["echo"]
        server.fresh_for["tools/list"] = 0.001
        assert listed(server) == [0, 10.5]  # ages are looked at once a second
        await trio.sleep(10)
        for _ in range(5):
            assert names(supervisor) == ["echo"]
            await trio.sleep(0.5)
        assert listed(server) == [0, 10.5, 22, 23, 24]
        await trio.sleep(1000)
        assert supervisor.resources
        await trio.testing.wait_all_tasks_blocked()
        assert listed(server, "resources/list") == [0]
        assert listed(server, "resources/templates/list") == [0, 1024.5]


async def test_an_explicit_refresh_makes_a_list_fresh(autojump_clock):
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(200)
        await supervisor.list_tools(refresh=True)
        await trio.sleep(200)
        assert supervisor.tools
        await trio.testing.wait_all_tasks_blocked()
        assert listed(server) == [0, 200]


async def test_so_does_another_connection(autojump_clock):
    """And what is not connected is not asked."""
    server = ScriptedServer(Life(), Life(), Life(closes_after=5))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(200)
        await supervisor.reconnect("lab")
        await trio.sleep(200)
        assert supervisor.tools
        await trio.sleep(200)
        server.crash()
        await trio.sleep(1)
        assert supervisor.tools
        await supervisor.wait_connected("lab")
        assert listed(server) == [0, 200, 602]


@ERAS
async def test_so_does_the_word_that_it_has_changed(modern, autojump_clock):
    server = ScriptedServer(Life(modern=modern), resources={"note:/a": nothing})
    server.capabilities["tools"] = {"listChanged": True}
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(200)
        server.tools = {"more": nothing}
        await server.notify("notifications/tools/list_changed")
        await trio.sleep(200)
        assert names(supervisor) == ["more"]
        await trio.testing.wait_all_tasks_blocked()
        assert listed(server) == [0, 200.1]
        assert listed(server, "resources/list") == [0, 400]


async def test_who_borrows_a_server_looks_at_its_lists_too(autojump_clock):
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as lender, open_supervisor(borrow=lender, servers=["lab"]) as borrower:
        await trio.sleep(300)
        assert names(borrower) == names(lender) == ["echo"]
        await trio.testing.wait_all_tasks_blocked()
        assert listed(server) == [0, 300]


async def test_a_list_that_cannot_be_fetched_again(autojump_clock):
    """It stays as it was, and is not asked for again before its time."""
    server = ScriptedServer(resources={"note:/a": nothing})
    async with open_supervisor([spec(server, max_kept_bytes=2000)]) as supervisor:
        await trio.sleep(300)
        server.resources = {"note:/" + "x" * 2000: nothing}
        for _ in range(20):
            assert [one.uri for one in supervisor.resources] == ["note:/a"]
            await trio.sleep(10)
        assert listed(server, "resources/list") == [0, 300]


async def test_a_list_of_more_tools_than_a_server_may_have(autojump_clock):
    """Not connected: the error says which list, and by which limit. One that was connected keeps its last tools."""
    few, many = {"a": nothing, "b": nothing}, {"a": nothing, "b": nothing, "c": nothing}
    beyond, grows = ScriptedServer(tools=many), ScriptedServer(tools=few)
    once = {"max_definitions": 2, "policy": RestartPolicy(delays=())}
    specs = [spec(beyond, "beyond", **once), spec(grows, "grows", **once)]
    async with open_supervisor(specs) as supervisor:
        failed, connected = supervisor.status()
        assert (failed.state, connected.state) == ("failed", "connected")
        more = "(max_definitions, or maxDefinitions in a file, allows more)"
        limit = f"its tool definitions exceed 2 entries, the limit for one server {more}"
        assert failed.error == f"tools/list failed: {limit}"
        grows.tools = many
        assert [tool.tool for tool in await supervisor.list_tools(refresh=True)] == ["a", "b"]
        assert supervisor.status()[1].state == "connected"


def test_the_catalogue_can_be_read_outside_of_trio():
    """By another thread, say: nothing is fetched for it."""
    kept = []

    async def main():
        async with open_supervisor([spec(ScriptedServer())]) as supervisor:
            kept.append(supervisor)
            assert await trio.to_thread.run_sync(lambda: names(supervisor)) == ["echo"]

    trio.run(main)
    assert names(kept[0]) == []

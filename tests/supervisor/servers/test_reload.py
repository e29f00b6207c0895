"""A configuration that takes another's place while everything runs. Times are exact: the clock is virtual."""

import json
import re
from collections.abc import Mapping
from functools import partial

import pytest
import trio
import trio.testing
from attrs import evolve

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, ConnectionLost, ServerDown, UnknownTool
from mcp_nursery.supervisor import (
    HttpTransport,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    discover_config,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.events import Reloaded, ReloadFailed, ServerRemoved, StateChanged, ToolsChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer
from mcp_nursery.supervisor.transports import UnusableTransport

from ...lab.specs import lasting, live_events, spec, states, status

S = ServerState
ONCE = RestartPolicy(delays=())


# -- what happens to each server ----------------------------------------------------------------------------------


async def test_one_of_each(autojump_clock):
    """L18: the unchanged one keeps its connection and its call, the changed one restarts, the removed one stops, the
    new one starts; all at once."""
    kept, changed, gone, new = (
        ScriptedServer(tools={"long": lasting(100)}),
        ScriptedServer(Life(closes_after=2)),
        ScriptedServer(Life(closes_after=3)),
        ScriptedServer(Life(connects_after=9)),
    )
    results = []

    async def call():
        results.append(await supervisor.call_tool("mcp_kept_long"))

    specs = [spec(kept, "kept"), spec(changed, "changed"), spec(gone, "gone")]
    async with open_supervisor(specs) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.sleep(50)
        now = [spec(new, "new"), evolve(specs[1], trust_hints=False), evolve(specs[0])]
        async with supervisor.events() as events:
            told = await supervisor.reload(now)
            assert trio.current_time() == 53  # the slowest close, not their sum
            assert told == Reloaded(("new",), ("changed",), ("gone",), ("kept",), at=50)
            assert await next_of(events, Reloaded) == told
        assert states(supervisor) == {"new": S.CONNECTING, "changed": S.CONNECTED, "kept": S.CONNECTED}
        assert (changed.starts, gone.starts, kept.starts, new.starts) == ([0, 52], [0], [0], [50])
        assert (status(supervisor, "kept").uptime, status(supervisor, "changed").incarnation) == (53, 2)
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_gone_echo")
    assert [(one.incarnation, one.full_text, one.duration) for one in results] == [(1, "done", 100)]


async def test_what_is_told_of_a_reload(autojump_clock):
    """L18, P2: events in order, of each server the same as if it had been done alone; none of what is unchanged."""
    kept, changed, gone, new = (ScriptedServer(Life(closes_after=1)) for _ in range(4))
    specs = [spec(kept, "kept"), spec(changed, "changed"), spec(gone, "gone")]
    async with open_supervisor(specs) as supervisor, supervisor.events() as events:
        await supervisor.reload([specs[0], evolve(specs[1], max_in_flight=1), spec(new, "new")])
        await supervisor.list_tools()
        told = []
        with trio.move_on_after(1):
            async for event in events:
                match event:
                    case StateChanged():
                        told.append((event.server, event.old, event.new, event.incarnation))
                    case ToolsChanged():
                        told.append((event.server, event.added, event.removed))
                    case ServerRemoved():
                        told.append((event.server, "removed"))
    assert [one for one in told if one[0] == "kept"] == []
    assert [one for one in told if one[0] == "gone"] == [
        ("gone", (), ("mcp_gone_echo",)),
        ("gone", "connected", "stopped", 1),
        ("gone", "removed"),
    ]
    assert [one for one in told if one[0] == "changed"] == [
        ("changed", "connected", "connecting", 2),
        ("changed", "connecting", "connected", 2),
    ]
    assert [one for one in told if one[0] == "new"] == [
        ("new", None, "connecting", 1),
        ("new", "connecting", "connected", 1),
        ("new", ("mcp_new_echo",), ()),
    ]


async def test_the_order_of_the_status_is_that_of_the_new_configuration(autojump_clock):
    """L13."""
    specs = {name: spec(ScriptedServer(), name) for name in "abcd"}
    async with open_supervisor(specs.values()) as supervisor:
        await supervisor.reload([specs[name] for name in "dba"])
        assert [one.name for one in supervisor.status()] == ["d", "b", "a"]
        await supervisor.reload([])
        assert supervisor.status() == ()


@pytest.mark.parametrize(
    ("life", "before", "after"),
    [
        (Life(refuses="down"), S.FAILED, S.CONNECTED),
        (Life(refuses="who?", needs_auth=True), S.NEEDS_AUTH, S.CONNECTED),
    ],
)
async def test_what_has_failed_gets_a_fresh_start(autojump_clock, life, before, after):
    """L18: unchanged, it is tried again."""
    one = spec(ScriptedServer(life, Life()), policy=ONCE)
    async with open_supervisor([one]) as supervisor:
        assert status(supervisor).state is before
        await supervisor.reload([evolve(one)])
        assert status(supervisor).state is S.CONNECTING
        await supervisor.list_tools("lab")
        assert (status(supervisor).state, status(supervisor).attempt) == (after, 1)


async def next_of(events, kind):
    """The next event of this kind."""
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError(kind)


async def heard(events) -> list:
    """What has happened by now."""
    found = []
    with trio.move_on_after(0.01):
        async for event in events:
            found.append(event)
    return found


async def test_what_fails_again_is_failed_again(autojump_clock):
    """L12, L18: an entry that is broken in the same way, read anew, is no other entry, and tried once."""
    before, after = (UnusableTransport(ConfigError("no command", file="f", server="lab")) for _ in range(2))
    async with open_supervisor([ServerSpec("lab", before)]) as supervisor, supervisor.events() as events:
        await supervisor.reload([ServerSpec("lab", after)])
        await trio.sleep(1)
        changes = [event for event in await heard(events) if isinstance(event, StateChanged)]
        assert [event.new for event in changes] == ["connecting", "failed"]
        await supervisor.reload([ServerSpec("lab", UnusableTransport(ConfigError("no url", file="f", server="lab")))])
        await trio.sleep(1)
        assert "no url" in status(supervisor).error


async def test_what_is_stopped_disabled_or_waiting_stays_so(autojump_clock):
    """L9, L18: unchanged."""
    stopped, disabled, started, waiting = (
        ScriptedServer(),
        ScriptedServer(),
        ScriptedServer(),
        ScriptedServer(Life(refuses="down"), Life()),
    )
    specs = [
        spec(stopped, "stopped"),
        spec(disabled, "disabled", enabled=False),
        spec(started, "started", enabled=False),
        spec(waiting, "waiting", policy=RestartPolicy(delays=(10,))),
    ]
    async with open_supervisor(specs) as supervisor:
        await supervisor.stop_server("stopped")
        await supervisor.reconnect("started")
        await trio.sleep_until(5)
        await supervisor.reload([evolve(one) for one in specs])
        assert list(states(supervisor).values()) == [S.STOPPED, S.DISABLED, S.CONNECTED, S.WAITING]
        await trio.sleep_until(50)
        assert list(states(supervisor).values()) == [S.STOPPED, S.DISABLED, S.CONNECTED, S.CONNECTED]
        assert (stopped.starts, disabled.starts, started.starts, waiting.starts) == ([0], [], [0], [0, 10])


BEGINNINGS = {S.CONNECTED: {}, S.IDLE: {"lazy": True}, S.DISABLED: {"enabled": False}}


@pytest.mark.parametrize("after", BEGINNINGS)
@pytest.mark.parametrize("before", ["connected", "idle", "disabled", "stopped", "waiting", "failed", "connecting"])
async def test_a_changed_server_begins_as_its_new_spec_says(autojump_clock, before, after):
    """L18: wherever it stood, and whatever became of it so far: as one that was just configured."""
    begins: dict[str, dict[str, object]] = {
        "idle": {"lazy": True},
        "disabled": {"enabled": False},
        "failed": {"policy": ONCE},
    }
    lives = {"waiting": Life(refuses="down"), "failed": Life(refuses="down"), "connecting": Life(mute=True)}
    server = ScriptedServer(*([lives[before]] if before in lives else []), Life())
    old = spec(server, **begins.get(before, {}))
    async with open_supervisor([old]) as supervisor:
        if before == "stopped":
            await supervisor.stop_server("lab")
        assert status(supervisor).state == before
        await supervisor.reload([spec(server, max_in_flight=7, **BEGINNINGS[after])])
        await trio.sleep(60)
        one = status(supervisor)
        assert (one.state, one.error, one.attempt, one.max_attempts, one.retry_in) == (after, None, 1, 4, None)
        assert server.most_alive <= 1
        if after is S.DISABLED:
            with pytest.raises(ServerDown, match="disabled"):
                await supervisor.call_tool("echo", server="lab")
        else:
            assert (await supervisor.call_tool("mcp_lab_echo")).text
        assert len(server.ends) == len(server.starts) - (after is not S.DISABLED)


@pytest.mark.parametrize("closing", [0, 4])
async def test_an_end_under_way_is_waited_for(autojump_clock, closing):
    """L7: the new connection opens when that of a server that was lost, and is being closed still, is closed."""
    old, new = ScriptedServer(Life(dies_after=5, closes_after=closing)), ScriptedServer()
    async with open_supervisor([spec(old)]) as supervisor:
        await trio.sleep_until(5.5)
        await supervisor.reload([spec(new)])
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == (9 if closing else 5.5)
        assert (old.ends, new.starts) == ([5 + closing], [9 if closing else 5.5])


# -- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drain", "outcome"), [(0, None), (1, None), (3, "done")])
async def test_calls_of_a_changed_server(autojump_clock, drain, outcome):
    """L18: what was sent has `drain` seconds; what was not goes to the new connection, and only there."""
    server = ScriptedServer(tools={"two": lasting(2), "echo": lasting(0)})
    outcomes = {}

    async def call(tool):
        try:
            outcomes[tool] = (await supervisor.call_tool(tool, server="lab")).incarnation
        except ConnectionLost as error:
            outcomes[tool] = str(error.delivery)

    async with open_supervisor([spec(server, max_in_flight=1)]) as supervisor:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "two")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call, "echo")  # waits in the mailbox
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.reload([spec(server, max_in_flight=2)], drain=drain)
            assert trio.current_time() == min(drain, 2)
        assert outcomes == {"two": 1 if outcome else "unknown", "echo": 2}
        assert sorted(call[:2] for call in server.calls) == [(1, "two"), (2, "echo")]


@pytest.mark.parametrize("drain", [0, 3])
async def test_calls_of_a_removed_server(autojump_clock, drain):
    """L9, L18: what was not sent fails at once, what was has `drain` seconds, and new ones find nothing."""
    server = ScriptedServer(tools={"two": lasting(2), "echo": lasting(0)})
    outcomes = {}

    async def call(tool):
        try:
            outcomes[tool] = trio.current_time(), (await supervisor.call_tool(tool, server="lab")).full_text
        except ConnectionLost as error:
            outcomes[tool] = trio.current_time(), str(error.delivery)

    async with open_supervisor([spec(server, max_in_flight=1)]) as supervisor, trio.open_nursery() as nursery:
        for tool in ("two", "echo"):
            nursery.start_soon(call, tool)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(partial(supervisor.reload, [], drain=drain))
        await trio.testing.wait_all_tasks_blocked()
        if drain:
            assert states(supervisor) == {"lab": S.STOPPED}
            with pytest.raises(ServerDown, match="stopped"):
                await supervisor.call_tool("mcp_lab_echo")
        assert supervisor.tools == ()
        await trio.sleep(1)
        assert outcomes["echo"] == (0, "not_sent")
        await trio.sleep(10)
        assert outcomes["two"][1] == ("done" if drain else "unknown")
        assert [call[1] for call in server.calls] == ["two"]


async def test_who_waits_for_a_changed_server_gets_the_new_one(autojump_clock):
    """L18, R1: a call, a list and a reconnect that were under way go on with the new connection."""
    mute, server = ScriptedServer(Life(mute=True)), ScriptedServer(Life(connects_after=2))
    server.fresh_for = {"tools/list": 60}  # or the calls may have changed what is listed beside them
    outcomes = {}

    async def note(name, function):
        outcomes[name] = await function()

    async with open_supervisor([spec(mute)]) as supervisor:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "call", partial(supervisor.call_tool, "echo", server="lab"))
            nursery.start_soon(note, "name", partial(supervisor.call_tool, "mcp_lab_echo"))
            nursery.start_soon(note, "list", supervisor.list_tools)
            nursery.start_soon(note, "reconnect", partial(supervisor.reconnect, "lab"))
            nursery.start_soon(note, "wait", partial(supervisor.wait_connected, "lab"))
            await trio.sleep(1)
            await supervisor.reload([spec(server)])
        assert trio.current_time() == 3.25  # the gate was 0.25
        assert [tool.name for tool in outcomes.pop("list")] == ["mcp_lab_echo"]
        assert outcomes.pop("wait").state is S.CONNECTED
        assert outcomes.pop("reconnect") is None
        assert [one.incarnation for one in outcomes.values()] == [2, 2]
        assert mute.calls == []


async def test_a_refresh_under_way_is_the_next_connections(autojump_clock):
    """G14, L18: who waits for tools of a server that is changed gets those of the new one."""
    deaf, server = ScriptedServer(Life(deaf_after=2)), ScriptedServer(Life(connects_after=2), tools={"new": lasting(0)})
    async with open_supervisor([spec(deaf)]) as supervisor, trio.open_nursery() as nursery:
        listed = []

        async def refresh():
            listed.extend(tool.name for tool in await supervisor.list_tools(refresh=True))

        nursery.start_soon(refresh)
        await trio.sleep(1)
        assert listed == []
        await supervisor.reload([spec(server)])
        await trio.sleep_until(3)
        await trio.testing.wait_all_tasks_blocked()
        assert listed == ["mcp_lab_new"]


async def test_who_waits_for_a_server_that_becomes_lazy_has_it_started(autojump_clock):
    """G7, G14, L18."""
    mute, server = ScriptedServer(Life(mute=True)), ScriptedServer(Life(connects_after=2))
    for wait in ("list_tools", "wait_connected"):
        async with open_supervisor([spec(mute)], gate=0) as supervisor:
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(getattr(supervisor, wait), "lab")
                await trio.sleep(1)
                await supervisor.reload([spec(server, lazy=True)])
            assert trio.current_time() - begun == 3


@pytest.mark.parametrize(("options", "state"), [({"enabled": False}, "disabled"), ({"lazy": True}, "idle")])
async def test_who_waits_for_an_attempt_that_a_reload_ends_is_told(autojump_clock, options, state):
    """L8, L18: a reconnect comes to its outcome, a refresh ends, and nobody is left waiting."""
    mute = ScriptedServer(Life(deaf_after=2), Life(mute=True))
    async with open_supervisor([spec(mute)]) as supervisor:
        reconnect, refresh = partial(supervisor.reconnect, "lab"), partial(supervisor._servers.refresh_lists, ["lab"])
        for ask, expected in ((reconnect, state), (refresh, None)):
            await supervisor.reload([spec(mute)])
            outcomes = []

            async def asking(ask=ask, outcomes=outcomes):
                try:
                    outcomes.append(await ask())
                except ServerDown as error:
                    outcomes.append(str(error.state))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(asking)
                await trio.testing.wait_all_tasks_blocked()
                begun = trio.current_time()
                await supervisor.reload([spec(mute, **options)])
            assert trio.current_time() == begun
            assert outcomes == [expected]


# -- all of them begin again --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beginning", [{}, {"lazy": True}])
async def test_restart_begins_all_again(autojump_clock, beginning):
    """L19: whatever a server does, and although nothing has changed; what is stopped as well."""
    servers = {name: ScriptedServer(Life(closes_after=n)) for n, name in enumerate(("a", "b", "off"))}
    specs = [spec(server, name, **beginning) for name, server in servers.items()]
    async with open_supervisor(specs) as supervisor:
        await supervisor.list_tools()
        await supervisor.stop_server("off")
        began = trio.current_time()
        event = await supervisor.reload(restart=True)
        assert event == Reloaded((), ("a", "b", "off"), (), (), at=began)
        assert trio.current_time() == began + 1  # the slowest close, not their sum
        await supervisor.list_tools()
        assert [status(supervisor, name).incarnation for name in servers] == [2, 2, 2]
        assert set(states(supervisor).values()) == {S.CONNECTED}


async def test_restart_of_some(autojump_clock):
    """L19: those that are named, and what has changed."""
    servers = {name: ScriptedServer() for name in "abc"}
    specs = [spec(server, name) for name, server in servers.items()]
    async with open_supervisor(specs) as supervisor:
        event = await supervisor.reload([evolve(specs[0], trust_hints=False), *specs[1:]], restart=["b", "unknown"])
        assert (event.changed, event.untouched) == (("a", "b"), ("c",))


async def test_restart_ends_calls_like_any_change(autojump_clock):
    """L19: those that were sent have their drain."""
    server = ScriptedServer(tools={"long": lasting(10)})
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        results = []

        async def call(name):
            try:
                results.append((await supervisor.call_tool(name)).full_text)
            except ConnectionLost:
                results.append("lost")

        for drain, outcome in ((20, "done"), (0, "lost")):
            nursery.start_soon(call, "mcp_lab_long")
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.reload(restart=True, drain=drain)
            await supervisor.wait_connected("lab")
            assert results.pop() == outcome


# -- read again ---------------------------------------------------------------------------------------------------


def entries(file, *names):
    file.write_text(json.dumps({"mcpServers": {name: {"command": "x", "enabled": False} for name in names}}))


@pytest.mark.parametrize("given", [str, load_config, partial(discover_config, user=False)])
async def test_without_an_argument_files_are_read_again(tmp_path, monkeypatch, given):
    """L18: the files it was opened with, or those that were given the last time."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".mcp.json"
    entries(file, "a")
    async with open_supervisor(given(".mcp.json") if given in (str, load_config) else given(tmp_path)) as supervisor:
        entries(file, "a", "b")
        assert (await supervisor.reload()).added == ("b",)
        file.write_text("{")
        with pytest.raises(ConfigError, match=r"\.mcp\.json"):
            await supervisor.reload()
        assert list(states(supervisor)) == ["a", "b"]
        entries(tmp_path / "other.json", "c")
        await supervisor.reload(load_config("other.json"))
        entries(tmp_path / "other.json", "c", "d")
        assert (await supervisor.reload()).added == ("d",)


async def test_without_files_the_specs_are_those_there_are(autojump_clock):
    """L19: also one that was added, and none that was removed."""
    servers = {name: ScriptedServer() for name in "abc"}
    async with open_supervisor(iter([spec(servers["a"], "a"), spec(servers["b"], "b")])) as supervisor:
        await supervisor.add_server(spec(servers["c"], "c"))
        await supervisor.remove_server("a")
        assert (await supervisor.reload()).untouched == ("b", "c")
        assert (await supervisor.reload(restart=True)).changed == ("b", "c")


async def test_what_was_changed_of_a_configuration_is_not_read_again(tmp_path):
    """L18: a host that leaves servers out of what was read does not get them behind its back."""
    file = tmp_path / "servers.json"
    entries(file, "a", "b")
    config = load_config(file)
    assert config.reread is not None
    assert config.reread() == config
    async with open_supervisor(evolve(config, servers=config.servers[:1])) as supervisor:
        assert (await supervisor.reload()).untouched == ("a",)


async def test_restart_is_true_or_false(autojump_clock):
    async with open_supervisor([]) as supervisor:
        with pytest.raises(ValueError, match="restart must be True, False or names of servers, not 'no'"):
            await supervisor.reload(restart="no")


# -- what cannot work ---------------------------------------------------------------------------------------------


async def refused(supervisor: Supervisor, config, match: str) -> None:
    """That reload raises, and nothing has changed."""
    before = supervisor.status(), supervisor.tools
    async with live_events(supervisor) as events:
        with pytest.raises(ConfigError, match=match):
            await supervisor.reload(config)
        await trio.testing.wait_all_tasks_blocked()
        assert (supervisor.status(), supervisor.tools) == before
        (event,) = await heard(events)
        assert isinstance(event, ReloadFailed)
        assert re.search(match, event.error)


async def test_two_servers_of_one_name(autojump_clock):
    """L18."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        await refused(supervisor, [spec(server, "b"), spec(server, "a"), spec(server, "b")], "'b'.*exists already")
        assert server.starts == [0]


async def test_a_setting_of_the_environment_that_cannot_work(autojump_clock, monkeypatch):
    """L14, L18."""
    monkeypatch.setenv("MCP_TIMEOUT", "soon")
    async with open_supervisor([]) as supervisor:
        await refused(supervisor, [spec(ScriptedServer())], "MCP_TIMEOUT")


async def test_a_file_that_was_found_and_cannot_be_used(autojump_clock):
    """K3: the old configuration is kept, as a whole."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        broken = Config(servers=(), files=(), warnings=(), errors=("a.json: no JSON", "b.json: no servers"))
        await refused(supervisor, broken, "a.json: no JSON; b.json: no servers")
        await supervisor.reload(evolve(broken, errors=(), servers=(spec(server, "new"),)))
        assert list(states(supervisor)) == ["new"]


def test_equality_of_specs(tmp_path):
    """L18: by value, read anew or not; functions by identity."""
    file = tmp_path / "servers.json"
    texts = [
        '"a": {"command": "x", "args": ["${HOME}"], "env": {"A": "${B}"}}',
        '"h": {"url": "https://h.example/mcp", "headers": {"A": "!echo x"}}',
        '"bad": {"command": "x", "url": "https://h.example"}',
    ]
    file.write_text('{"mcpServers": {' + ", ".join(texts) + "}}")
    before, after = load_config(file).servers, load_config(file).servers
    assert before == after
    assert len(before) == 3
    file.write_text('{"mcpServers": {' + ", ".join(texts).replace("${B}", "${C}") + "}}")
    assert [one == other for one, other in zip(before, load_config(file).servers, strict=True)] == [False, True, True]

    def headers() -> Mapping[str, str]:
        return {}

    url = "https://h.example/mcp"
    assert HttpTransport(url, headers) == HttpTransport(url, headers)
    assert HttpTransport(url, headers) != HttpTransport(url, dict)
    bad = UnusableTransport(ConfigError("no", server="a")), UnusableTransport(ConfigError("no", server="b"))
    assert bad[0] != bad[1]

"""Q12: one of three servers in a file is changed."""

import itertools
import json
import sys

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import ConfigError, NurseryError, discover_config, load_config, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import LAB, eventually, is_alive, lab, status_of, supervised
from ..lab.timely import in_time, timely


def written(file, **servers):
    """A file of lab servers, with the variables given; None is an entry that cannot work."""
    entry = {"command": sys.executable, "args": ["-I", "-S", str(LAB)]}
    entries = {name: {"args": []} if env is None else {**entry, "env": env} for name, env in servers.items()}
    file.write_text(json.dumps({"mcpServers": entries}))
    return load_config(file)


async def variable(supervisor, name):
    result = await supervisor.call_tool("environment", {}, server=name)
    return json.loads(result.full_text).get("FLAVOUR")


async def test_changing_one_server_of_three_touches_no_other(tmp_path):
    """Q12, L18, L7: the others keep their processes and a call in flight; a removed one is gone, a new one there."""
    file = tmp_path / "servers.json"
    results = []

    async def long_call():
        results.append(await supervisor.call_tool("sleep", {"seconds": 60, "label": "x"}, server="a"))

    with trio.fail_after(60):
        config = written(file, a={}, b={"FLAVOUR": "sweet"}, c={})
        async with open_supervisor(config, gate=60) as supervisor, trio.open_nursery() as nursery:
            pids = {one.name: one.pid for one in supervisor.status()}
            nursery.start_soon(long_call)
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.call_tool("sleeping", {"count": 1}, server="a")
            await supervisor.reload(written(file, d={}, b={"FLAVOUR": "sour"}, a={}))
            assert [is_alive(pids[name]) for name in "abc"] == [True, False, False]
            assert results == []
            assert [await variable(supervisor, name) for name in "bd"] == ["sour", None]
            now = {one.name: one.pid for one in supervisor.status()}
            assert (list(now), now["a"]) == (["d", "b", "a"], pids["a"])
            assert now["b"] not in (None, pids["b"])
            await supervisor.call_tool("wake", server="a")
    assert [one.incarnation for one in results] == [1]


SERVERS, RATE = 10, 200


@pytest.mark.slow
@timely
async def test_a_reload_under_load_holds_up_nobody_else(tmp_path):
    """L18, Q12: 200 calls a second to ten servers, one of which is changed and takes two seconds to end: none of those
    to the other nine fails or waits for it. None is sent twice."""

    def specs(flavour):
        others = [lab(f"s{n}") for n in range(1, SERVERS)]
        return [lab("s0", env={"FLAVOUR": flavour}, flags={"ignore": "eof"}), *others]

    took, failed = [], []

    async def call(server, due):
        try:
            await supervisor.call_tool("sleep", {"seconds": 0}, server=server, resend="never")
        except NurseryError as error:
            failed.append((server, error))
        if server != "s0":
            took.append(trio.current_time() - due)

    async def load(nursery):
        due = trio.current_time()
        for server in itertools.cycle([f"s{n}" for n in range(SERVERS)]):
            due += 1 / RATE
            await trio.sleep_until(due)
            nursery.start_soon(call, server, due)

    async with supervised(*specs("sweet")) as supervisor:
        pids = {one.name: one.pid for one in supervisor.status()[1:]}
        async with trio.open_nursery() as calls, trio.open_nursery() as nursery:
            nursery.start_soon(load, calls)
            await trio.sleep(0.5)
            began = trio.current_time()
            event = await supervisor.reload(specs("sour"))
            reloaded = trio.current_time() - began
            await supervisor.wait_connected("s0")
            nursery.cancel_scope.cancel()
        assert (event.changed, len(event.untouched)) == (("s0",), SERVERS - 1)
        assert reloaded > 1.9
        assert len(took) > RATE
        assert [one for one in failed if one[0] != "s0"] == []
        assert {one.name: one.pid for one in supervisor.status()[1:]} == pids
        in_time(max(took), 1)


async def test_what_an_earlier_run_found_of_the_new_spec_is_known(tmp_path, journal):
    """Q23, L18: a server that dies of the probe is not probed again because a reload brings it."""
    state, dies = tmp_path / "state", lab(journal=journal, flags={"probe": "exit"})
    async with supervised(dies, state=state):
        assert journal.count("start") == 2
    async with supervised(lab(), state=state) as supervisor:
        await supervisor.reload([dies])
        await supervisor.wait_connected("lab")
    assert journal.count("start") == 3


async def test_a_broken_file_changes_nothing(tmp_path, monkeypatch):
    """Q12, K3, L18: named or found; one of its entries that cannot work is that server's error."""
    file = tmp_path / ".mcp.json"
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(60):
        async with open_supervisor(written(file, a={}, b={}), gate=60) as supervisor:
            before = [(one.name, one.pid, one.state) for one in supervisor.status()]
            for broken in ("{", '{"mcpServers": []}', ""):
                file.write_text(broken)
                with pytest.raises(ConfigError, match=r"\.mcp\.json"):
                    await supervisor.reload(load_config(file))
                with pytest.raises(ConfigError, match=r"\.mcp\.json"):
                    await supervisor.reload(discover_config(tmp_path, user=False))
            assert [(one.name, one.pid, one.state) for one in supervisor.status()] == before
            config = written(file, a={}, b={})
            (a, b) = config.servers
            await supervisor.reload(written(file, a={}, b={}, bad=None))
            await eventually(lambda: status_of(supervisor, "bad").state is ServerState.FAILED)
            assert "bad" in status_of(supervisor, "bad").error
            assert [(one.name, one.pid, one.state) for one in supervisor.status()][:2] == before
            await supervisor.reload(Config(servers=(b, a), files=(), warnings=()))
            assert {(one.name, one.pid, one.state) for one in supervisor.status()} == set(before)

"""The fixtures for tests of others, in runs of pytest of their own."""

import subprocess
import sys

import psutil
import pytest

pytest_plugins = ["pytester"]

PLAIN = """
import pytest
from mcp_nursery.supervisor import ServerSpec, StdioTransport, RestartPolicy
from mcp_nursery.supervisor.errors import CallTimeout, ConnectionLost

SOON = RestartPolicy(delays=[0.05] * 20)

def real(name="lab"):
    import sys
    return ServerSpec(name, StdioTransport(sys.executable, ["-I", "-S", {lab!r}]), policy=SOON)

def test_scripted_servers_are_killed_hang_and_talk_nonsense(mcp_supervisor, mcp_server, mcp_faults):
    servers = [mcp_server() for _ in range(3)]
    specs = [ServerSpec(f"s{{n}}", server.transport, policy=SOON) for n, server in enumerate(servers)]
    with mcp_supervisor(specs) as supervisor:
        with supervisor.events() as events:
            mcp_faults.kill(supervisor, "s0")
            assert any("s0" == getattr(e, "server", 0) and "waiting" == getattr(e, "new", 0) for e in events)
        mcp_faults.hang(supervisor, "s1")
        with pytest.raises(CallTimeout):
            supervisor.call_tool("mcp_s1_echo", timeout=0.2)
        mcp_faults.garbage(supervisor, "s2")
        assert supervisor.call_tool("mcp_s2_echo", timeout=30).server == "s2"
        supervisor.wait_connected("s0")
    assert [len(server.ends) for server in servers] == [2, 1, 1]

def test_processes_are_killed_and_hang(mcp_supervisor, mcp_faults):
    with mcp_supervisor([real("a"), real("b")]) as supervisor:
        with supervisor.events() as events:
            mcp_faults.kill(supervisor, "a")
            assert any("waiting" == getattr(each, "new", 0) for each in events)
        mcp_faults.hang(supervisor, "b")
        with pytest.raises(CallTimeout):
            supervisor.call_tool("mcp_b_pid", timeout=0.2)
        with pytest.raises(ValueError, match="scripted"):
            mcp_faults.garbage(supervisor, "b")

def test_a_server_behind_a_wrapper_hangs_and_is_killed(mcp_supervisor, mcp_faults):
    import sys
    wrapped = StdioTransport("/bin/sh", ["-c", '"$0" -I -S "$1"; true', sys.executable, {lab!r}])
    with mcp_supervisor([ServerSpec("a", wrapped, policy=SOON)]) as supervisor:
        supervisor.wait_connected("a")
        mcp_faults.hang(supervisor, "a")
        with pytest.raises(CallTimeout):
            supervisor.call_tool("mcp_a_pid", timeout=0.2)
        with supervisor.events() as events:
            mcp_faults.kill(supervisor, "a")
            assert any("waiting" == getattr(each, "new", 0) for each in events)

def test_a_mapping_of_names(mcp_supervisor, mcp_server):
    with mcp_supervisor({{"lab": mcp_server(), "other": real().transport}}) as supervisor:
        assert [status.name for status in supervisor.status()] == ["lab", "other"]

def test_asyncio(mcp_supervisor, mcp_server):
    import asyncio
    async def main():
        async with mcp_supervisor({{"lab": mcp_server()}}) as supervisor:
            assert (await supervisor.call_tool("mcp_lab_echo")).server == "lab"
            assert type(supervisor).__name__ == "ThreadSupervisor"
    asyncio.run(main())

def test_virtual_time_and_trio(mcp_virtual, mcp_supervisor, mcp_server):
    from mcp_nursery.supervisor.testing import Life
    async def main():
        server = mcp_server(Life(refuses="no"), Life())
        async with mcp_supervisor({{"lab": server}}) as supervisor:
            await supervisor.wait_connected("lab")
            assert server.starts == [0, 2]
            assert type(supervisor).__name__ == "Supervisor"
    mcp_virtual(main)

def test_slow_starts_are_over_when_a_test_goes_on(mcp_supervisor, mcp_server):
    from mcp_nursery.supervisor.testing import Life
    with mcp_supervisor({{"slow": mcp_server(Life(connects_after=1))}}) as supervisor:
        assert supervisor.status()[0].state == "connected"

def test_servers_that_do_not_run(mcp_supervisor, mcp_server, mcp_faults):
    from mcp_nursery.supervisor.testing import Life
    servers = {{"gone": StdioTransport("/nonexistent"), "scripted": mcp_server(Life(refuses="no"))}}
    with mcp_supervisor(servers, policy=RestartPolicy(delays=[])) as supervisor:
        with pytest.raises(ValueError, match="no process"):
            mcp_faults.kill(supervisor, "gone")
        for fault in (mcp_faults.kill, mcp_faults.hang, mcp_faults.garbage):
            with pytest.raises(ValueError, match="scripted has no incarnation now"):
                fault(supervisor, "scripted")
"""
FAILING = """
def test_fails(mcp_supervisor):
    import sys
    from mcp_nursery.supervisor import ServerSpec, StdioTransport
    supervisor = mcp_supervisor([ServerSpec("lab", StdioTransport(sys.executable, ["-I", "-S", {lab!r}]))]).__enter__()
    supervisor.wait_connected("lab")
    print("pid", supervisor.status()[0].pid)
    assert False
"""


@pytest.fixture
def run(pytester):
    from ..lab.processes import LAB

    def runs(text):
        pytester.makepyfile(text.format(lab=str(LAB)))
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=120)

    return runs


@pytest.mark.slow
def test_the_fixtures_do_what_they_say(run):
    run(PLAIN).assert_outcomes(passed=8)


@pytest.mark.slow
def test_a_test_that_fails_leaves_no_process(run):
    done = run(FAILING)
    done.assert_outcomes(failed=1)
    (pid,) = [int(line.split()[1]) for line in done.outlines if line.startswith("pid ")]
    assert not psutil.pid_exists(pid)


def test_nothing_is_loaded_before_a_test_asks():
    code = "import sys, mcp_nursery.supervisor.pytest_plugin; print({'trio', 'mcp', 'attrs'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

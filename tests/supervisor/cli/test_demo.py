import time

import psutil
import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import UnknownTool
from mcp_nursery.supervisor.cli import demo
from mcp_nursery.supervisor.events import StateChanged

from ...lab.command_line import process


@pytest.mark.slow
def test_it_ends_by_itself_and_leaves_no_process():
    ran = process("demo", start_new_session=True)
    seen = set()
    while ran.poll() is None:
        try:
            seen |= set(psutil.Process(ran.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    out, err = ran.communicate(timeout=60)
    assert (ran.returncode, err) == (0, "")
    assert "\x1b" not in out
    for words in (
        "mcp_local_add",
        "at once",
        "fragile: waiting",
        "fragile: connected",
        "the next call of fragile is held: restarting, attempt 2 of 4",
        "mcp_fragile_echo -> 'no gap' (fragile, incarnation 2",
    ):
        assert words in out
    assert len(seen) >= 2
    assert not [child for child in seen if child.is_running()]


@pytest.mark.slow
def test_as_json(cli):
    ran = cli("demo", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.json) == ["ok", "steps", "servers"]
    assert ran.json["ok"] is True
    steps = [step["step"] for step in ran.json["steps"]]
    assert steps[0] == "start"
    assert steps[-1] == "end"
    for step in ("call", "fan-out", "crash", "noticed", "held", "waiting", "connecting", "connected"):
        assert step in steps
    assert steps.index("crash") < steps.index("held") < steps.index("connecting")
    assert steps.index("crash") < steps.index("waiting") < steps.index("connecting") < steps.index("connected")
    servers = {server["name"]: server for server in ran.json["servers"]}
    assert {server["transport"] for server in servers.values()} == {"in-process", "stdio"}
    assert all(server["state"] == "connected" for server in servers.values())
    assert servers["fragile"]["incarnation"] == 2


@pytest.mark.slow
def test_on_a_terminal(tty):
    ran = tty("demo")
    assert ran.code == 0
    for words in ("SERVER", "local", "steady", "fragile", "waiting", "no process is left"):
        assert words in ran.out


@pytest.mark.slow
def test_in_words(cli):
    ran = cli("demo")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].endswith("no process is left")


@pytest.fixture
def fails(cli, monkeypatch):
    """Plays the demo with something gone wrong."""

    def play(name, replacement):
        monkeypatch.setattr(demo, name, replacement)
        ran = cli("demo", "--json")
        assert (ran.code, ran.err) == (3, "")
        assert ran.json["error"]["type"] == "DemoFailed"
        return ran.json["error"]["message"]

    return play


def test_too_slow(fails):
    assert "0.5 s" in fails("LIMIT", 0.5)


def test_another_error(fails):
    async def script(_story, _supervisor):
        raise UnknownTool("x")

    assert "'x'" in fails("_script", script)


@pytest.mark.slow
def test_a_process_left_behind(fails):
    assert "left behind" in fails("_exists", lambda _pid: True)


def test_another_exit_code(fails):
    assert "exit code 3" in fails("CRASH_CODE", 4)


class Told:
    def __init__(self):
        self.steps = []

    def show(self, *step):
        self.steps.append(step)


class FakeSupervisor:
    def __init__(self, result=None):
        self.result = result

    async def call_tool(self, name, arguments=None, *, server=None):
        return self.result


async def test_a_crash_that_is_not_noticed():
    with pytest.raises(demo.DemoFailed, match="not noticed"):
        await demo._crash(Told(), FakeSupervisor())


async def test_a_wrong_answer():
    class Result:
        is_error, full_text = False, "6"

    with pytest.raises(demo.DemoFailed, match="'6'"):
        await demo._expect(Told(), FakeSupervisor(Result()), "mcp_local_add", {}, "5")


class FailingSupervisor:
    async def gather(self, calls):
        await trio.lowlevel.checkpoint()
        return [UnknownTool("x") for _ in calls]


async def test_a_fan_out_that_fails_has_a_plain_error():
    with pytest.raises(UnknownTool):
        await demo._fan_out(Told(), FailingSupervisor())


def event(new, server=demo.FRAGILE):
    return StateChanged(
        server=server,
        incarnation=1,
        old=None,
        new=new,
        error="gone",
        attempt=1,
        max_attempts=4,
        retry_in=None,
        pid=None,
        at=0.0,
    )


async def test_a_server_that_does_not_come_back_is_followed_no_longer():
    """The call that is held for it has the error."""
    send, receive = trio.open_memory_channel(9)
    told = Told()
    with send, receive:
        for each in (event(ServerState.FAILED, server="steady"), event(ServerState.FAILED)):
            send.send_nowait(each)
        await demo._follow_restart(told, FakeSupervisor(), receive)
    assert [step for step, _ in told.steps] == ["failed"]


async def test_an_error_beside_the_drawing_is_not_wrapped():
    async def draw():
        await trio.sleep_forever()

    with pytest.raises(UnknownTool):
        async with demo.run_alongside(draw):
            raise UnknownTool("x")

"""Programs without Trio that end in any way: none of their servers is left, and the end is in time."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mcp_nursery.supervisor.portal.interrupts import interrupts_held

from ...lab.command_line import until
from ...lab.processes import LAB, is_alive

HEAD = """
import asyncio, os, signal, sys, threading
from mcp_nursery.supervisor import Approval, Call, ServerSpec, StdioTransport
from mcp_nursery.supervisor.portal import open_supervisor_thread
COMMAND = StdioTransport(sys.executable, ["-I", "-S", sys.argv[1]])
SERVERS = [ServerSpec(name, COMMAND) for name in ("one", "two", "three")]
def say(*pids):
    print(*pids, flush=True)
"""
PLAIN = (
    HEAD
    + """
with open_supervisor_thread(SERVERS) as supervisor:
    say(*(supervisor.call_tool("pid", server=each.name).full_text for each in SERVERS))
    {end}
"""
)
ASYNCIO = (
    HEAD
    + """
async def main():
    async with open_supervisor_thread(SERVERS) as supervisor:
        say(*[(await supervisor.call_tool("pid", server=each.name)).full_text for each in SERVERS])
        {end}
asyncio.run(main())
"""
)
NEVER_LEFT = (
    HEAD
    + """
supervisor = open_supervisor_thread(SERVERS).__enter__()
say(*(supervisor.call_tool("pid", server=each.name).full_text for each in SERVERS))
{end}
"""
)
LOOP_CLOSED = (
    HEAD
    + """
async def main():
    global supervisor
    supervisor = await open_supervisor_thread(SERVERS).__aenter__()
    say(*[(await supervisor.call_tool("pid", server=each.name)).full_text for each in SERVERS])
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""
)
CLOSED_IN_A_CALLBACK = (
    HEAD
    + """
async def approve(request):
    asked.set_result(None)
    await asyncio.Event().wait()
async def main():
    global supervisor, task, asked
    asked = asyncio.get_running_loop().create_future()
    supervisor = await open_supervisor_thread(SERVERS, approve=approve).__aenter__()
    say(*[(await supervisor.call_tool("pid", server=each.name)).full_text for each in SERVERS])
    tool = await supervisor.find_tool("echo", server="one")
    task = asyncio.ensure_future(tool({}))
    await asked
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
for each in asyncio.all_tasks(loop):
    each._log_destroy_pending = False
loop.close()
"""
)
EXITS_IN_A_CALLBACK = (
    HEAD
    + """
async def approve(request):
    sys.exit(3)
async def main():
    async with open_supervisor_thread(SERVERS, approve=approve) as supervisor:
        say(*[(await supervisor.call_tool("pid", server=each.name)).full_text for each in SERVERS])
        tool = await supervisor.find_tool("echo", server="one")
        await tool({})
asyncio.run(main())
"""
)
INTERRUPTED_OFTEN = (
    HEAD
    + """
signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C, at any moment of a call
def interrupted(supervisor):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            supervisor.call_tool("echo", {"text": "a"}, server="one", timeout=5)
    except KeyboardInterrupt:
        return supervisor.status()[0].calls.in_flight
with open_supervisor_thread(SERVERS) as supervisor:
    say(*(supervisor.call_tool("pid", server=each.name).full_text for each in SERVERS))
    assert not any(interrupted(supervisor) for _ in range(1_000))
"""
)
IN_A_CALL = 'supervisor.call_tool("sleep", {"seconds": 1000}, server="one", timeout=None)'
SLEEPS = '[Call("sleep", {"seconds": 1000}, server=each.name, timeout=None) for each in SERVERS]'
IN_A_STREAM = f"with supervisor.fan_out({SLEEPS}) as outcomes: next(outcomes)"
IN_A_STREAM_IN_LOOP = f"async with supervisor.fan_out({SLEEPS}) as outcomes: await anext(outcomes)"
QUIET = "import warnings; warnings.simplefilter('ignore', DeprecationWarning); "
"""From 3.12 on Python warns of `fork` in a process with threads, whatever the child does."""
FORKED = f"{QUIET}child = os.fork(); child or sys.exit(0); os.waitpid(child, 0)"
FORKED_IN_LOOP = f"{QUIET}child = os.fork(); child or os._exit(0); os.waitpid(child, 0)"
"""A child that goes on in a loop of asyncio takes its parent's loop apart, with or without a supervisor."""
SIGINT = -signal.SIGINT

PROGRAMS = {
    "plain": (PLAIN, "pass", 0),
    "plain, an exception": (PLAIN, "1 / 0", 1),
    "plain, sys.exit": (PLAIN, "sys.exit(3)", 3),
    "plain, Ctrl-C": (PLAIN, "threading.Event().wait()", SIGINT),
    "plain, Ctrl-C in a call": (PLAIN, IN_A_CALL, SIGINT),
    "plain, Ctrl-C in a stream": (PLAIN, IN_A_STREAM, SIGINT),
    "plain, Ctrl-C a thousand times": (INTERRUPTED_OFTEN, "", 0),
    "plain, forked": (PLAIN, FORKED, 0),
    "asyncio": (ASYNCIO, "pass", 0),
    "asyncio, an exception": (ASYNCIO, "1 / 0", 1),
    "asyncio, sys.exit": (ASYNCIO, "sys.exit(3)", 3),
    "asyncio, Ctrl-C": (ASYNCIO, "await asyncio.Event().wait()", SIGINT),
    "asyncio, Ctrl-C in a call": (ASYNCIO, f"await {IN_A_CALL}", SIGINT),
    "asyncio, Ctrl-C in a stream": (ASYNCIO, IN_A_STREAM_IN_LOOP, SIGINT),
    "asyncio, sys.exit in a callback": (EXITS_IN_A_CALLBACK, "", 3),
    "asyncio, forked": (ASYNCIO, FORKED_IN_LOOP, 0),
    "never left": (NEVER_LEFT, "pass", 0),
    "never left, an exception": (NEVER_LEFT, "1 / 0", 1),
    "never left, Ctrl-C in a call": (NEVER_LEFT, IN_A_CALL, SIGINT),
    "the loop is closed": (LOOP_CLOSED, "", 0),
    "the loop is closed in a callback": (CLOSED_IN_A_CALLBACK, "", 0),
}
OF_A_PUSH = {
    "plain, Ctrl-C a thousand times",
    "plain, Ctrl-C in a call",
    "plain, forked",
    "asyncio, Ctrl-C in a call",
    "asyncio, an exception",
    "asyncio, sys.exit in a callback",
    "never left, Ctrl-C in a call",
    "the loop is closed",
}
"""The hardest way to each end; the others are for the night."""
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "987"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
open(sys.argv[1], "w").write(str(child.pid))
lab = open(sys.argv[2]).read()
del sys.argv[1:]
exec(lab)
while True:
    signal.pause()
"""
"""A server that ends only when it is killed, and has a child."""
IMPATIENT = (
    HEAD
    + """
script, pids = sys.argv[2:]
stubborn = StdioTransport(sys.executable, ["-I", "-S", script, pids, sys.argv[1]])
with open_supervisor_thread([ServerSpec("one", stubborn)]) as supervisor:
    try:
        say(supervisor.call_tool("pid", server="one").full_text)
        threading.Event().wait()
    finally:
        say("leaving")
"""
)
WITHIN = 15
"""Seconds: the five of a supervisor, and those of an interpreter on a busy machine."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "end", "status"),
    [
        pytest.param(*it, id=name, marks=[] if name in OF_A_PUSH else [pytest.mark.night])
        for name, it in PROGRAMS.items()
    ],
)
def test_nothing_is_left(program, end, status, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(program.replace("{end}", end))
    command = [sys.executable, script, LAB]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(each) for each in process.stdout.readline().split()]
        assert len(pids) == 3
        if status == SIGINT:
            process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - began < WITHIN
    assert process.returncode == status, said
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    if not status:
        assert said == ""


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, 4])
def test_who_presses_ctrl_c_again_leaves_nothing_behind(times, tmp_path):
    script, server, child = tmp_path / "program.py", tmp_path / "server.py", tmp_path / "child"
    script.write_text(IMPATIENT)
    server.write_text(STUBBORN)
    with subprocess.Popen(
        [sys.executable, script, LAB, server, child], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()), int(child.read_text())]
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "leaving\n"
        for _ in range(times - 1):
            process.send_signal(signal.SIGINT)
            until(lambda: "ShdPnd:\t0000000000000000" in Path(f"/proc/{process.pid}/status").read_text())
        process.communicate(timeout=60)
    assert process.returncode == SIGINT
    assert [pid for pid in pids if is_alive(pid)] == []


def test_ctrl_c_is_held_back_and_not_lost():
    reached = []

    def interrupted():
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            reached.append(1)
            raise LookupError

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    assert reached == [1]
    assert isinstance(caught.value.__context__, LookupError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

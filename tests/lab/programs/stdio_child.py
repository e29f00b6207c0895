"""A child process that behaves as its first argument says. Prints what the test waits for, one line each."""

import os
import select
import signal
import subprocess
import sys
import time


def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def await_line():
    """Read one line and nothing behind it."""
    while os.read(0, 1) not in (b"\n", b""):
        pass


def await_eof():
    while os.read(0, 65536):
        pass


def for_ever():
    while True:
        signal.pause()


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def relative(*behaviour, **kwargs):
    """Start this file again as a child of this process."""
    child = subprocess.Popen([sys.executable, "-I", "-S", __file__, *behaviour], **kwargs)
    child.returncode = 0  # its end is not ours to see
    return child


def quiet_relative(behaviour, place):
    """A child that holds none of our pipes, and has got ready."""
    apart = {
        "in_group": {"env": {}},
        "in_session": {"env": {}, "preexec_fn": os.setpgrp},
        "elsewhere": {"start_new_session": True},
        "unmarked": {"env": {}, "start_new_session": True},
    }[place]
    child = relative(behaviour, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **apart)
    assert child.stdout.readline() == b"ready\n"
    return child


def echo():
    say("ready")
    for line in sys.stdin.buffer:
        write_all(1, line)


def echo_slowly():
    say("ready")
    while data := os.read(0, 3001):
        time.sleep(0.0005)
        write_all(1, data)


def no_input():
    os.close(0)
    sleeps()


def no_output():
    say("ready")
    await_line()
    os.close(1)
    for_ever()


def leaves(code):
    say("ready")
    await_line()
    os._exit(int(code))


def leaves_unheard(code):
    say("ready")
    select.select([0], [], [])
    os._exit(int(code))


def says_and_leaves(count):
    write_all(1, b"".join(b"%d\n" % n for n in range(int(count))))


def leaves_holder(behaviour, *, stdin=subprocess.DEVNULL):
    """Exit on a line, and leave a child that holds stdout."""
    child = relative(behaviour, stdin=stdin)
    say(child.pid)
    select.select([0], [], [])
    os._exit(5)


def leaves_reader():
    leaves_holder("sleeps", stdin=None)


def sleeps():
    say("ready")
    for_ever()


def babbler():
    while True:
        write_all(1, b"babble\n" * 1000)


def complains(size):
    say("ready")
    await_line()
    write_all(2, b"x" * 99 + b"\n" + b"noise\n" * (int(size) // 6))
    write_all(2, b"".join(b"last %d\n" % n for n in range(20)))
    say("done")
    await_line()
    os._exit(1)


def line_of(size):
    say("first")
    write_all(1, b"x" * int(size) + b"\nlast\n")
    await_eof()


def raw(text):
    write_all(1, bytes.fromhex(text))
    await_eof()


def polite():
    say("ready")
    await_eof()


def ignores_eof():
    say("ready")
    await_eof()
    for_ever()


def ignores_all():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ignores_eof()


def counts_terms():
    """Clean up for 0.2 s after the first SIGTERM, and tell on stderr of every one."""
    signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"term\n"))
    say("ready")
    signal.pause()
    end = time.monotonic() + 0.2
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def outlives_terms():
    """Stay, and tell on stderr of every SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"term\n"))
    say("ready")
    for_ever()


def forks_at_term(behaviour):
    """On SIGTERM, leave a child."""

    def fork(*_):
        os.write(2, b"%d" % quiet_relative(behaviour, "in_group").pid)
        os._exit(0)

    signal.signal(signal.SIGTERM, fork)
    say("ready")
    for_ever()


def parent(behaviour, place):
    """Polite itself, with a child that is as told."""
    say(quiet_relative(behaviour, place).pid)
    await_eof()


def stubborn_parent(behaviour, place):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(quiet_relative(behaviour, place).pid)
    for_ever()


def parent_of_daemon(behaviour):
    """Polite itself; what it has started is gone, and left a process of which nothing shows where it comes from."""
    apart = {"env": {}, "start_new_session": True}
    helper = relative("daemonises", behaviour, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **apart)
    say(helper.stdout.readline().decode().strip())
    await_eof()


def daemonises(behaviour):
    say(quiet_relative(behaviour, "unmarked").pid)


def talks_at_end():
    """Exit on the end of input, once all it had to say is out."""
    say("ready")
    await_line()
    write_all(1, (b"y" * 99 + b"\n") * 20_000)
    await_eof()


def dies_leaving(behaviour, place):
    say(quiet_relative(behaviour, place).pid)
    await_line()
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

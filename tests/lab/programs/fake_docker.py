"""A docker client and the daemon behind it, as far as `run` and `rm` of one go. First argument: a folder for its state.

    calls           a line of JSON for every call: its arguments and its environment
    NAME            while a container runs: the pid of its process
    rm_hangs, rm_fails, old
                    made by a test: `rm` never ends; fails; fails if there is no such container, as old clients do
    mcp_hangs, no_mcp, info_hangs, no_daemon
                    made by a test: `mcp --help` or `info` never ends, or fails

A container is no descendant that anybody could find: it has a session of its own, no variables but those it was
given, and none of its client's limits. It outlives its client, and its input ends with the client.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

STATE = Path(sys.argv[1])
LAB = Path(__file__).with_name("nursery_lab.py")


def for_ever():
    while True:
        signal.pause()


def environment():
    with open("/proc/self/environ", "rb") as file:
        return dict(part.split("=", 1) for part in file.read().decode().split("\0") if part)


def fail(code, text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    os._exit(code)


def run(arguments):
    given, names = {}, []
    while (argument := arguments.pop(0)) != "--":
        option, _, value = argument.partition("=")
        given[option] = value
        names += [value] if option == "--env" else []
    image, *rest = arguments
    if set(given) - {"-i", "--rm", "--init", "--name", "--env"}:
        fail(125, "docker: unknown flag\nSee 'docker run --help'.")
    if image != "lab":
        problem = f"docker: Error response from daemon: pull access denied for {image}, repository does not exist."
        fail(125, f"{problem}\nSee 'docker run --help'.")
    contain(given["--name"], rest, {name: os.environ[name] for name in names})


def contain(name, arguments, variables):
    """Pass on input, output, signals and the exit code of a container, which the daemon starts."""
    (stdin, feeding), (out, stdout), (err, stderr), (told, telling) = (os.pipe() for _ in range(4))
    start_daemon([stdin, stdout, stderr, telling], arguments, variables)
    report = os.fdopen(told)
    container = int(report.readline())
    started = STATE / f"started-{name}"
    started.write_text(str(container))
    started.rename(STATE / name)  # whole, or not there
    signal.signal(signal.SIGTERM, lambda *_: os.kill(container, signal.SIGTERM))  # passed on, and no more
    threading.Thread(target=feed, args=[feeding], daemon=True).start()
    readers = [threading.Thread(target=copy, args=[source, target]) for source, target in ((out, 1), (err, 2))]
    for reader in readers:
        reader.start()
    code = int(report.readline())
    for reader in readers:
        reader.join()
    (STATE / name).unlink(missing_ok=True)
    os._exit(code if code >= 0 else 128 - code)


def start_daemon(pipes, arguments, variables):
    """Start a process that is nobody's descendant, with nothing of its client but these pipes."""
    if client := os.fork():
        os.waitpid(client, 0)
        for pipe in pipes:
            os.close(pipe)
        return
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)
    if sys.platform == "linux":
        drop_limits()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for pipe in pipes:
        os.set_inheritable(pipe, True)
    daemon = [sys.executable, "-I", "-S", __file__, str(STATE), "daemon", *map(str, pipes), *arguments]
    os.execve(sys.executable, daemon, variables)


def drop_limits():
    """A daemon's children inherit no limit from its clients."""
    locks = 10  # RLIMIT_LOCKS
    _, hard = resource.getrlimit(locks)
    resource.setrlimit(locks, (hard, hard))


def run_daemon(arguments):
    """Run one container, and report its number and its exit code."""
    stdin, stdout, stderr, telling = map(int, arguments[:4])
    command = [sys.executable, "-I", "-S", LAB, *arguments[4:]]
    pipes = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    container = subprocess.Popen(command, env=environment(), start_new_session=True, **pipes)
    for pipe in (stdin, stdout, stderr):
        os.close(pipe)
    os.write(telling, b"%d\n" % container.pid)
    code = container.wait()
    with suppress(BrokenPipeError):  # its client has gone
        os.write(telling, b"%d\n" % code)


def feed(stdin):
    while data := os.read(0, 65536):
        while data:
            data = data[os.write(stdin, data) :]
    os.close(stdin)


def copy(source, target):
    while data := os.read(source, 65536):
        while data:
            data = data[os.write(target, data) :]


def remove(arguments):
    _, name = arguments
    if (STATE / "rm_hangs").exists():
        for_ever()
    if (STATE / "rm_fails").exists():
        fail(1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    if not (STATE / name).exists():
        fail(int((STATE / "old").exists()), f"Error response from daemon: No such container: {name}")
    container = int((STATE / name).read_text())
    death = os.pidfd_open(container)
    os.kill(container, signal.SIGKILL)
    select.select([death], [], [])  # Docker answers when the container has ended
    (STATE / name).unlink(missing_ok=True)
    sys.stdout.write(name + "\n")


def kill(arguments):
    (name,) = arguments
    if not (STATE / name).exists():
        fail(1, f"Error response from daemon: cannot kill container: {name}: container is not running")
    remove(["--force", name])


def gateway(arguments):
    """The gateway itself is the lab."""
    if (STATE / "mcp_hangs").exists():
        for_ever()
    if (STATE / "no_mcp").exists():
        fail(1, "docker: 'mcp' is not a docker command.\nSee 'docker --help'")
    if arguments == ["--help"]:
        sys.stdout.write("Usage:  docker mcp [OPTIONS]\n\nAvailable Commands:\n  gateway  Manage it\n")
    elif arguments[:2] == ["gateway", "run"]:
        os.execv(sys.executable, [sys.executable, "-I", "-S", str(LAB), *arguments[2:]])


def info(_arguments):
    if (STATE / "info_hangs").exists():
        for_ever()
    if (STATE / "no_daemon").exists():
        fail(1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    sys.stdout.write("28.3.2\n")


if __name__ == "__main__":
    _, _, command, *arguments = sys.argv
    if command == "daemon":
        run_daemon(arguments)
        sys.exit()
    with open(STATE / "calls", "a") as file:
        file.write(json.dumps({"argv": [command, *arguments], "env": environment()}) + "\n")
    {"run": run, "rm": remove, "kill": kill, "mcp": gateway, "info": info}[command](arguments)

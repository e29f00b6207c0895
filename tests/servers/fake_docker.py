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
import signal
import subprocess
import sys
import threading
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
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-I", "-S", LAB, *arguments]
    options = {"start_new_session": True, "preexec_fn": drop_limits if sys.platform == "linux" else None}
    container = subprocess.Popen(command, env=variables, bufsize=0, **options, **pipes)
    (STATE / name).write_text(str(container.pid))
    signal.signal(signal.SIGTERM, lambda *_: container.terminate())  # passed on, and no more
    threading.Thread(target=feed, args=[container.stdin], daemon=True).start()
    readers = [
        threading.Thread(target=copy, args=[source, target])
        for source, target in ((container.stdout, 1), (container.stderr, 2))
    ]
    for reader in readers:
        reader.start()
    code = container.wait()
    for reader in readers:
        reader.join()
    (STATE / name).unlink(missing_ok=True)
    os._exit(code if code >= 0 else 128 - code)


def drop_limits():
    """A daemon's children inherit no limit from its clients."""
    locks = 10  # RLIMIT_LOCKS
    _, hard = resource.getrlimit(locks)
    resource.setrlimit(locks, (hard, hard))


def feed(stdin):
    while data := os.read(0, 65536):
        stdin.write(data)
    stdin.close()


def copy(source, target):
    while data := source.read(65536):
        os.write(target, data)


def remove(arguments):
    _, name = arguments
    if (STATE / "rm_hangs").exists():
        for_ever()
    if (STATE / "rm_fails").exists():
        fail(1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    if not (STATE / name).exists():
        fail(int((STATE / "old").exists()), f"Error response from daemon: No such container: {name}")
    os.kill(int((STATE / name).read_text()), signal.SIGKILL)
    (STATE / name).unlink(missing_ok=True)
    sys.stdout.write(name + "\n")


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
    with open(STATE / "calls", "a") as file:
        file.write(json.dumps({"argv": [command, *arguments], "env": environment()}) + "\n")
    {"run": run, "rm": remove, "mcp": gateway, "info": info}[command](arguments)

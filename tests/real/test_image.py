"""The image of `deploy/Containerfile`, run as the Deployment of `deploy/kubernetes` does, without an engine and without
a registry; and process 1 of a container.

The base is this machine's own root file system, under an overlay, with this Python where images of Python have theirs.
The steps, the user, the command and its arguments are read from the files.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import httpx2
import pytest
import trio
import yaml

from mcp_nursery.supervisor.gateway.auth.bearer_tokens import add_token

from ..lab import PROGRAMS
from ..lab.command_line import COMMAND, until
from ..lab.raw_clients import NEW, HttpClient, request
from ..lab.remote import free_port

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2]
DEPLOY = SOURCE / "deploy"
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


@cache
def problem():
    """The reason why there are no namespaces here; None if there are."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return "namespaces need root and unshare"
    tried = subprocess.run([*NAMESPACE, "--mount-proc", "true"], capture_output=True, text=True, check=False)
    return (tried.stderr or "unshare failed") if tried.returncode else None


@pytest.fixture(autouse=True)
def _namespaces():
    if problem() is not None:
        pytest.skip(problem())


@pytest.fixture
def left(tmp_path):
    """A server that leaves a process behind, and where that one's id stands, and what ends it."""
    end = tmp_path / "end"
    os.mkfifo(end)
    flags = {"left": tmp_path / "left", "end": end, "journal": tmp_path / "journal"}
    return [str(PROGRAMS / "leaves_orphans.py"), *(f"{key}={value}" for key, value in flags.items())]


# -- process 1 --------------------------------------------------------------------------------------------------------


@contextmanager
def as_process_1(*arguments, **options):
    process = subprocess.Popen([*NAMESPACE, *COMMAND, *map(str, arguments)], text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_process_1_reaps_what_a_server_leaves_behind(tmp_path, left):
    serving = ["serve", "--http", "127.0.0.1:0", "--", sys.executable, *left]
    with as_process_1(*serving, stderr=subprocess.PIPE) as unshare:
        assert unshare.stderr.readline().startswith("serving on ")
        until((tmp_path / "left").exists)
        (first,) = children(unshare.pid)
        until(lambda: len(children(first)) == 2)  # the command, and what was left behind
        (tmp_path / "end").write_text("now")
        until(lambda: len(children(first)) == 1)
        os.kill(first, signal.SIGTERM)
        assert unshare.wait(60) == 0


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["dance"], 2)])
def test_process_1_has_the_exit_code_of_the_command(arguments, code):
    with as_process_1(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as unshare:
        assert unshare.wait(60) == code


def test_process_1_ends_when_the_command_is_killed(left):
    serving = ["serve", "--http", "127.0.0.1:0", "--", sys.executable, *left]
    with as_process_1(*serving, stderr=subprocess.PIPE) as unshare:
        assert unshare.stderr.readline().startswith("serving on ")
        (first,) = children(unshare.pid)
        os.kill(children(first)[0], signal.SIGKILL)
        assert unshare.wait(60) == 128 + signal.SIGKILL


# -- the image --------------------------------------------------------------------------------------------------------


def instructions(name):
    """The texts of these instructions, lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(f"{name} ")]


def copied():
    """The parts of this tree that an image is made of."""
    lines = (SOURCE / ".containerignore").read_text().splitlines()
    assert lines[0] == "*"
    return [str(SOURCE / line.removeprefix("!")) for line in lines[1:]]


def script(folder, root, command):
    """Make a root file system in mount and PID namespaces, and go on in it as process 1."""
    at, user = shlex.quote(str(root)), instructions("USER")[-1]
    base = (
        f"env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin HOME=/root LD_LIBRARY_PATH=/usr/local/lib {pip_settings()}"
    )
    inside = f"cd {instructions('WORKDIR')[-1]} && exec {shlex.join(command)}"
    return "\n".join(
        [
            "set -e",
            "mount --make-rprivate /",
            f"mkdir {folder}/over && mount -t tmpfs tmpfs {folder}/over && mkdir {folder}/over/up {folder}/over/work",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={folder}/over/up,workdir={folder}/over/work {at}",
            f"mount -o bind,ro {sys.base_prefix} {at}/usr/local",
            f"mount -t proc proc {at}/proc",
            f"mount --bind /dev {at}/dev",
            f"mkdir {at}/src && cp -r {shlex.join(copied())} {at}/src",
            *(f"chroot {at} {base} sh -c {shlex.quote(run)} >&2" for run in instructions("RUN")),
            f"mkdir -p {at}/etc/mcp-nursery {at}/run/secrets",
            f"cp {folder}/servers.json {at}/etc/mcp-nursery/servers.json",
            f"cp -a {folder}/secrets {at}/run/secrets/mcp-nursery",
            f"mount -o remount,ro {at}",
            f"mount -t tmpfs -o mode=1777 tmpfs {at}/tmp",
            f"mount -t tmpfs -o uid=10001 tmpfs {at}/home/mcp",
            f"exec chroot --userspec={user} {at} env -i {' '.join(instructions('ENV'))} LD_LIBRARY_PATH=/usr/local/lib "
            f"sh -c {shlex.quote(inside)}",
        ]
    )


def facts_of(pid):
    """The lines of a process's status."""
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


@contextmanager
def running(folder, command):
    """The image with this command: the process that holds its namespaces."""
    (folder / "root").mkdir()
    with (folder / "err").open("w") as err:
        made = [*NAMESPACE, "--mount", "sh", "-c", script(folder, folder / "root", command)]
        process = subprocess.Popen(made, stderr=err, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def pip_settings():
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("CA_BUNDLE")}
    return shlex.join(f"{name}={value}" for name, value in kept.items())


def secrets(folder):
    """A volume of secrets as Kubernetes mounts one: each file is a link. Returns a token."""
    data = folder / "secrets" / "..2026"
    data.mkdir(parents=True)
    token = add_token(data / "tokens.toml", "ann")
    key = subprocess.run([*COMMAND, "key", "new"], capture_output=True, text=True, check=True)
    (data / "replica.key").write_text(key.stdout)
    (folder / "secrets" / "..data").symlink_to("..2026")
    for path in data.iterdir():
        path.chmod(0o440)
        os.chown(path, 0, 10001)
        (folder / "secrets" / path.name).symlink_to(Path("..data") / path.name)
    return token


async def test_the_image_runs_as_its_deployment_says(tmp_path):
    port = free_port()
    said = (tmp_path / "err").read_text
    token = secrets(tmp_path)
    lab = {"command": "/usr/local/bin/python3", "args": ["-I", "-S", str(PROGRAMS / "nursery_lab.py")]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"lab": lab}}))
    pod = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    replaced = {
        "--http=0.0.0.0:8000": f"--http=127.0.0.1:{port}",
        "--lame-duck=15": "--lame-duck=1",
        "--allowed-host=$(POD_IP)": "--allowed-host=10.1.2.3",
    }
    assert replaced.keys() <= set(container["args"])
    command = [*json.loads(instructions("ENTRYPOINT")[-1]), *(replaced.get(each, each) for each in container["args"])]
    with running(tmp_path, command) as process:
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(timeout=60) as http:
            with trio.fail_after(240):
                while await status(http, f"{url}/readyz") != 200:
                    assert process.poll() is None, said()
                    await trio.sleep(0.1)
            (first,) = children(process.pid)
            facts = facts_of(first)
            assert facts["Uid"].split() == ["10001"] * 4
            assert facts["NSpid"].split()[-1] == "1"
            http.headers["host"] = "mcp.example.com"
            frame = request(NEW, 1, "tools/call", name="pid", arguments={})
            headers = HttpClient(http, url, NEW).headers(frame)
            refused = await http.post(f"{url}/mcp/lab", content=frame, headers=headers)
            assert refused.status_code == 401
            headers["authorization"] = f"Bearer {token}"
            answer = await http.post(f"{url}/mcp/lab", content=frame, headers=headers)
            assert answer.json()["result"]["content"][0]["type"] == "text", answer.text
            http.headers["host"] = "10.1.2.3:8000"
            scraped = await http.get(f"{url}/metrics", headers={"authorization": f"Bearer {token}"})
            assert scraped.status_code == 200, scraped.text
        check = instructions("HEALTHCHECK")[-1].split("CMD ", 1)[1].replace(":8000/", f":{port}/")
        name, *arguments = json.loads(check)
        assert name == "python"
        await trio.run_process([sys.executable, *arguments])
        os.kill(first, signal.SIGTERM)
        with trio.fail_after(60):
            assert await trio.to_thread.run_sync(process.wait) == 0, said()


async def status(http, url):
    try:
        return (await http.get(url)).status_code
    except httpx2.TransportError:
        return None

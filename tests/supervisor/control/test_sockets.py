"""Whose the socket is, and what is left of hosts that are gone."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import trio

from mcp_nursery.supervisor import ConfigError, open_supervisor
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.sockets import connect, listening, names_of_hosts, path_of

NOBODY = 65534


def leave_behind(folder, name):
    """What a host leaves that was killed: a name, and nobody who listens."""
    with listening() as listener, socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead"))
        path = path_of(name)
        os.rename(folder / "dead", path)
        assert listener.name == str(os.getpid())
    return path


def test_it_is_this_users_alone(folder):
    """K8: folder 0700, socket 0600, and nothing is left."""
    with listening() as listener:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (path,) = folder.iterdir()
        assert path == path_of(listener.name)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert names_of_hosts() == [str(os.getpid())]
    assert list(folder.iterdir()) == []
    assert names_of_hosts() == []


def test_several_in_one_process(folder):
    with listening(), listening() as second, listening() as third:
        assert [second.name, third.name] == [f"{os.getpid()}.2", f"{os.getpid()}.3"]
        assert names_of_hosts() == [str(os.getpid()), second.name, third.name]


def test_what_a_killed_host_left_is_removed(folder):
    path = leave_behind(folder, "7")
    assert path.exists()
    assert names_of_hosts() == []
    assert not path.exists()


def test_the_name_of_a_killed_host_is_free_again(folder):
    leave_behind(folder, str(os.getpid()))
    with listening() as listener:
        assert listener.name == str(os.getpid())
        connect(path_of(listener.name)).close()


def test_sockets_of_other_machines_are_left_alone(folder):
    """A home folder may be that of several."""
    path = leave_behind(folder, "7")
    other = path.rename(folder / "7@01234567.sock")
    assert names_of_hosts() == []
    assert other.exists()


def test_hosts_come_in_the_order_of_their_numbers(folder):
    with listening():
        for name in ("100.2", "20", "100", "100.10"):
            os.link(path_of(str(os.getpid())), path_of(name))
        (folder / "x@sock").touch()
        names = names_of_hosts()
        for name in ("100.2", "20", "100", "100.10"):
            path_of(name).unlink()
    assert [name for name in names if name != str(os.getpid())] == ["20", "100", "100.2", "100.10"]


def test_a_path_of_any_length(tmp_path, monkeypatch):
    """A path of 108 bytes or more is no address."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("x" * 120)))
    with listening() as listener:
        connect(path_of(listener.name)).close()
        assert names_of_hosts() == [listener.name]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_get_into_is_refused(folder, mode):
    folder.mkdir(parents=True)
    folder.chmod(mode)
    told = r"field 'control': no control socket in .*: other users can access it; chmod 700"
    with pytest.raises(ConfigError, match=told), listening():
        pass
    with pytest.raises(OSError, match="other users can access it"):
        names_of_hosts()
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("as_root")
def test_a_folder_of_somebody_else_is_refused(folder):
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to another user"), listening():
        pass
    with pytest.raises(OSError, match="not a folder of this user"):
        names_of_hosts()


def test_a_link_is_no_folder(folder, tmp_path):
    folder.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a folder of this user"), listening():
        pass


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"no control socket in .*: Not a directory"), listening():
        pass


def away(imports, code):
    """A program of another user, with what it needs loaded before it is one."""
    become = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    return "\n".join([imports, become, textwrap.dedent(code)])


def as_nobody(imports, code, *args):
    """What a process of another user prints."""
    command = [sys.executable, "-c", away(imports, code), *map(str, args)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # it writes nothing for us
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return done.stdout + done.stderr


def let_in(tmp_path, path):
    """Open all folders on the way that are this test's, and the socket: what a careless user might do."""
    for each in (path, *path.parents):
        if each.is_relative_to(tmp_path):
            each.chmod(0o777)


@pytest.fixture
def open_tmp_path(tmp_path):
    """A folder that others get to: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


CONNECT = """
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(sys.argv[1])
            sock.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "status"}\\n')
            print(sock.recv(100))
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.mark.usefixtures("as_root")
async def test_another_user_gets_nothing(open_tmp_path, monkeypatch):
    """By the modes of folder and socket, and were they open, by who the system says that it is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(open_tmp_path))
    (open_tmp_path / "mcp-nursery").mkdir(mode=0o755)
    async with open_supervisor([], control=True):
        path = path_of(str(os.getpid()))

        async def told():
            return await trio.to_thread.run_sync(as_nobody, "import socket, sys", CONNECT, path)

        assert await told() == "PermissionError\n"
        path.chmod(0o777)
        assert await told() == "PermissionError\n"
        let_in(open_tmp_path, path)
        assert await told() in ("b''\n", "ConnectionResetError\n", "BrokenPipeError\n")
        path.parent.chmod(0o700)
        assert (await ControlClient(str(os.getpid())).info()).name == str(os.getpid())


@pytest.mark.usefixtures("as_root")
def test_a_socket_of_another_user_is_not_talked_to(open_tmp_path):
    """Whoever could put a socket there would be told nothing."""
    open_tmp_path.chmod(0o777)
    path = open_tmp_path / "foreign.sock"
    listens = "import socket, sys"
    code = """
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(sys.argv[1])
        sock.listen()
        print(flush=True)
        sys.stdin.read()
    """
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", away(listens, code), path], **streams) as foreign:
        foreign.stdout.readline()
        with pytest.raises(PermissionError, match="another user listens there"):
            connect(path)
        foreign.stdin.close()

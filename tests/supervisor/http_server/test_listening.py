"""A socket that is left to another process. Real sockets."""

import os
import socket
from contextlib import ExitStack, closing
from functools import partial

import pytest
import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.http_server import listening as module
from mcp_nursery.supervisor.http_server.listening import bind_socket, inherited_socket, listen
from mcp_nursery.supervisor.http_server.server import HttpServer

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def application(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def answer(stream):
    got = b""
    while not got.endswith(b"ok"):
        more = await stream.receive_some()
        assert more, got
        got += more
    return got


@pytest.fixture
def connect():
    """Connects so many times."""
    with ExitStack() as connections:

        def connect(address, count):
            return [connections.enter_context(socket.create_connection(address, 10)) for _ in range(count)]

        yield connect


def stream_of(connection):
    return trio.SocketStream(trio.socket.from_stdlib_socket(connection))


def queued(listening):
    """How many connections wait on it."""
    listening.setblocking(False)
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@pytest.mark.parametrize("most", [1, 9], ids=["one at a time", "all at once"])
async def test_all_that_wait_are_served_before_a_shared_socket_is_closed(most, connect):
    """And whoever comes from then on, comes to the other."""
    former = bind_socket("127.0.0.1", 0, reuse_port=True)
    address = former.getsockname()
    with closing(bind_socket(*address, reuse_port=True)) as successor, trio.fail_after(30):
        listen(former)
        early = [stream_of(each) for each in connect(address, 8)]  # the other has not begun
        for stream in early:
            await stream.send_all(GET)
        listen(successor)
        server = HttpServer(application, None, most)
        server.leave()
        async with trio.open_nursery() as nursery:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(former))
            nursery.start_soon(server.accept, listener, nursery)
            await server.leave_socket()
            assert former.fileno() < 0
            for stream in early:
                assert b"connection: close" in await answer(stream)
        connect(address, 20)
        assert queued(successor) == 20


@pytest.mark.parametrize("reuse_port", [False, True], ids=["plain", "ReusePort=yes"])
async def test_a_socket_that_was_passed_on_is_no_more_taken_from_but_not_closed_for_others(connect, reuse_port):
    """The next process, which has the same socket, takes all connections that come after that."""
    given = socket.create_server(("127.0.0.1", 0), reuse_port=reuse_port)
    address = given.getsockname()
    with closing(given), trio.fail_after(30):
        server = HttpServer(application, None, 9)
        async with trio.open_nursery() as nursery:
            own = trio.SocketListener(trio.socket.from_stdlib_socket(given.dup()))
            nursery.start_soon(server.accept, own, nursery)
            early = stream_of(*connect(address, 1))
            await early.send_all(GET)
            assert b"200 OK" in await answer(early)
            await server.leave_socket(passed_on=True)
            await early.aclose()
        connect(address, 3)
        assert queued(given) == 3


# -- what was passed on -----------------------------------------------------------------------------------------------

OWN = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}


def passed_on(monkeypatch, given, environment, host="127.0.0.1", port=None):
    """What is found where a copy of this was passed on."""
    copy = os.dup(given.fileno())
    monkeypatch.setattr(module, "_FIRST_INHERITED", copy)
    return inherited_socket(environment, host, given.getsockname()[1] if port is None else port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_socket_that_was_passed_on_is_served(monkeypatch, host):
    environment = OWN | {"LISTEN_FDNAMES": "http", "PATH": "/bin"}
    with socket.create_server(("127.0.0.1", 0)) as given, passed_on(monkeypatch, given, environment, host) as found:
        assert found.getsockname() == given.getsockname()
        assert not found.get_inheritable()
    assert environment == {"PATH": "/bin"}  # nothing that is started takes it for its own


@pytest.mark.parametrize("environment", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}])
def test_what_was_meant_for_another_process_is_no_ones(environment):
    assert inherited_socket(environment, "127.0.0.1", 1) is None


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"LISTEN_PID": "x", "LISTEN_FDS": "1"}, "field 'LISTEN_PID': must be a process id, not 'x'"),
        ({"LISTEN_PID": "9" * 5000, "LISTEN_FDS": "1"}, "field 'LISTEN_PID': must be a process id, not '999"),
        (OWN | {"LISTEN_FDS": "2"}, "field 'LISTEN_FDS': must be 1, the one socket that is served, not '2'"),
        (OWN | {"LISTEN_FDS": "-1"}, "field 'LISTEN_FDS': must be 1, the one socket that is served, not '-1'"),
        ({"LISTEN_PID": str(os.getpid())}, "field 'LISTEN_FDS': must be 1, the one socket that is served, not None"),
    ],
)
def test_variables_that_make_no_sense_are_one_line(environment, problem):
    with pytest.raises(ConfigError) as refused:
        inherited_socket(dict(environment), "127.0.0.1", 1)
    assert problem in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def no_socket():
    return open(os.devnull)


def not_listening():
    return socket.socket()


def datagrams():
    made = socket.socket(type=socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def local(folder):
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(folder / "s"))
    made.listen()
    return made


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (no_socket, "cannot be used: Socket operation on non-socket"),
        (not_listening, "is no socket that listens for TCP"),
        (datagrams, "is no socket that listens for TCP"),
        (local, "is no socket that listens for TCP"),
        (partial(socket.create_server, ("127.0.0.1", 0)), "not on 127.0.0.1:1"),
        (partial(socket.create_server, ("0.0.0.0", 0)), "the socket that was passed on listens on 0.0.0.0:"),
    ],
)
def test_what_is_no_socket_of_that_address_is_refused(monkeypatch, tmp_path, make, problem):
    """One that the network can reach above all, where the options are those of this machine's own."""
    with closing(make(tmp_path) if make is local else make()) as made, pytest.raises(ConfigError) as refused:
        passed_on(monkeypatch, made, dict(OWN), port=1)
    assert problem in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1

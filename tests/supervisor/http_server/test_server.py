"""Connections of a gateway's own web server: who has to wait, and who gives way. Real sockets, where virtual time will
not do."""

import errno
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor.http_server.server import PAUSE, HttpServer

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_connections_wait_for_room_which_is_told_once(autojump_clock, caplog):
    """For as long as there is hardly any: it is told anew when one was taken at once in between."""

    class Listener:
        left = 0

        async def accept(self):
            self.left -= 1
            if self.left >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return "a connection"

    server, listener = HttpServer(None, None, 1), Listener()
    for listener.left in (49, 1, 1):
        assert await server._accept_next(listener) == "a connection"
    assert autojump_clock.current_time() == pytest.approx(51 * PAUSE)
    assert [record.getMessage() for record in caplog.records] == ["no room for another connection: Too many open files"]
    for listener.left in (0, 1):
        assert await server._accept_next(listener) == "a connection"
    assert len(caplog.records) == 2


class Application:
    """Answers at once, but for a POST, which waits."""

    def __init__(self):
        self.begun, self.begun_twice, self.release = trio.Event(), trio.Event(), trio.Event()

    async def __call__(self, scope, receive, send):
        if scope["method"] == "POST":
            (self.begun_twice if self.begun.is_set() else self.begun).set()
            await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def listening(most, share=None):
    """A server that has so many connections at once: it, its application, and `connect`."""
    application = Application()
    server = HttpServer(application, None, most, share)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listener.socket.getsockname()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, AsyncExitStack() as streams:

            async def connect(source=None):
                stream = await trio.open_tcp_stream(*address, local_address=source)
                return await streams.enter_async_context(stream)

            nursery.start_soon(server.accept, listener, nursery)
            yield server, application, connect
            nursery.cancel_scope.cancel()


async def asked(stream, request=GET):
    """What comes of a request."""
    await stream.send_all(request)
    return await answer(stream)


async def answer(stream):
    got = b""
    while not got.endswith(b"ok"):
        got += await stream.receive_some()
    return got


async def test_an_idle_connection_gives_way_to_one_that_waits():
    async with listening(3) as (_, application, connect):
        busy, longest, shorter = [await connect() for _ in range(3)]
        await busy.send_all(GET.replace(b"GET", b"POST"))
        await application.begun.wait()
        for stream in (longest, shorter):
            await asked(stream)
        fourth = await connect()
        assert b"200 OK" in await asked(fourth)
        assert await longest.receive_some() == b""
        for stream in (shorter, fourth):
            assert b"200 OK" in await asked(stream)
        application.release.set()
        assert b"200 OK" in await answer(busy)  # nobody gives way in the middle of a request


@pytest.mark.parametrize("said", [b"", GET[:9]], ids=["nothing", "half a head"])
async def test_a_silent_connection_gives_way_first(said):
    """The longest silent one, and a client that has spoken after all of these."""
    async with listening(3) as (_, _, connect):
        spoken = await connect()
        await asked(spoken)
        silent = [await connect() for _ in range(2)]
        for stream in silent:
            await stream.send_all(said or b"")
        for _ in range(2):
            later = await connect()
            assert b"200 OK" in await asked(later)
            await later.aclose()
            assert b"200 OK" in await asked(spoken)


async def test_one_address_has_a_share_of_the_connections():
    """Beyond it one of its own gives way, and where all are busy a new one is closed."""
    async with listening(9, share=2) as (_, application, connect):
        others = await connect("127.0.0.2")
        silent = [await connect() for _ in range(3)]
        assert await silent[0].receive_some() == b""
        for stream in silent[1:]:
            await stream.send_all(GET.replace(b"GET", b"POST"))
        assert b"200 OK" in await asked(others)
        await application.begun.wait()
        await application.begun_twice.wait()
        with pytest.raises(trio.BrokenResourceError):
            await asked(await connect())
        assert b"200 OK" in await asked(await connect("127.0.0.2"))
        application.release.set()
        for stream in silent[1:]:
            assert b"200 OK" in await answer(stream)


async def test_one_that_waits_gets_the_place_of_a_request_that_ends():
    async with listening(1) as (_, application, connect):
        busy, waiting = await connect(), await connect()
        await busy.send_all(GET.replace(b"GET", b"POST"))
        await waiting.send_all(GET)
        await application.begun.wait()
        application.release.set()
        assert b"200 OK" in await answer(busy)
        assert b"200 OK" in await answer(waiting)
        assert await busy.receive_some() == b""


async def test_from_the_end_on_each_answer_is_the_last_of_its_connection():
    async with listening(9) as (server, application, connect):
        idle, busy = await connect(), await connect()
        assert b"connection: close" not in await asked(idle)
        await busy.send_all(GET.replace(b"GET", b"POST"))
        await application.begun.wait()
        server.end()
        assert await idle.receive_some() == b""
        later = await connect()
        assert b"connection: close" in await asked(later)
        assert await later.receive_some() == b""
        application.release.set()
        assert b"connection: close" in await answer(busy)
        assert await busy.receive_some() == b""

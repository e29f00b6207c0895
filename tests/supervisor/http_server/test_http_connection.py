"""One HTTP connection against plain bytes: what clients may send, when, and what becomes of it."""

import gc
import logging
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.supervisor.http_server.http_connection import (
    HEAD_SECONDS,
    IDLE,
    IDLE_CHECK_INTERVAL,
    LINGER,
    HttpConnection,
    end_idle,
)
from mcp_nursery.supervisor.http_server.parser import HEAD, ParsedRequest

GET = b"GET /a%20b?c=d HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body, *headers):
    lines = [b"POST / HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Application:
    """Answers with what it got."""

    def __init__(self, *, early=False, raises=None, waits=None):
        self.scopes = []
        self.gone = 0
        self.early, self.raises, self.waits = early, raises, waits

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        body = b""
        more = not self.early
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            body += message["body"]
            more = message["more_body"]
        if self.raises == "at once":
            raise ValueError("a fault")
        if self.waits is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.watch, receive, nursery.cancel_scope)
                await self.waits.wait()
                nursery.cancel_scope.cancel()
        status = 413 if self.early else 200
        head = [(b"content-type", b"text/plain")]
        if not self.raises:
            head.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": head})
        if self.raises:
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ValueError("a fault")
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def watch(self, receive, scope):
        assert (await receive())["type"] == "http.disconnect"
        self.gone += 1
        scope.cancel()


class Client:
    def __init__(self, stream, connection):
        self.stream = stream
        self.connection = connection
        self.ended_at = None

    async def read(self, until=None):
        """What comes until then; to the end by default."""
        got = b""
        while until is None or until not in got:
            data = await self.stream.receive_some()
            if not data:
                break
            got += data
        return got

    async def say(self, data):
        await self.stream.send_all(data)


@asynccontextmanager
async def connected(application):
    ours, theirs = trio.testing.memory_stream_pair()
    client = Client(theirs, HttpConnection(application, ours, "http", ("10.0.0.1", 1)))

    async def serve():
        await client.connection.serve()
        client.ended_at = trio.current_time()

    async with (
        run_alongside(partial(end_idle, [client.connection], HttpConnection.end)),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve)
        yield client
        await theirs.aclose()


async def test_an_idle_connection_keeps_nothing_of_its_last_request(autojump_clock):
    """Its headers may have a token in them."""
    application = Application()
    async with connected(application) as client:
        await client.say(post(b"a word", b"authorization: Bearer t0ken"))
        await client.read(b"a word")
        await trio.testing.wait_all_tasks_blocked()
        application.scopes.clear()
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, ParsedRequest)]


async def test_one_request_after_another(autojump_clock):
    application = Application()
    async with connected(application) as client:
        await client.say(GET)
        assert (await client.read(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await client.say(post(b"hello"))
        assert (await client.read(b"hello")).startswith(b"HTTP/1.1 200")
        await client.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        await client.say(b"3\r\ncde\r\n0\r\n\r\n")
        assert (await client.read(b"abcde")).startswith(b"HTTP/1.1 200")
    first = application.scopes[0]
    assert (first["method"], first["path"], first["raw_path"], first["query_string"]) == (
        "GET",
        "/a b",
        b"/a%20b",
        b"c=d",
    )
    assert (first["scheme"], first["client"], first["headers"]) == ("http", ("10.0.0.1", 1), [(b"host", b"x")])


async def test_requests_in_one_piece_are_answered_in_turn(autojump_clock):
    """Also while one waits for its answer: what comes behind it is kept."""
    release = trio.Event()
    application = Application(waits=release)
    async with connected(application) as client:
        await client.say(post(b"one") + post(b"two"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(application.scopes) == 1
        release.set()
        got = await client.read(b"two")
        assert got.index(b"one") < got.index(b"two")
    assert application.gone == 0


async def test_a_client_that_waits_for_leave_to_send(autojump_clock):
    async with connected(Application()) as client:
        head, _, body = post(b"hello", b"expect: 100-continue").partition(b"hello")
        await client.say(head)
        assert (await client.read(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await client.say(b"he")
        await trio.testing.wait_all_tasks_blocked()
        await client.say(b"llo" + body)
        assert (await client.read(b"hello")).startswith(b"HTTP/1.1 200")  # it has leave once


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_client_that_goes_while_it_is_worked_for(autojump_clock, how):
    application = Application(waits=trio.Event())
    async with connected(application) as client:
        await client.say(post(b"hello"))
        await trio.testing.wait_all_tasks_blocked()
        if how == "closes":
            await client.stream.send_eof()
        else:
            await client.stream.aclose()
    assert application.gone == 1


async def test_a_client_that_goes_in_the_middle_of_its_request(autojump_clock):
    application = Application()
    async with connected(application) as client:
        await client.say(post(b"hello")[:-2])
        await client.stream.send_eof()
        assert (await client.read()).startswith(b"HTTP/1.1 400")
    assert application.gone == 1


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # without a host
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * HEAD, b"431"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * HEAD + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * (HEAD // 5) + b"\r\n", b"431"),
        (b"GET /" + b"y" * HEAD + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),  # TLS, where there is none
    ],
)
async def test_what_is_no_request_is_refused(autojump_clock, sent, status):
    application = Application()
    async with connected(application) as client:
        await client.say(sent)
        await client.stream.send_eof()
        said = await client.read()
    assert said.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in said.lower()
    assert not application.scopes


async def test_a_body_that_is_none_ends_its_request(autojump_clock):
    application = Application()
    async with connected(application) as client:
        await client.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnothing\r\n")
        assert (await client.read()).startswith(b"HTTP/1.1 400")
    assert application.gone == 1


async def test_a_request_that_does_not_begin(autojump_clock):
    async with connected(Application()) as client:
        assert await client.read() == b""
    assert HEAD_SECONDS <= client.ended_at <= HEAD_SECONDS + IDLE_CHECK_INTERVAL


async def test_a_request_that_comes_byte_by_byte(autojump_clock):
    """It has its time from its first byte."""
    async with connected(Application()) as client:
        for byte in GET[: int(HEAD_SECONDS)]:
            await client.say(bytes([byte]))
            await trio.sleep(0.999)
        assert await client.read() == b""
    assert client.ended_at == HEAD_SECONDS


async def test_a_connection_that_idles_after_a_request(autojump_clock):
    async with connected(Application()) as client:
        await client.say(post(b"hello"))
        await client.read()
    assert IDLE <= client.ended_at <= IDLE + IDLE_CHECK_INTERVAL


async def test_a_connection_that_is_used_again_and_again(autojump_clock):
    """Its time begins anew with each request, and one under way does not idle."""
    release = trio.Event()
    async with connected(Application(waits=release)) as client:
        await client.say(GET)
        await trio.sleep(2 * IDLE)
        release.set()
        await client.read(b"\r\n\r\n")
        for _ in range(3):
            await trio.sleep(IDLE - 2 * IDLE_CHECK_INTERVAL)
            await client.say(post(b"hello"))
            await client.read(b"hello")
        assert await client.read() == b""
    assert client.ended_at >= 2 * IDLE + 3 * (IDLE - 2 * IDLE_CHECK_INTERVAL) + IDLE


async def test_a_refusal_reaches_a_client_that_goes_on_sending(autojump_clock):
    """The rest is read and thrown away for a while; the connection is of no more use."""
    async with connected(Application(early=True)) as client:
        await client.say(post(b"x" * 100_000)[:1000])
        said = await client.read(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in said
        await client.say(b"x" * 50_000)
        assert await client.read() == b""
        assert trio.current_time() == 0
        await trio.sleep(2 * LINGER)
    assert client.ended_at == LINGER


async def test_an_application_that_fails(autojump_clock, caplog):
    async with connected(Application(raises="at once")) as client:
        await client.say(GET)
        assert (await client.read()).startswith(b"HTTP/1.1 500")
    assert "a request has failed" in caplog.text


async def test_an_application_that_fails_in_its_answer(autojump_clock, caplog):
    """The client sees that it has not come whole."""
    async with connected(Application(raises="later")) as client:
        await client.say(GET)
        said = await client.read()
        assert b"half" in said
        assert not said.endswith(b"0\r\n\r\n")
    assert "a request has failed" in caplog.text


async def test_an_answer_that_nobody_takes(autojump_clock, caplog):
    """Its client has gone: that is no failure."""
    release = trio.Event()

    class Deaf(Application):
        async def watch(self, receive, scope):
            pass

    async with connected(Deaf(waits=release)) as client:
        await client.say(post(b"hello"))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        release.set()
    assert not caplog.records


async def test_the_end_of_an_idle_connection(autojump_clock):
    async with connected(Application()) as client:
        await client.say(post(b"hello"))
        await client.read(b"hello")
        client.connection.end()
        assert await client.read() == b""
    assert client.ended_at == 0


async def test_the_end_of_one_in_use(autojump_clock):
    """The request ends first, and its answer says that it was the last."""
    release = trio.Event()
    async with connected(Application(waits=release)) as client:
        await client.say(post(b"hello") + GET)
        await trio.testing.wait_all_tasks_blocked()
        client.connection.end()
        release.set()
        said = await client.read()
    assert said.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in said.lower()


async def test_a_client_of_an_older_protocol(autojump_clock):
    """It is answered, and the end of the connection is the end of the answer."""
    application = Application()
    async with connected(application) as client:
        await client.say(b"GET http://x/path HTTP/1.0\r\n\r\n")
        assert (await client.read()).startswith(b"HTTP/1.1 200")
    assert application.scopes[0]["path"] == "/path"


PIECES = st.one_of(
    st.sampled_from([GET, post(b"hello"), b"\r\n", b"0\r\n\r\n", b"HTTP/1.1", b"content-length: 5\r\n", b"\r\n\r\n"]),
    st.binary(max_size=40),
)


@given(pieces=st.lists(PIECES, max_size=8))
@example(pieces=[GET, b"\r\n", GET])
def test_whatever_is_sent_the_connection_ends_in_order(pieces):
    """Nothing is raised or logged, each answer is whole, and in the end the connection is closed."""
    failures = []

    class Noted(logging.Handler):
        def emit(self, record):
            failures.append(record)

    async def main():
        async with connected(Application()) as client:
            with trio.move_on_after(200):
                for piece in pieces:
                    try:
                        await client.say(piece)
                    except trio.BrokenResourceError:
                        break
                await client.stream.send_eof()
                said.append(await client.read())
        assert client.ended_at is not None

    said = []
    handler = Noted()
    logger = logging.getLogger("mcp_nursery.supervisor.http_server.http_connection")
    logger.addHandler(handler)
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        logger.removeHandler(handler)
    assert not failures
    assert said[0] == b"" or said[0].startswith(b"HTTP/1.1 ")


class Streaming:
    """Answers with one piece after another, until it is told to stop."""

    def __init__(self):
        self.gone = trio.Event()
        self.writing = trio.CancelScope()

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch, receive, nursery.cancel_scope)
            with self.writing:
                while True:
                    await send({"type": "http.response.body", "body": b"piece", "more_body": True})
                    await trio.sleep(15)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"the end", "more_body": False})

    async def watch(self, receive, scope):
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()
        scope.cancel()


@pytest.mark.parametrize("status", ["200", "413"])
async def test_only_the_head_is_asked_for(autojump_clock, caplog, status):
    async with connected(Application(early=status == "413")) as client:
        await client.say(post(b"hello").replace(b"POST", b"HEAD"))
        said = await client.read(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 " + status.encode())
        assert said.endswith(b"\r\n\r\n")
        if status == "200":
            await client.say(post(b"hello"))
            assert (await client.read(b"hello")).startswith(b"HTTP/1.1 200")
    assert not caplog.records


async def test_it_is_no_tunnel(autojump_clock, caplog):
    application = Application()
    async with connected(application) as client:
        await client.say(b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n")
        assert (await client.read()).startswith(b"HTTP/1.1 501")
    assert not application.scopes
    assert not caplog.records


async def test_a_client_that_goes_after_it_has_sent_ahead(autojump_clock):
    """What it has sent ahead is not read on, so that its end shows when something is written."""
    application = Streaming()
    async with connected(application) as client:
        await client.say(GET + b"G")
        await client.read(b"piece")
        await client.stream.aclose()
        with trio.fail_after(60):
            await application.gone.wait()


async def test_nothing_follows_a_piece_that_was_cut(autojump_clock):
    """The rest of the answer, or another answer, would be taken for the rest of the piece."""

    class Narrow(trio.abc.HalfCloseableStream):
        """Keeps three bytes of each piece back until it is let."""

        def __init__(self, stream):
            self.stream = stream
            self.wide = trio.Event()

        async def send_all(self, data):
            await self.stream.send_all(data[:-3])
            await self.wide.wait()
            await self.stream.send_all(data[-3:])

        async def wait_send_all_might_not_block(self):
            pass

        async def receive_some(self, max_bytes=None):
            return await self.stream.receive_some(max_bytes)

        async def send_eof(self):
            await self.stream.send_eof()

        async def aclose(self):
            await self.stream.aclose()

    ours, theirs = trio.testing.memory_stream_pair()
    narrow, application = Narrow(ours), Streaming()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(application, narrow, "http").serve)
        client = Client(theirs, None)
        await client.say(GET + GET)
        await trio.testing.wait_all_tasks_blocked()
        application.writing.cancel()
        narrow.wide.set()
        with trio.fail_after(10):
            said = await client.read()
    assert said.count(b"HTTP/1.1") == 1
    assert b"the end" not in said
    assert not said.endswith(b"0\r\n\r\n")


async def test_a_piece_that_was_taken_back_before_it_was_begun_cuts_nothing(autojump_clock):
    application = Streaming()
    application.writing.cancel()
    async with connected(application) as client:
        await client.say(GET)
        said = await client.read(b"0\r\n\r\n")
    assert b"piece" not in said
    assert b"the end" in said


async def test_the_end_of_one_whose_answer_has_begun(autojump_clock):
    """It could not be told that this was the last."""
    application = Streaming()
    async with connected(application) as client:
        await client.say(GET)
        await client.read(b"piece")
        client.connection.end()
        application.writing.cancel()
        assert (await client.read()).endswith(b"0\r\n\r\n")
    assert client.ended_at == 0


async def test_not_all_that_is_sent_ahead_is_read(autojump_clock):
    release = trio.Event()
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(Application(waits=release), ours, "http").serve)
        await theirs.send_all(post(b"hello") + b"GET")
        with trio.move_on_after(10) as waited:
            await theirs.send_all(b" / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert waited.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_who_listens_on_after_the_answer_hears_that_it_is_over(autojump_clock):
    heard = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        while not heard or heard[-1] != "http.disconnect":
            heard.append((await receive())["type"])

    async with connected(application) as client:
        await client.say(GET + GET)
        with trio.fail_after(1):
            await client.read(b"0\r\n\r\n")
    assert heard == ["http.request", "http.disconnect"]


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 5",
        b"transfer-encoding: identity, chunked, identity",
        b"transfer-encoding: xchunked",
        b"content-length: +5",
        b"content-length: 5, 5",
        b"content-length : 5",
        b"content-length: 5\nx: y",
        b"x: a\x00b",
        b"host: y",
    ],
)
async def test_what_two_readers_may_read_in_two_ways_is_refused(autojump_clock, head):
    """No other request is found in the rest of one, and none is made of what is refused."""
    application = Application()
    async with connected(application) as client:
        await client.say(b"POST / HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n0\r\n\r\n" + GET)
        assert (await client.read()).startswith(b"HTTP/1.1 400")
    assert not application.scopes


async def test_what_nothing_comes_of_is_bounded(autojump_clock):
    """Trailers and extensions of chunks without end."""
    for endless in (b"0\r\nx: " + b"y" * HEAD, b"1;x=" + b"y" * HEAD):
        application = Application()
        async with connected(application) as client:
            await client.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            await client.say(endless)
            assert (await client.read()).startswith(b"HTTP/1.1 400")
        assert application.gone == 1


async def test_another_protocol_is_not_taken_up(autojump_clock):
    """A client that offers one is answered in this one, and may go on in it."""
    offer = post(b"one", b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__")
    async with connected(Application()) as client:
        await client.say(offer + post(b"two"))
        got = await client.read(b"two")
        assert got.count(b"HTTP/1.1 200") == 2
        await client.say(offer[:-2])
        await trio.testing.wait_all_tasks_blocked()
        await client.say(offer[-2:])
        assert (await client.read(b"one")).startswith(b"HTTP/1.1 200")


async def test_another_protocol_is_not_taken_up_however_often_it_is_offered(autojump_clock):
    offer = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: y\r\n\r\n"
    async with connected(Application()) as client:
        await client.say(offer * 900)
        answers = 0
        while answers < 900:
            answers += (await client.stream.receive_some()).count(b"HTTP/1.1 200")


async def test_a_request_that_was_begun_ahead_of_the_answer_before_it(autojump_clock):
    """It has the time of one that has begun."""
    async with connected(Application()) as client:
        await client.say(post(b"hello") + b"GET / HT")
        await client.read()
    assert client.ended_at == HEAD_SECONDS


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r"])
async def test_a_header_of_an_answer_is_one_line(autojump_clock, caplog, end):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y" + end + b"z: 1")]})

    async with connected(application) as client:
        await client.say(GET)
        assert (await client.read()).startswith(b"HTTP/1.1 500")
    assert "a request has failed" in caplog.text


async def test_a_trailer_says_nothing_of_the_next_request(autojump_clock):
    application = Application()
    async with connected(application) as client:
        await client.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await client.say(b"1\r\na\r\n0\r\nauthorization: b\r\n\r\n" + GET)
        await client.say(post(b"last", b"connection: close"))
        assert (await client.read()).count(b"HTTP/1.1 200") == 3
    assert application.scopes[1]["headers"] == [(b"host", b"x")]


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1\r\nhost: x\r\nconnection: close", b"HTTP/1.0", b"HTTP/1.0\r\nconnection: keep-alive"],
)
async def test_who_wants_one_answer_gets_one(autojump_clock, head):
    application = Application()
    async with connected(application) as client:
        await client.say(b"GET / " + head + b"\r\n\r\n" + GET)
        said = await client.read()
        assert said.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in said
    assert len(application.scopes) == 1


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/2.0", b"505"),
        (b"GET / HTTP/0.9", b"505"),
        (b"GET / HTTP/1.2", b"400"),
        (b"GET /", b"505"),
        (b"CONNECT x:1 HTTP/1.1", b"501"),
    ],
)
async def test_what_is_no_request_of_http_1_is_refused(autojump_clock, line, status):
    application = Application()
    async with connected(application) as client:
        await client.say(line + b"\r\nhost: x\r\n\r\n" + GET)
        said = await client.read()
        assert said.startswith(b"HTTP/1.1 " + status)
        assert said.count(b"HTTP/1.1") == 1
    assert not application.scopes


@pytest.mark.parametrize(("version", "body"), [(b"1.1", b"3\r\none\r\n0\r\n\r\n"), (b"1.0", b"one")])
async def test_an_answer_of_unknown_length(autojump_clock, version, body):
    """A piece without bytes does not end it."""

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"", b"one", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async with connected(application) as client:
        await client.say(b"GET / HTTP/" + version + b"\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, _, said = (await client.read()).partition(b"\r\n\r\n")
        assert (said, b"chunked" in head) == (body, version == b"1.1")


async def test_what_is_there_of_a_body_counts_for_nothing_that_follows(autojump_clock):
    """Neither for what may come of a head, nor for a request that has begun."""
    async with connected(Application()) as client:
        await client.say(post(b"x" * 10 * HEAD))
        assert (await client.read(b"x" * 10 * HEAD)).startswith(b"HTTP/1.1 200")
        await client.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await client.say(b"0\r\n\r\n")
        assert (await client.read(b"\r\n\r\na")).startswith(b"HTTP/1.1 200")
        await trio.sleep(IDLE - 1)
        await client.say(GET)
        assert (await client.read(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("target", "path"), [(b"/%ff", "/\ufffd"), (b"http://x/a?b", "/a"), (b"http://x", "/")])
async def test_whatever_it_asks_for_has_a_path(autojump_clock, target, path):
    application = Application()
    async with connected(application) as client:
        await client.say(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await client.read()).startswith(b"HTTP/1.1 200")
    assert application.scopes[0]["path"] == path

"""One HTTP response, to a client that may read slowly. Virtual time."""

from http import HTTPStatus

import trio

from mcp_nursery.supervisor.gateway.http.exchange import HttpExchange


class Client:
    """Takes a second for each message of ASGI, one at a time."""

    def __init__(self):
        self.messages = []
        self._reading = False

    async def send(self, message):
        assert not self._reading
        self._reading = True
        await trio.sleep(1)
        self._reading = False
        self.messages.append(message)

    @property
    def parts(self):
        return [each.get("body", each.get("status")) for each in self.messages]


def respond(send):
    """The response to a request of which nothing matters."""
    return HttpExchange("POST", "/mcp", {}, [], trio.sleep_forever, send)


def event(data):
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


async def test_events_and_the_answer_after_them(autojump_clock):
    """What is said at once by several tasks goes out in order, and nothing after the answer."""
    client = Client()
    response = respond(client.send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(response.event, b"1")
        await trio.sleep(0.5)
        for task in (response.event, response.answer, response.event):
            nursery.start_soon(task, b"2")
            await trio.lowlevel.checkpoint()
    await response.keep_alive()
    assert client.parts == [200, event(b"1"), event(b"2"), event(b"2")]
    assert [each.get("more_body") for each in client.messages] == [None, True, True, False]
    headers = dict(client.messages[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream"
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-cache, no-transform", b"no")


async def test_nothing_that_looks_like_the_end_of_a_line_is_in_an_event(autojump_clock):
    client = Client()
    await respond(client.send).event('"\u2028 \u2029 \x85"'.encode())
    assert client.parts == [200, event(rb'"\u2028 \u2029 \u0085"')]


async def test_a_stream_begins_before_there_is_anything_to_say_and_ends_without_a_word(autojump_clock):
    client = Client()
    response = respond(client.send)
    await response.open_stream()
    assert client.parts == [200, b": open\r\n\r\n"]
    await response.end(HTTPStatus.UNAUTHORIZED, "gone")
    assert client.parts == [200, b": open\r\n\r\n", b""]
    assert client.messages[-1]["more_body"] is False


async def test_an_answer_that_is_begun_is_whole(autojump_clock):
    """Whoever gives up meanwhile. What comes after it says nothing."""
    client = Client()
    response = respond(client.send)
    with trio.move_on_after(0.5):
        await response.answer(b"{}")
    await response.event(b"late")
    assert client.parts == [200, b"{}"]
    assert (b"content-length", b"2") in client.messages[0]["headers"]
    assert response.ended

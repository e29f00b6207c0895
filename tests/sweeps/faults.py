"""What goes wrong in one exchange: a table. Most rows have a place, and happen at every byte of a request or an answer.

What only HTTP can do is in http_faults.py. A fault that `ends` leaves nothing to wait for: the connection is over, or,
over HTTP, the exchange is; then a call without a timeout has an outcome too.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any

import trio
from attrs import frozen

from .http_peers import HttpPeer, response
from .links import PipeLink
from .peers import Exchange, Leg, Message, Peer, Script, dumps
from .stream_peers import CLOSE, PING, TcpPeer, WebSocketPeer, frame

WHILE = 0.03
"""Seconds for which connections are refused."""


class Place(Enum):
    """Of which bytes a fault has to do with one."""

    REQUEST = "request"
    ANSWER = "answer"
    NOWHERE = "whole"


@frozen
class Fault:
    name: str
    script: Script
    place: Place
    ends: bool
    answered: bool = False
    """Whether the call has its result all the same."""
    applies: Callable[[Peer], bool] = lambda peer: True


Act = Callable[[Exchange, Leg, Sequence[Leg]], Awaitable[None]]
"""What is done when a leg was written up to the place: gets the rest of it, and the legs to come."""


# -- at every byte ----------------------------------------------------------------------------------------------------


def in_request(act: Act) -> Script:
    """So many bytes of the request were read, and nothing is executed yet."""

    async def script(exchange: Exchange) -> None:
        await exchange.link.reads(exchange.at)
        await act(exchange, (exchange.link, b""), [])

    return script


def in_answer(act: Act) -> Script:
    """The call is executed, and so many bytes of the answer were written."""

    async def script(exchange: Exchange) -> None:
        await exchange.hear()
        legs, left = exchange.legs(exchange.execute()), exchange.at
        while left >= len(legs[0][1]) and len(legs) > 1:  # what was written whole was no fault
            link, data = legs.pop(0)
            await link.send(data)
            left -= len(data)
        link, data = legs[0]
        await link.send(data[:left])
        await act(exchange, (link, data[left:]), legs[1:])

    return script


async def close(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    leg[0].close()


async def reset(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    leg[0].reset()


async def mute(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    link = leg[0]
    assert isinstance(link, PipeLink)
    link.mute()


async def vanish(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    """It is gone, and there is nobody at its port for a while."""
    exchange.peer.refuse()
    for link in list(exchange.peer.links):
        link.close()
    exchange.peer.nursery.start_soon(come_back, exchange.peer)


async def come_back(peer: Peer) -> None:
    await trio.sleep(WHILE)
    await peer.accept()


async def stall(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    """Nothing more before the call is over; then everything."""
    await wait(exchange)
    for link, data in (leg, *more):
        await link.send(data)


async def stop_reading(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    """And take it up again when the call is over: what comes then is executed."""
    await wait(exchange)
    await exchange.peer.answer(await exchange.peer.read(exchange.link))


async def withhold(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    """The rest never comes."""
    await wait(exchange)
    _give_up(exchange, leg)


def _give_up(exchange: Exchange, leg: Leg) -> None:
    """Nobody could say any more where a message begins: of a connection for everything that is the end."""
    if not exchange.peer.bodies_end:
        leg[0].close()


async def wait(exchange: Exchange) -> None:
    exchange.reached.set()
    await exchange.over.wait()


async def trickle(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    """Byte for byte."""
    for link, data in (leg, *more):
        for place in range(len(data)):
            await link.send(data[place : place + 1])
            await trio.lowlevel.checkpoint()


def inserting(garbage: bytes) -> Act:
    async def insert(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
        link, data = leg
        await say(exchange, [(link, garbage + data), *more])
        await exchange.over.wait()
        _give_up(exchange, leg)

    return insert


async def drop(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
    """One byte is missing."""
    link, data = leg
    await say(exchange, [(link, data[1:]), *more])
    await exchange.over.wait()
    _give_up(exchange, leg)


async def say(exchange: Exchange, legs: Sequence[Leg]) -> None:
    for link, data in legs:
        await link.send(data)
    exchange.reached.set()


def refuse_early(status: int) -> Act:
    """Answer before the request is whole, and read no more of it."""

    async def refuse(exchange: Exchange, leg: Leg, more: Sequence[Leg]) -> None:
        await exchange.link.send(response(status, last=True))
        exchange.link.close()

    return refuse


def on_http(peer: Peer) -> bool:
    return isinstance(peer, HttpPeer)


def on_stdio(peer: Peer) -> bool:
    return not isinstance(peer, TcpPeer)


def on_websocket(peer: Peer) -> bool:
    return isinstance(peer, WebSocketPeer)


def streams(peer: Peer) -> bool:
    return peer.bodies_end and isinstance(peer, HttpPeer) and peer.streams


AT_EVERY_BYTE = [
    Fault("closed", in_request(close), Place.REQUEST, ends=True),
    Fault("reset", in_request(reset), Place.REQUEST, ends=True),
    Fault("gone", in_request(vanish), Place.REQUEST, ends=True),
    Fault("not read", in_request(stop_reading), Place.REQUEST, ends=False),
    Fault("refused early", in_request(refuse_early(413)), Place.REQUEST, ends=True, applies=on_http),
    Fault("closed", in_answer(close), Place.ANSWER, ends=True),
    Fault("reset", in_answer(reset), Place.ANSWER, ends=True),
    Fault("gone", in_answer(vanish), Place.ANSWER, ends=True),
    Fault("mute", in_answer(mute), Place.ANSWER, ends=True, applies=on_stdio),
    Fault("late", in_answer(stall), Place.ANSWER, ends=False),
    Fault("withheld", in_answer(withhold), Place.ANSWER, ends=False),
    Fault("trickled", in_answer(trickle), Place.ANSWER, ends=True, answered=True),
    Fault("garbage in it", in_answer(inserting(b"\xff")), Place.ANSWER, ends=False),
    Fault("a digit in it", in_answer(inserting(b"7")), Place.ANSWER, ends=False),
    Fault("a line in it", in_answer(inserting(b"\r\n")), Place.ANSWER, ends=False),
    Fault("a byte missing", in_answer(drop), Place.ANSWER, ends=False),
]


# -- other answers ----------------------------------------------------------------------------------------------------

Words = Callable[[Message, Message], list[Any]]
"""What is said, given the request and its true answer."""


def saying(words: Words) -> Script:
    """The call is executed, and then something else is said, or more, or nothing."""

    async def script(exchange: Exchange) -> None:
        asked = await exchange.hear()
        said = words(asked, json.loads(exchange.execute()))
        messages = [one if isinstance(one, bytes) else dumps(one) for one in said]
        await say(exchange, exchange.legs(*messages))

    return script


def _with_id(change: Callable[[Any], Any]) -> Words:
    return lambda asked, answer: [{**answer, "id": change(asked["id"])}]


def _request(asked: Message, answer: Message) -> list[Any]:
    return [{"jsonrpc": "2.0", "id": asked["id"], "method": "ping"}]


def _without_id(asked: Message, answer: Message) -> list[Any]:
    return [{key: value for key, value in answer.items() if key != "id"}]


LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}

NOT_AN_ANSWER: dict[str, Words] = {
    "nothing": lambda asked, answer: [],
    "id of the next": _with_id(lambda own: own + 1),
    "id of the one before": _with_id(lambda own: own - 1),
    "id of nobody": _with_id(lambda own: "nobody"),
    "id null": _with_id(lambda own: None),
    "id a list": _with_id(lambda own: [own]),
    "no id": _without_id,
    "a notification": lambda asked, answer: [LOG],
    "a request": _request,
    "not JSON": lambda asked, answer: [b"no JSON"],
    "a text": lambda asked, answer: [b'"x"'],
    "an empty object": lambda asked, answer: [{}],
    "bytes": lambda asked, answer: [b"\xff\xfe{}"],
}
"""Nothing in it answers the call; whatever carries it is well formed."""

AN_ANSWER: dict[str, Words] = {
    "an error": lambda asked, answer: [{"jsonrpc": "2.0", "id": asked["id"], "error": {"code": 1, "message": "no"}}],
    "no result": lambda asked, answer: [{"jsonrpc": "2.0", "id": asked["id"]}],
    "result a list": lambda asked, answer: [{**answer, "result": []}],
    "content a text": lambda asked, answer: [{**answer, "result": {**answer["result"], "content": "x"}}],
}

MORE: dict[str, Words] = {
    "twice": lambda asked, answer: [answer, answer],
    "the next one's after it": lambda asked, answer: [
        answer,
        {**answer, "id": asked["id"] + 1, "result": {"content": []}},
    ],
    "a notification before it": lambda asked, answer: [LOG, answer],
    "a request before it": lambda asked, answer: [{"jsonrpc": "2.0", "id": asked["id"], "method": "ping"}, answer],
}
"""The answer, and something with it. One document of HTTP cannot hold two messages."""


def is_apart(peer: Peer) -> bool:
    return not peer.bodies_end or streams(peer)


def _in_one_body(peer: Peer) -> bool:
    return not is_apart(peer)


def whole(name: str, script: Script, *, ends: bool, **more: Any) -> Fault:
    return Fault(name, script, Place.NOWHERE, ends, **more)


OTHER_ANSWERS = [
    *(whole(name, saying(words), ends=False) for name, words in NOT_AN_ANSWER.items()),
    *(whole(name, saying(words), ends=True) for name, words in AN_ANSWER.items()),
    *(whole(name, saying(words), ends=True, answered=True, applies=is_apart) for name, words in MORE.items()),
    *(whole(f"{name} in one body", saying(words), ends=True, applies=_in_one_body) for name, words in MORE.items()),
]


# -- of WebSockets ----------------------------------------------------------------------------------------------------


def framing(frames: Callable[[bytes], bytes]) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.hear()
        await say(exchange, [(exchange.link, frames(exchange.execute()))])

    return script


def _in_pieces(message: bytes) -> bytes:
    pieces = [message[place : place + 1] for place in range(len(message))]
    middle = b"".join(frame(piece, 0, 0) for piece in pieces[1:])
    return frame(pieces[0], 1, 0) + middle + frame(b"", 0)


WEBSOCKET = [
    whole(f"ws: {name}", framing(frames), ends=ends, answered=answered, applies=on_websocket)
    for name, frames, ends, answered in [
        ("in pieces", _in_pieces, True, True),
        ("a ping before it", lambda message: frame(b"x", PING) + frame(message), True, True),
        ("as bytes", lambda message: frame(message, 2), True, True),
        ("closed instead", lambda message: frame(b"\x03\xe8", CLOSE), True, False),
        ("closed after it", lambda message: frame(message) + frame(b"\x03\xf3", CLOSE), True, True),
        ("an end without a beginning", lambda message: frame(message, 0), True, False),
        ("a reserved bit", lambda message: frame(message, 1, 0xC0), True, False),
        ("a mask", lambda message: b"\x81\xfe" + frame(message)[2:4] + b"\0\0\0\0" + message, True, False),
        ("a length of 2 to the 63", lambda message: b"\x81\x7f" + b"\xff" * 8 + message, True, False),
    ]
]

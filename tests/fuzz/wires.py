"""A server of each kind that says anything at any moment, and a host that must come through it.

Whatever is said: each call has one outcome, in time; the supervisor does not crash and does not grow; and once the
server is itself again, so is everything else.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

import psutil
import trio
from attrs import frozen
from hypothesis import strategies as st

from mcp_nursery.supervisor import NurseryError, Supervisor, ToolResult

from ..property.test_hostile_servers import check_outcome, look_at_all
from ..sweeps.http_peers import SsePeer
from ..sweeps.links import Ended, Link
from ..sweeps.peers import Exchange, Peer, Plan, dumps
from ..sweeps.sweep import staged
from . import words

Moment = Literal["call", "bulk", "list", "start"]
"""When it is said: in the place of which answer."""
End = Literal["open", "closed", "reset"]

TIMEOUT = 0.1
"""Seconds of a call."""
LATE = 0.5
"""Seconds of work after which an outcome is late."""
VERY_LATE = 10.0
"""Seconds after which it is late however busy the machine may be elsewhere."""
CONNECT = 1.0
"""Seconds of a start."""
BOUND = 60.0
"""Seconds in which everything else has come, on a machine that is very busy elsewhere."""
MEMORY = 256 << 20
"""Bytes that a run may add: several times what one message may hold."""


@frozen
class Saying:
    """What is said once."""

    moment: Moment
    pieces: Sequence[bytes]
    end: End
    elsewhere: Sequence[bytes] = ()
    """On the stream of server-sent events."""


def sayings(pieces: words.Pieces, elsewhere: words.Pieces | None = None) -> st.SearchStrategy[list[Saying]]:
    """Several, with what is said between them left alone."""
    moments = st.sampled_from(["call", "call", "call", "bulk", "list", "start"])
    other = st.just([]) if elsewhere is None else st.lists(elsewhere, max_size=3)
    one = st.builds(Saying, moments, st.lists(pieces, max_size=4), st.sampled_from(["open", "closed", "reset"]), other)
    return st.lists(one, min_size=1, max_size=4)


WIRES: dict[str, st.SearchStrategy[list[Saying]]] = {
    "stdio": sayings(words.lines),
    "ws": sayings(words.frames),
    "http-json": sayings(words.documents),
    "http-json-handshake": sayings(words.documents),
    "http-stream": sayings(words.streams),
    "http-stream-handshake": sayings(words.streams),
    "sse": sayings(words.posted, words.events.map(words.chunk)),
}


async def come_through(kind: str, said: Sequence[Saying]) -> None:
    """Hear it all, and be well afterwards."""
    before = psutil.Process().memory_info().rss
    with trio.fail_after(BOUND * len(said)):
        async with staged(kind, connect_timeout=CONNECT) as stage:
            for saying in said:
                plan = Plan(_script(saying))
                stage.peer.plan = plan
                await _provoke(stage.supervisor, saying.moment, plan)
                stage.peer.plan = None
                plan.over.set()
                look_at_all(stage.supervisor)
                await _recover(stage.supervisor)
    grown = psutil.Process().memory_info().rss - before
    assert grown < MEMORY, f"grown by {grown >> 20} MiB"


def _script(saying: Saying) -> Any:
    async def script(exchange: Exchange) -> None:
        peer, link = exchange.peer, exchange.link
        asked = await peer.read(link)
        right = peer.reply(asked)
        if right is None:  # a notification, or no message at all: this is not the moment
            peer.plan = Plan(script, over=exchange.over)
            await peer.answer(asked)
            return
        filling = {words.ANSWER: dumps(right), words.ID: dumps(right["id"])}
        await _say(link, saying.pieces, filling)
        stream = peer.stream if isinstance(peer, SsePeer) else None
        if stream is not None:
            await _say(stream, saying.elsewhere, filling)
        await _end(peer, link, saying.end, exchange.over)

    return script


async def _say(link: Link, pieces: Sequence[bytes], filling: dict[bytes, bytes]) -> None:
    for piece in pieces:
        data = piece
        for name, value in filling.items():
            data = data.replace(name, value)
        with trio.move_on_after(TIMEOUT):  # who does not read it has missed it
            await link.send(data)


async def _end(peer: Peer, link: Link, end: End, over: trio.Event) -> None:
    if end == "open":
        await over.wait()
    if end == "reset":
        link.reset()
    else:
        link.close()
    raise Ended


async def _provoke(supervisor: Supervisor, moment: Moment, plan: Plan) -> None:
    worked, began, outcome = time.process_time(), trio.current_time(), None
    try:
        match moment:
            case "call":
                outcome = await supervisor.call_tool("read", {"key": "x"}, server="peer", timeout=TIMEOUT)
            case "bulk":
                async with supervisor.broadcast("read", {"key": "x"}, timeout=TIMEOUT) as outcomes:
                    async for one in outcomes:
                        outcome = one.result or one.error
            case "list":
                with trio.move_on_after(TIMEOUT):
                    await supervisor.list_tools("peer", refresh=True)
            case "start":
                with trio.move_on_after(2 * CONNECT):
                    await supervisor.reconnect("peer")
    except NurseryError as error:
        outcome = error
    if outcome is not None:
        check_outcome(outcome)
    worked = time.process_time() - worked
    assert worked < TIMEOUT + LATE, f"an outcome after {worked:.2f} s of work"
    took = trio.current_time() - began
    assert took < VERY_LATE, f"an outcome after {took:.2f} s"


async def _recover(supervisor: Supervisor) -> None:
    """It is asked to start again until it has answered."""
    with trio.fail_after(BOUND):
        while True:
            try:
                result = await supervisor.call_tool("once", {"key": "well"}, server="peer", timeout=1)
            except NurseryError:
                await _started(supervisor)
            else:
                assert isinstance(result, ToolResult)
                if result.full_text == "well":
                    return


async def _started(supervisor: Supervisor) -> None:
    try:
        await supervisor.reconnect("peer")
    except NurseryError:
        await trio.sleep(0.01)  # the next attempt may fare better

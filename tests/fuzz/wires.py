"""A server of each kind that says anything at any moment, and a host that must come through it.

Whatever is said: each call has one outcome, in time, and what must run once has; the supervisor does not crash and does
not grow; all of its words are for a person; and once the server is itself again, so is everything else.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

import psutil
import trio
from attrs import frozen
from hypothesis import strategies as st

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.supervisor import CallError, NurseryError, Supervisor, ToolResult

from ..property.test_hostile_servers import check_outcome, look_at_all
from ..sweeps.http_peers import SsePeer
from ..sweeps.links import Ended, Link
from ..sweeps.peers import KEY, Exchange, Peer, Plan, dumps
from ..sweeps.sweep import staged
from . import words
from .oracles import check_words, clean_log, short_turns

Moment = Literal["once", "read", "bulk", "list", "start"]
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
    moments = st.sampled_from(["once", "once", "read", "bulk", "list", "start"])
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
    with clean_log(KEY), trio.fail_after(BOUND * len(said)):
        async with staged(kind, connect_timeout=CONNECT) as stage:
            for number, saying in enumerate(said):
                plan, key = Plan(_script(saying)), f"call {number}"
                stage.peer.plan = plan
                with short_turns():
                    outcome = await _provoke(stage.supervisor, saying.moment, key)
                stage.peer.plan = None
                plan.over.set()
                _check(outcome)
                look_at_all(stage.supervisor)
                for status in stage.supervisor.status():
                    check_words(status.error or "", [KEY])
                await _recover(stage.supervisor)
                executed = stage.peer.ledger[key]
                assert executed <= (1 if saying.moment == "once" else 2), f"executed {executed} times"
                if isinstance(outcome, CallError) and outcome.delivery is Delivery.NOT_SENT:
                    refused = "HTTP 401" in str(outcome)  # whoever says so has not acted, as the documentation has it
                    assert refused or not executed, f"executed, and not sent: {outcome!r}"
    grown = psutil.Process().memory_info().rss - before
    assert grown < MEMORY, f"grown by {grown >> 20} MiB"


def _check(outcome: ToolResult | NurseryError | None) -> None:
    if outcome is not None:
        check_outcome(outcome)
    if isinstance(outcome, NurseryError):
        check_words(str(outcome), [KEY])


def _script(saying: Saying) -> Any:
    async def script(exchange: Exchange) -> None:
        peer, link = exchange.peer, exchange.link
        asked = await peer.read(link)
        right = peer.reply(asked)
        if right is None:  # a notification, or no message at all: this is not the moment
            peer.plan = Plan(script, over=exchange.over)
            await peer.answer(asked)
            return
        filling = {words.ANSWER: dumps(right), words.ID: dumps(right["id"]), words.SECRET: KEY.encode()}
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


async def _provoke(supervisor: Supervisor, moment: Moment, key: str) -> ToolResult | NurseryError | None:
    worked, began, outcome = time.process_time(), trio.current_time(), None
    try:
        match moment:
            case "once" | "read":
                outcome = await supervisor.call_tool(moment, {"key": key}, server="peer", timeout=TIMEOUT)
            case "bulk":
                async with supervisor.broadcast("read", {"key": key}, timeout=TIMEOUT) as outcomes:
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
    worked = time.process_time() - worked
    assert worked < TIMEOUT + LATE, f"an outcome after {worked:.2f} s of work"
    took = trio.current_time() - began
    assert took < VERY_LATE, f"an outcome after {took:.2f} s"
    return outcome


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

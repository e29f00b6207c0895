"""Servers that speak both eras, start slowly, and may be asked both questions: what we speak is what they do."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.callbacks import NO_HOST
from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.session.changes import Changes
from mcp_nursery.actors.session.handshake import facts, negotiate
from mcp_nursery.actors.session.session import open_session

from ...lab.sessions import HANDSHAKE, MODERN, answers, connection, discovery, greeting, refuses, session
from ...lab.wire_peer import Peer, error, result

PROBE, INITIALIZE = "server/discover", "initialize"
SLOW_START = [0, 2, 5, 12, 25]


def session_over(peer):
    return open_session(Endpoint(StreamCarrier(peer)), NO_HOST, Changes("lab"))


class BothEras(Peer):
    """Reads nothing before it has started, unless somebody reads for it. Becomes what it answers.

    `fickle`, as those on the TypeScript SDK are: `initialize` makes it one of the handshake, whatever came before.
    Else, as those on the Python SDK are: the first good answer decides, and the other question is refused.
    """

    def __init__(self, nursery, *, starts=0.0, takes=(0.0, 0.0), fickle=True, one_at_a_time=True, read_for=False):
        super().__init__()
        self.speaks = None
        self.asked = []
        self.on_message = self.note
        self._nursery = nursery
        self._starts = starts
        self._takes = dict(zip((PROBE, INITIALIZE), takes, strict=True))
        self._fickle = fickle
        self._turn = trio.Lock() if one_at_a_time else trio.Semaphore(9)
        self._queue, self._questions = trio.open_memory_channel(9)
        if not read_for:
            self.reads = trio.Event()
        nursery.start_soon(self.live)

    def note(self, message):
        if message.get("method") in (PROBE, INITIALIZE):
            self.asked.append((trio.current_time(), message["method"]))
            self._queue.send_nowait(message)

    async def live(self):
        await trio.sleep(self._starts)
        self.reads.set()
        async for message in self._questions:
            await self._nursery.start(self.answer, message["id"], message["method"])

    async def answer(self, request_id, method, task_status):
        async with self._turn:
            task_status.started()
            await trio.sleep(self._takes[method])
            self.say(self.reply(request_id, method))

    def reply(self, request_id, method):
        if method == INITIALIZE and (self._fickle or self.speaks is not Era.MODERN):
            self.speaks = Era.HANDSHAKE
            return result(request_id, greeting())
        if method == PROBE and self.speaks is not Era.HANDSHAKE:
            self.speaks = Era.MODERN
            return result(request_id, discovery())
        return error(request_id, -32022 if method == INITIALIZE else -32601, data={"supported": [MODERN]})


@asynccontextmanager
async def met(**nature):
    """Such a server, what was settled with it, and when."""
    async with trio.open_nursery() as nursery:
        server = BothEras(nursery, **nature)
        async with session_over(server) as client:
            handshake = await negotiate(client, None, server.taken)
            yield server, client, handshake, trio.current_time()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fickle", [True, False])
@pytest.mark.parametrize("starts", SLOW_START)
async def test_who_has_not_read_the_probe_is_asked_nothing_else(starts, fickle, autojump_clock):
    async with met(starts=starts, takes=(0.25, 0), fickle=fickle) as (server, _, handshake, settled):
        assert (handshake.era, settled) == (Era.MODERN, starts + 0.25 * len(server.asked))
        assert {method for _, method in server.asked} == {PROBE}


@pytest.mark.parametrize("starts", SLOW_START)
async def test_the_second_of_a_mute_server_begins_when_it_has_read_the_probe(starts, autojump_clock):
    async with met(starts=starts, takes=(60, 0), one_at_a_time=False) as (server, _, handshake, settled):
        assert (handshake.era, settled) == (Era.HANDSHAKE, starts + 1)
        assert [method for _, method in server.asked].count(INITIALIZE) == 1


@pytest.mark.parametrize(("fickle", "era"), [(True, Era.HANDSHAKE), (False, Era.MODERN)])
@pytest.mark.parametrize("starts", [2, 5])
async def test_who_is_read_for_is_asked_both_and_spoken_with_as_it_answered_last(starts, fickle, era, autojump_clock):
    """A client of docker, or a shell's pipe, reads at once what its server reads late."""
    async with met(starts=starts, fickle=fickle, read_for=True) as (server, _, handshake, settled):
        assert (handshake.era, server.speaks, settled) == (era, era, starts)
        assert server.asked == [(0, PROBE), (1, INITIALIZE)]


@pytest.mark.parametrize("first", [PROBE, INITIALIZE])
@pytest.mark.parametrize("_try", range(10))  # the tasks that hear the answers run in any order
async def test_two_good_answers_in_one_read_are_a_handshake(first, _try, autojump_clock):
    async with trio.open_nursery() as nursery:
        asked = {}
        peer = Peer()

        def answer_both(message):
            asked[message.get("method")] = message.get("id")
            if INITIALIZE in asked:
                both = [result(asked[PROBE], discovery()), result(asked[INITIALIZE], greeting())]
                peer.on_message = None
                peer.say(*(both if first == PROBE else reversed(both)))

        peer.on_message = answer_both
        async with session_over(peer) as client:
            assert (await negotiate(client, None)).era is Era.HANDSHAKE
            assert (client.protocol_version, client.is_modern) == (HANDSHAKE, False)
        nursery.cancel_scope.cancel()


async def test_an_answer_to_initialize_is_not_waited_for_longer_than_a_probe_lives(autojump_clock):
    script = {"server_discover": answers(discovery(), after=2), "initialize": answers(greeting(), after=20)}
    async with session(**script) as (lab, client):
        handshake = await negotiate(client, None)
        assert (handshake.era, trio.current_time()) == (Era.MODERN, 12)
        await trio.sleep(60)
        assert facts(client, era_answered=handshake.era_answered) == handshake  # the answer came, and nobody took it
        assert lab.heard_of("notifications/cancelled") == []  # the protocol forbids it of initialize


async def test_a_refused_initialize_leaves_the_good_probe(autojump_clock):
    script = {"server_discover": answers(discovery(), after=1.5), "initialize": refuses(-32603, after=2)}
    async with session(**script) as (_, client):
        handshake = await negotiate(client, None)
        assert (handshake.era, trio.current_time()) == (Era.MODERN, 3)


async def test_a_whole_connection_asks_who_reads(autojump_clock):
    async with connection(server_discover=answers(discovery(), after=4.5)) as (lab, opening):
        lab.reads = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opening.handshake, None)
            await trio.sleep(4)
            assert lab.asked == [PROBE]
            lab.reads.set()
        assert lab.asked == [PROBE]


HALVES = st.integers(0, 12).map(lambda number: number / 2)


@given(
    starts=st.sampled_from([0, 0.5, 1, 2, 5, 9.5, 10, 12, 25]),
    takes=st.tuples(HALVES, HALVES),
    fickle=st.booleans(),
    one_at_a_time=st.booleans(),
    read_for=st.booleans(),
    schedule=st.random_module(),
)
def test_whatever_it_answers_when_both_sides_speak_the_same(schedule, **nature):
    """Q35. Once settled, nothing that still comes changes anything."""

    async def main():
        async with met(**nature) as (server, client, handshake, settled):
            assert handshake.era is server.speaks
            questions = [method for _, method in server.asked]
            assert questions.count(INITIALIZE) <= 1
            read_at = 0 if nature["read_for"] else nature["starts"]
            assert all(at >= read_at + 1 for at, method in server.asked if method == INITIALIZE)
            answered = nature["starts"] + sum(nature["takes"][method == INITIALIZE] for method in questions)
            assert settled <= max(answered, read_at + 1 + nature["takes"][1])
            await trio.sleep(60)
            assert facts(client, era_answered=handshake.era_answered) == handshake
            assert [method for _, method in server.asked] == questions

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

"""The worker in virtual time: eras that outlast a run, and a store that fails, hangs or is gone."""

import threading
import time
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import Era, ServerState
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.security.trust import TrustGate
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.storage import worker as worker_module
from mcp_nursery.supervisor.storage.era_memory import EraMemory
from mcp_nursery.supervisor.storage.store import DOUBT, StoreUnreadable
from mcp_nursery.supervisor.storage.worker import BATCH, STORE_TIMEOUT, StoreWorker
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.specs import SERVERS, Named
from .samples import REQUEST


async def recalled(worker, transport) -> EraMemory:
    """What a run that begins now knows of a server's era."""
    notes = EraMemory(worker, "lab", spec_digest(ServerSpec("lab", transport)))
    await notes.recall()
    return notes


async def live(*lives, store, name="lab", text="x", seconds=10, **options):
    """One run of a server, and how often it was started."""
    SERVERS[text] = server = ScriptedServer(*lives)
    spec = ServerSpec(name, Named(text), policy=RestartPolicy(delays=()), **options)
    async with open_supervisor([spec], state=store) as supervisor:
        await trio.sleep(seconds)
        state = supervisor.status()[0].state
    return len(server.starts), state


DIES_OF_PROBE = Life(dies_of_probe=True, modern=False)


def test_a_probe_is_paid_for_once_in_all_runs():
    """P7, Q23: the second run does not probe; another spec, another name, or another memory does."""

    async def main():
        store = MemoryStore()
        assert await live(DIES_OF_PROBE, store=store) == (2, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=store) == (1, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=store, lazy=False, connect_timeout=5) == (1, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=store, text="y") == (2, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=store, name="other") == (2, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=MemoryStore()) == (2, ServerState.CONNECTED)

    run_virtual(main)


def test_what_a_spec_pins_was_not_found():
    """P7: `handshake` sends no probe, and a spec that says `auto` again asks again; not if it had asked before."""

    async def main():
        store = MemoryStore()
        assert await live(DIES_OF_PROBE, store=store, protocol="handshake") == (1, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=store) == (2, ServerState.CONNECTED)
        assert await live(DIES_OF_PROBE, store=store) == (1, ServerState.CONNECTED)
        assert await live(Life(modern=False), store=store, protocol="2025-03-26") == (1, ServerState.FAILED)

    run_virtual(main)


def test_the_era_of_an_attempt_that_failed_is_remembered():
    """P7: it was found, whatever came of it."""

    async def main():
        store = MemoryStore()
        assert await live(DIES_OF_PROBE, Life(refuses="no"), store=store) == (2, ServerState.FAILED)
        assert await live(DIES_OF_PROBE, store=store) == (1, ServerState.CONNECTED)

    run_virtual(main)


def test_an_era_that_is_no_longer_true_does_no_harm():
    """P7: a server that was replaced is found out."""

    async def main():
        store = MemoryStore()
        assert await live(Life(modern=False), store=store) == (1, ServerState.CONNECTED)
        assert await live(Life(), store=store) == (1, ServerState.CONNECTED)
        assert await live(Life(modern=False), store=store) == (1, ServerState.CONNECTED)

    run_virtual(main)


class Failing(MemoryStore):
    """Nothing in it can be read, and nothing written."""

    def era(self, *_, **_options):
        raise StoreUnreadable("broken")

    remember_era = add_process = agreed = agree = era


def test_a_store_that_fails_is_in_nobodys_way():
    """P7, K7: servers run; consent is refused, in words."""

    async def main():
        assert await live(Life(), store=Failing()) == (1, ServerState.CONNECTED)
        worker = StoreWorker(Failing())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            assert await TrustGate(worker, None, trio.Lock()).permit(REQUEST) == "not trusted: broken"
            await worker.finish()

    run_virtual(main)


class Refusing(MemoryStore):
    def agree(self, request):
        raise StoreUnreadable("read only")


def test_consent_that_cannot_be_written_down_is_none():
    """K7: the next run would not know of it."""

    async def agree(request):
        await trio.lowlevel.checkpoint()
        return True

    async def main():
        worker = StoreWorker(Refusing())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            assert await TrustGate(worker, agree, trio.Lock()).permit(REQUEST) == "not trusted: read only"
            await worker.finish()

    run_virtual(main)


def test_nobody_waits_for_long():
    """L10, K7: a worker that does not answer holds up a start for two seconds, and the end as long."""

    async def main():
        worker = StoreWorker(MemoryStore())  # nobody runs it
        assert (await recalled(worker, Named("x"))).era is None
        assert trio.current_time() == STORE_TIMEOUT
        assert (
            await TrustGate(worker, None, trio.Lock()).permit(REQUEST)
            == "not trusted: the user's state file does not respond"
        )
        assert trio.current_time() == 2 * STORE_TIMEOUT
        with trio.CancelScope() as scope:
            scope.cancel()
            await worker.finish()
        assert trio.current_time() == 3 * STORE_TIMEOUT

    run_virtual(main)


def test_after_the_end():
    """L10: what comes late is refused at once, and what waits when it is cancelled too."""

    async def main():
        worker = StoreWorker(MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            notes = await recalled(worker, Named("x"))
            notes.learn(Era.MODERN, answered=True)
            assert (await recalled(worker, Named("x"))).era is Era.MODERN
            await worker.finish()
        notes.learn(Era.HANDSHAKE, answered=True)
        worker.ended("m")
        assert (await recalled(worker, Named("x"))).era is None
        with pytest.raises(StoreUnreadable):
            await worker.ask(lambda store: store.agreed("digest"))
        await worker.finish()
        cancelled = StoreWorker(MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled.run)
            nursery.cancel_scope.cancel()
        await cancelled.finish()
        assert trio.current_time() == 0

    run_virtual(main)


def test_what_silence_says_is_asked_again_after_a_day():
    """P7: in the same run as in a later one; an answer settles it, and another silence is believed as long."""

    async def main():
        worker = StoreWorker(MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            notes = await recalled(worker, Named("x"))
            notes.learn(Era.HANDSHAKE, answered=False)
            await trio.sleep(DOUBT - 1)
            assert notes.era is Era.HANDSHAKE
            notes.learn(Era.HANDSHAKE, answered=False)  # a connection that did not ask
            await trio.sleep(1)
            assert notes.era is None
            notes.learn(Era.HANDSHAKE, answered=False)
            assert notes.era is Era.HANDSHAKE
            await trio.sleep(DOUBT - 1)
            notes.learn(Era.HANDSHAKE, answered=True)
            await trio.sleep(DOUBT)
            assert notes.era is Era.HANDSHAKE
            await worker.finish()

    run_virtual(main)


def test_what_has_no_value_that_lasts_is_not_written_down():
    """P7: an object of this process is another one in the next run."""

    async def main():
        worker = StoreWorker(MemoryStore())
        transport = ScriptedServer().transport
        notes = await recalled(worker, transport)
        notes.learn(Era.MODERN, answered=True)
        assert notes.era is Era.MODERN
        assert (await recalled(worker, transport)).era is None
        assert trio.current_time() == 0

    run_virtual(main)


class Slow(MemoryStore):
    """A disk that takes its time; and a count of how often somebody went there."""

    seconds = 0.0

    def __init__(self):
        super().__init__()
        self.blocking = True
        self.ways = 0
        self.hanging = None

    def together(self):
        self.ways += 1
        return super().together()

    def agreed(self, digest):
        if self.hanging is not None:
            self.hanging.wait(60)
        time.sleep(self.seconds)
        return super().agreed(digest)


@asynccontextmanager
async def served(store):
    worker = StoreWorker(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        yield worker
        await worker.finish()


async def ask_many(worker, count):
    """So many of them at once, and what they heard."""
    heard = []

    async def ask():
        try:
            heard.append(await worker.ask(lambda store: store.agreed("digest")))
        except StoreUnreadable as error:
            heard.append(str(error))

    with trio.CancelScope():
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(ask)
    return heard


async def test_what_waits_is_done_together():
    """A thousand servers that start at once: a way to the disk and back for every few hundred jobs, not for each."""
    store = Slow()
    async with served(store) as worker:
        assert await ask_many(worker, 1000) == [False] * 1000
        assert store.ways <= 1000 / BATCH + 3


@pytest.mark.slow
async def test_how_many_others_wait_does_not_count(monkeypatch):
    """Nobody is refused while the store gets on with its work, however long all of it takes."""
    monkeypatch.setattr(worker_module, "STORE_TIMEOUT", 1.0)
    store = Slow()
    store.seconds = 0.1
    async with served(store) as worker:
        assert await ask_many(worker, 15) == [False] * 15


async def test_a_disk_that_hangs(monkeypatch):
    """Whoever waits is refused, and served again as soon as it answers; what nobody waits for any more is not done."""
    monkeypatch.setattr(worker_module, "STORE_TIMEOUT", 0.2)
    store = Slow()
    store.hanging = threading.Event()
    done = []
    async with served(store) as worker:
        assert await ask_many(worker, 3) == ["the user's state file does not respond"] * 3
        with pytest.raises(StoreUnreadable):
            await worker.ask(lambda store: done.append("nobody waits for this"))
        worker.submit(lambda store: done.append("told"))
        store.hanging.set()
        monkeypatch.setattr(worker_module, "STORE_TIMEOUT", 60)
        assert await worker.ask(lambda store: store.agreed("digest")) is False
        assert done == ["told"]


async def test_a_store_that_was_left_to_its_disk_is_closed_when_that_answers(monkeypatch):
    """The block does not wait for it, and nothing stays open."""
    monkeypatch.setattr(worker_module, "STORE_TIMEOUT", 0.1)
    store, closed = Slow(), threading.Event()
    store.hanging, store.close = threading.Event(), closed.set
    worker = StoreWorker(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        assert await ask_many(worker, 1) == ["the user's state file does not respond"]
        await worker.finish()
        nursery.cancel_scope.cancel()
    assert not closed.is_set()
    store.hanging.set()
    assert await trio.to_thread.run_sync(closed.wait, 60)


async def test_what_could_not_be_written_down_together_was_not_done():
    """Whoever waited for an answer gets none."""

    class Full(MemoryStore):
        @contextmanager
        def together(self):
            yield
            raise StoreUnreadable("the disk is full")

    async with served(Full()) as worker:
        assert await ask_many(worker, 2) == ["the disk is full"] * 2


async def test_the_end_comes_after_all_that_was_told():
    """Q1: no row of a process is left behind because a thousand others ended at the same time."""
    store, done = Slow(), []
    async with served(store) as worker:
        await ask_many(worker, 1)  # one that was never asked is not opened for the end
        for number in range(1000):
            worker.submit(lambda store, number=number: done.append(number))
    assert done == list(range(1000))

"""One run: a fleet, its clients, and moves against it one after the other; then calm, an end, and the judge."""

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import trio
from attrs import evolve

from .clients import CLIENTS, Crowd, make_http
from .fleet import Broken, Fleet, Replica, open_fleet
from .judge import RECOVERY, Deed, Outcome, Report
from .plan import SERVERS, Move

STAYING = [sys.executable, "-c", "import time; time.sleep(60)"]
"""A process that is left, which names the folder of the fleet."""
TOLD = 300.0
"""Seconds between two lines that say how far it is."""
TICK = 0.05
"""Seconds between two looks at how late this process is."""


class Chaos:
    """What is done to the fleet, and what is seen of it meanwhile."""

    def __init__(self, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._fleet, self._say = fleet, say
        self.deeds: list[Deed] = []
        self.ends: dict[str, str] = {}
        self.memory = self.files = 0
        self.unrest: list[tuple[float, float]] = []

    async def play(self, moves: Iterator[Move], seconds: float) -> None:
        """Make one move after the other for so long, or until there is none; all is well again then, as far as we
        know."""
        until = trio.current_time() + seconds
        async with trio.open_nursery() as beside:
            for move in moves:
                if trio.current_time() >= until:
                    return
                await trio.sleep(move.pause)
                self._say(str(move))
                if move.name != "stop database":
                    await self._make(move)
                elif all(deed.ended < float("inf") for deed in self.deeds):
                    beside.start_soon(self._make, move)

    async def _make(self, move: Move) -> None:
        replica = self._fleet.replicas[move.replica]
        try:
            await getattr(self, f"_{move.name.replace(' ', '_')}")(replica, move)
        except Broken as problem:
            self.ends[f"{move} at {trio.current_time():.1f}"] = str(problem)
            await replica.kill()
            await replica.start()

    @contextmanager
    def _doing(self, move: Move) -> Iterator[None]:
        """Note how long it is felt."""
        began, at = trio.current_time(), len(self.deeds)
        self.deeds.append(Deed(move.name, move.replica, move.server, began, float("inf")))
        try:
            yield
        finally:
            self.deeds[at] = Deed(move.name, move.replica, move.server, began, trio.current_time())

    # -- moves ------------------------------------------------------------------------------------------------------

    async def _kill_replica(self, replica: Replica, move: Move) -> None:
        with self._doing(move):
            await replica.kill()
        await replica.start()

    async def _freeze_replica(self, replica: Replica, move: Move) -> None:
        with self._doing(move):
            os.kill(replica.pid, signal.SIGSTOP)
            await trio.sleep(move.seconds)
            os.kill(replica.pid, signal.SIGCONT)

    async def _freeze_and_kill_replica(self, replica: Replica, move: Move) -> None:
        with self._doing(move):
            os.kill(replica.pid, signal.SIGSTOP)
            await trio.sleep(move.seconds)
            await replica.kill()
        await replica.start()

    async def _drain_replica(self, replica: Replica, move: Move) -> None:
        with self._doing(move):
            if problem := await replica.end():
                self.ends[f"{move} at {trio.current_time():.1f}"] = problem
            await replica.start()

    async def _upgrade_replica(self, replica: Replica, move: Move) -> None:
        replica.configure()
        await self._drain_replica(replica, move)

    async def _reload_replica(self, replica: Replica, move: Move) -> None:
        with self._doing(move):
            replica.configure()
            os.kill(replica.pid, signal.SIGHUP)

    async def _kill_server(self, replica: Replica, move: Move) -> None:
        with self._doing(move), suppress(psutil.NoSuchProcess, KeyError):
            replica.servers()[move.server].kill()

    async def _freeze_server(self, replica: Replica, move: Move) -> None:
        with self._doing(move), suppress(psutil.NoSuchProcess, KeyError):
            server = replica.servers()[move.server]
            server.suspend()
            await trio.sleep(move.seconds)
            server.resume()

    async def _stop_database(self, replica: Replica, move: Move) -> None:
        del replica
        with self._doing(move):
            await trio.to_thread.run_sync(self._fleet.database.stop)
            await trio.sleep(move.seconds)
            await trio.to_thread.run_sync(self._fleet.database.start)

    # -- what is seen -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the replicas, and at how late we are ourselves."""
        while True:
            began = trio.current_time()
            await trio.sleep(TICK)
            if (late := trio.current_time() - began - TICK) > TICK:
                self.unrest.append((trio.current_time(), late))
            for replica in self._fleet.replicas:
                memory, files = replica.seen()
                self.memory, self.files = max(self.memory, memory), max(self.files, files)

    async def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Say now and then what there was so far."""
        while True:
            await trio.sleep(TOLD)
            kinds = Counter(outcome.said for outcome in outcomes).most_common()
            self._say(f"so far {len(outcomes)} requests: " + ", ".join(f"{count} {kind}" for kind, count in kinds))

    async def end(self) -> None:
        """Have all replicas end at once."""

        async def one(replica: Replica) -> None:
            if problem := await replica.end():
                self.ends[f"replica {replica.number}, the last end"] = problem

        async with trio.open_nursery() as nursery:
            for replica in self._fleet.replicas:
                nursery.start_soon(one, replica)


async def run(
    moves: Iterator[Move],
    seconds: float,
    say: Callable[[str], None],
    *,
    servers: Sequence[str] = SERVERS,
    plants: AbstractSet[str] = frozenset(),
) -> Report:
    """Do it to a fleet of its own, whose clients call these servers."""
    with tempfile.TemporaryDirectory(prefix="chaos", ignore_cleanup_errors=True) as name:
        async with open_fleet(Path(name), plants) as fleet, make_http() as http:
            report = await _directed(fleet, Crowd(http, fleet.url, servers), Chaos(fleet, say), moves, seconds)
            if "process" in plants:
                fleet.nursery.start_soon(trio.run_process, [*STAYING, fleet.folder])
                await trio.sleep(1)
            return evolve(report, left=list(fleet.left()))


async def _directed(fleet: Fleet, crowd: Crowd, chaos: Chaos, moves: Iterator[Move], seconds: float) -> Report:
    began = trio.current_time()
    async with trio.open_nursery() as watching:
        watching.start_soon(chaos.watch)
        watching.start_soon(chaos.tell, crowd.outcomes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.run)
            await crowd.until(CLIENTS)
            await chaos.play(moves, seconds)
            await trio.sleep(RECOVERY)
            crowd.over.set()
        sessions, alive = await crowd.go_on()
        await crowd.leave()
        unusable = await fleet.unusable()
        await chaos.end()
        await fleet.end_balancing()
        watching.cancel_scope.cancel()
    return Report(
        outcomes=crowd.outcomes,
        ledger=Counter(fleet.ledger.read_text().split()),
        deeds=chaos.deeds,
        sessions=sessions,
        alive=alive,
        memory=chaos.memory,
        files=chaos.files,
        left=[],
        unusable=unusable,
        logged=fleet.logged(),
        ends=chaos.ends,
        unrest=chaos.unrest,
        seconds=trio.current_time() - began,
    )

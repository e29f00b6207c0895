"""One assault: three processes, which are told when to do what, and a fourth, ours, that looks at them from outside."""

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import trio

from ..lab.processes import Journal
from .attackers import attack
from .channel import Channel
from .figures import Report, p99
from .grammar import SECONDS, Assault
from .honest import use
from .host import host

QUIET = 0.6
"""Seconds in which nobody is attacked yet."""
BOUND = 120.0
"""Seconds of a whole run, however busy the machine may be elsewhere."""
_FORK = multiprocessing.get_context("fork")


class Broken(Exception):
    """A process has ended, or does not go on."""


class Party:
    """A process of ours, which was forked: it has loaded everything."""

    def __init__(
        self,
        name: str,
        main: Callable[..., Any],
        *given: Any,
        drop: Sequence[int],
        nice: int = 0,
    ) -> None:
        self.name = name
        self._ours, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_run, args=(main, theirs, given, drop, nice), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, said: Any) -> None:
        with suppress(OSError):
            self._ours.send(said)

    def heard(self) -> bool:
        """Whether there is a word of it.

        Raises:
            Broken: It has ended.
        """
        if self._ours.poll():
            return True
        if not self._process.is_alive() and not self._ours.poll():
            raise Broken(f"{self.name} ended with {self._process.exitcode}")
        return False

    def take(self) -> Any:
        try:
            return self._ours.recv()
        except EOFError:
            raise Broken(f"{self.name} ended early") from None

    def end(self) -> None:
        self._process.join(5)
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self._process.join()
        self._ours.close()


def _run(
    main: Callable[..., Any], connection: Connection, given: Sequence[Any], drop: Sequence[int], nice: int
) -> None:
    """In the new process."""
    for fd in drop:
        os.close(fd)
    logging.disable()  # servers that say anything are no news
    os.nice(nice)
    trio.run(main, *given[:1], Channel(connection), *given[1:])


class Watch:
    """What is seen of the host from outside."""

    def __init__(self) -> None:
        self.memory = self.files = 0
        self._late: list[float] = []
        self._host: psutil.Process | None = None
        self._until = time.monotonic() + BOUND

    def look_at(self, pid: int) -> None:
        self._host = psutil.Process(pid)

    def wait(self, done: Callable[[], bool]) -> None:
        """Look until something is done.

        Raises:
            Broken: It takes too long.
        """
        for number in range(1 << 60):
            if done():
                return
            began = time.perf_counter()
            if began > self._until and time.monotonic() > self._until:
                raise Broken(f"not over after {BOUND:g} s")
            time.sleep(0.002)
            self._late.append(time.perf_counter() - began - 0.002)
            if self._host is not None and number % 8 == 0:
                self._sample(self._host)

    def lasting(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until)

    def word(self, party: Party) -> Any:
        self.wait(party.heard)
        return party.take()

    def unrest(self) -> float:
        return p99(self._late)

    def _sample(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            self.memory = max(self.memory, process.memory_info().rss)
            self.files = max(self.files, process.num_fds())


def play(assault: Assault, plants: AbstractSet[str] = frozenset()) -> Report:
    """Run it once."""
    with tempfile.TemporaryDirectory(prefix="attack", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for kind in ("STATE", "CONFIG"):
            os.environ[f"XDG_{kind}_HOME"] = str(folder / kind.lower())
        os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"
        pairs = [(os.pipe(), os.pipe()) for _ in range(3)]
        theirs = [(there[0], back[1]) for there, back in pairs]
        ours = [(there[1], back[0]) for there, back in pairs]
        of_host, of_attackers, of_honest = (
            [fd for pair in pairs for fd in pair] for pairs in (theirs, ours[:2], ours[2:])
        )
        watch, parties = Watch(), []
        try:
            rest = (folder, plants)
            parties = [
                Party("the host", host, assault.seed, theirs, *rest, drop=[*of_attackers, *of_honest]),
                Party("honest clients", use, ours[2], drop=[*of_host, *of_attackers]),
                Party("the attackers", attack, assault, ours[:2], *rest, drop=[*of_host, *of_honest], nice=10),
            ]
            for fd in (*of_host, *of_attackers, *of_honest):
                os.close(fd)
            return _direct(assault, folder, watch, parties)
        except Broken as error:
            return Report({}, {}, [], [], Counter(), watch.memory, watch.files, 1, False, 0.0, [str(error)])
        finally:
            for party in parties:
                party.end()


def _direct(assault: Assault, folder: Path, watch: Watch, parties: Sequence[Party]) -> Report:
    attacked, honest, attackers = parties
    places = watch.word(attackers)
    watch.look_at(attacked.pid)
    attacked.tell(places)
    doors = watch.word(attacked)
    attackers.tell(doors)
    honest.tell({**doors, "token": places["token"], "servers": [f"h{at}" for at in range(len(assault.cast))]})
    attacked.tell("go")
    for party in parties:
        watch.word(party)
    for party in (attacked, honest):
        party.tell("be quiet")
    watch.lasting(QUIET)
    for party in parties:
        party.tell("go")
    watch.lasting(SECONDS)
    for party in (attackers, attacked, honest):
        party.tell("enough")
    watch.word(attackers)
    for party in (attacked, honest):
        watch.word(party)
        party.tell("report")
    from_host, from_honest = watch.word(attacked), watch.word(honest)
    attackers.tell("report")
    ledger = Counter[str]()
    for executed in watch.word(attackers).values():
        ledger.update(executed)
    journal = Journal(folder / "journal")
    ledger.update([*journal.details("commit"), *journal.details("look")])
    return Report(
        from_host,
        from_honest["waits"],
        from_honest["lost"],
        [*from_host["outcomes"], *from_honest["outcomes"]],
        ledger,
        watch.memory,
        watch.files,
        len(assault.cast),
        any(move.who in ("client", "pipe") for move in assault.moves),
        watch.unrest(),
    )


def judge(assault: Assault, tries: int, plants: AbstractSet[str] = frozenset()) -> list[tuple[Report, list[str]]]:
    """Its runs, each with its findings. Those of the last one count: it has none if a run had none. A figure that is
    measured in seconds is also that of the machine."""
    runs: list[tuple[Report, list[str]]] = []
    while len(runs) < tries and (not runs or runs[-1][1]):
        report = play(assault, plants)
        runs.append((report, list(report.findings())))
    return runs

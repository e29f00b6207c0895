"""The fleet: a database, replicas of `mcp-nursery serve --http`, and haproxy in front of them. All are real."""

import base64
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import psutil
import trio

from ..lab.databases import DatabaseServer, new_server
from ..lab.gateways import PROGRAM
from ..lab.remote import free_port
from .judge import CALL
from .plan import FAILING, REPLICAS, SERVERS

EXAMPLE = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
SERVER = Path(__file__).with_name("server.py")
READY = 60.0
"""Seconds until a replica takes requests, however busy the machine is."""
LAME_DUCK, DRAIN = 2, 6
ENDING = 20.0
"""Seconds until a replica has ended that was asked to: both of these, and the end of its servers."""
FAULTS = re.compile(r"Traceback|please report it|Task exception|never awaited")
"""Words in a replica's log that tell of a fault of ours."""


class Broken(Exception):
    """The fleet is not what it has to be for anything to be measured."""


class Replica:
    """One place in the fleet: a port, a state folder, and the process that is there now."""

    def __init__(self, number: int, fleet: "Fleet") -> None:
        self.number, self.port = number, free_port()
        self.folder = fleet.folder / f"replica{number}"
        self.log = self.folder / "log"
        self.process: trio.Process | None = None
        self.ended = trio.Event()
        self._fleet = fleet
        self._versions = count(1)
        self.folder.mkdir()
        for name in ("run", "tmp"):
            (self.folder / name).mkdir(mode=0o700)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def configure(self) -> None:
        """Write a configuration that differs from the one before: a server more, another option."""
        version = next(self._versions)
        entries = self._fleet.entries()
        if version > 1:
            entries["newest"] = entries["good0"] | {"description": f"version {version}"}
        (self.folder / "servers.json").write_text(json.dumps({"mcpServers": entries}))

    async def start(self) -> None:
        """Start it, and wait until it takes requests.

        Raises:
            Broken: It does not.
        """
        command = [PROGRAM, "serve", "--http", f"127.0.0.1:{self.port}", "--config", str(self.folder / "servers.json")]
        plants, seconds = self._fleet.plants, {"--lame-duck": LAME_DUCK, "--drain": DRAIN, "--timeout": CALL}
        if "hasty" in plants:
            seconds |= {"--lame-duck": 0, "--drain": 0}
        command += ["--no-resume"] if "forget" in plants else ["--replica-key", str(self._fleet.key)]
        command += ["--state", self._fleet.database.url()]
        command += [word for option, value in seconds.items() for word in (option, str(value))]
        env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        env |= {f"XDG_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")}
        env |= {"XDG_RUNTIME_DIR": str(self.folder / "run"), "TMPDIR": str(self.folder / "tmp")}
        self.ended = trio.Event()
        self.process = await self._fleet.nursery.start(partial(self._run, command, env))
        with trio.move_on_after(READY):
            while self.process.returncode is None:
                if await self._fleet.answers(self.port):
                    return
                await trio.sleep(0.05)
        raise Broken(f"replica {self.number} is not ready: {self.log.read_text()[-1000:]}")

    async def _run(self, command: list[str], env: dict[str, str], *, task_status: Any) -> None:
        with self.log.open("ab") as log:
            await trio.run_process(command, env=env, stderr=log, check=False, task_status=task_status)
        self.ended.set()

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        await self.ended.wait()

    async def end(self) -> str | None:
        """Ask it to end, and wait until it has; what was not right with that."""
        assert self.process is not None
        os.kill(self.pid, signal.SIGTERM)
        with trio.move_on_after(ENDING):
            await self.ended.wait()
            code = self.process.returncode
            return f"exit code {code}" if code else None
        await self.kill()
        return f"not over {ENDING:g} s after SIGTERM"

    def servers(self) -> dict[str, psutil.Process]:
        """Those of its servers that run now, by name."""
        found = {}
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.Error):
                    found.update({name: child for word in child.cmdline() for name in _named(word)})
        return found

    def seen(self) -> tuple[int, int]:
        """Bytes of memory and open files it has now."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            return process.memory_info().rss, process.num_fds()
        return 0, 0


def _named(word: str) -> Iterator[str]:
    if word.startswith("name="):
        yield word.removeprefix("name=")


class Fleet:
    """All of it, in one folder that no other process names."""

    def __init__(self, folder: Path, http: httpx2.AsyncClient, nursery: trio.Nursery, plants: AbstractSet[str]) -> None:
        self.folder, self.http, self.nursery = folder, http, nursery
        self.key, self.ledger = folder / "replica.key", folder / "ledger"
        self.key.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
        self.key.chmod(0o600)
        self.ledger.touch()
        self.port = free_port()
        self.database: DatabaseServer
        self.balancing, self.balanced = trio.CancelScope(), trio.Event()
        self.replicas = [Replica(number, self) for number in range(REPLICAS)]
        self.plants = plants

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def entries(self) -> dict[str, Any]:
        return {name: self._entry(number, name) for number, name in enumerate(SERVERS)}

    def _entry(self, number: int, name: str) -> dict[str, Any]:
        flags = {"name": name, "ledger": self.ledger, "era": ("old", "new")[number % 2]}
        if how := FAILING.get(name):
            flags |= {"fails": how} | ({"slow": 2} if how == "crash" else {})
        if "twice" in self.plants and name == "good1":
            flags["twice"] = 5
        args = ["-I", "-S", str(SERVER), *(f"{flag}={value}" for flag, value in flags.items())]
        breaker = {"failures": 3, "openSeconds": 2}
        return {"command": sys.executable, "args": args, "restartDelays": [0.2, 0.5, 1, 2], "breaker": breaker}

    def configuration(self) -> str:
        """The example, with these addresses, and turns in place of a hash of tokens that nobody has here."""
        text = EXAMPLE.read_text()
        ports = [self.port, *(replica.port for replica in self.replicas)]
        turns = "    balance hdr(Authorization)\n    hash-type consistent\n"
        for was, now in (
            ("127.0.0.1:8000", f"127.0.0.1:{ports[0]}"),
            ("10.0.0.11:8000", f"127.0.0.1:{ports[1]}"),
            ("10.0.0.12:8000", f"127.0.0.1:{ports[2]}\n    server three 127.0.0.1:{ports[3]}"),
            (turns, "    balance roundrobin\n"),
        ):
            if text.count(was) != 1:
                raise Broken(f"{EXAMPLE} is not as it was: {was!r}")
            text = text.replace(was, now)
        return text

    async def balance(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run haproxy until `balancing` is cancelled."""
        written = self.folder / "haproxy.cfg"
        written.write_text(self.configuration())
        with (self.folder / "haproxy.log").open("wb") as log:
            run = partial(trio.run_process, ["haproxy", "-db", "-f", str(written)], check=False, stderr=log, stdout=log)
            with self.balancing:
                async with trio.open_nursery() as nursery:
                    process = await nursery.start(run)
                    while not await self.answers(self.port):
                        if process.returncode is not None:
                            raise Broken((self.folder / "haproxy.log").read_text()[-1000:])
                        await trio.sleep(0.05)
                    task_status.started()
                    await trio.sleep_forever()
            self.balanced.set()

    async def answers(self, port: int) -> bool:
        """True if what listens there takes requests."""
        with suppress(httpx2.TransportError):
            return (await self.http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        return False

    async def unusable(self) -> list[str]:
        """Replicas that cannot use the database."""
        pages = {each: await self.http.get(f"http://127.0.0.1:{each.port}/metrics") for each in self.replicas}
        return [
            f"the state of replica {each.number}"
            for each, page in pages.items()
            if "\nmcp_nursery_state_usable 1" not in page.text
        ]

    async def end_balancing(self) -> None:
        """End haproxy."""
        self.balancing.cancel()
        await self.balanced.wait()

    def logged(self) -> list[str]:
        """Lines of logs that tell of a fault of ours."""
        return [
            f"replica {replica.number}: {line}"
            for replica in self.replicas
            for line in replica.log.read_text(errors="replace").splitlines()
            if FAULTS.search(line)
        ]

    def left(self) -> Iterator[str]:
        """What is there of it although all has ended."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(self.folder) in word for word in process.cmdline()):
                    yield f"process {process.pid}, {process.status()}: {' '.join(process.cmdline())[-200:]}"
        for replica in self.replicas:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", replica.port), timeout=1).close()
                yield f"port {replica.port} of replica {replica.number}"
            for name in ("run", "tmp"):
                yield from (f"file {path}" for path in (replica.folder / name).rglob("*") if not path.is_dir())


@asynccontextmanager
async def open_fleet(folder: Path, plants: AbstractSet[str] = frozenset()) -> AsyncGenerator[Fleet, None]:
    """A fleet of which everything is ready. It is ended with the block, whatever state it is in."""
    database = await trio.to_thread.run_sync(new_server)
    try:
        async with httpx2.AsyncClient(timeout=5) as http, trio.open_nursery() as nursery:
            fleet = Fleet(folder, http, nursery, plants)
            fleet.database = database
            for replica in fleet.replicas:
                replica.configure()
            async with trio.open_nursery() as starting:
                for replica in fleet.replicas:
                    starting.start_soon(replica.start)
            await nursery.start(fleet.balance)
            try:
                yield fleet
            finally:
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.end)

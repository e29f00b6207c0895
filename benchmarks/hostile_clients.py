"""What hostile clients cost a gateway over HTTP, and its other clients. No subject of its own: see
`hostile_neighbour.py`.

Each flood has a gateway of its own, in a process of its own, in front of a quiet server and of one that answers at
length. The clients are plain sockets. Memory is the most that the gateway had at once, servers not counted.
"""

import argparse
import json
import multiprocessing
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateway import PATIENCE, Session
from harness import ECHO, HERE, Table, verdict

BOUND = 0.05
MOST_MEMORY = 700 << 20
"""Bytes that a gateway may have."""
QUIET, BESIDE = 2.0, 6.0
"""Seconds of the neighbour's calls before the flood, and beside it."""
SIZE = 16 << 10
"""KiB of a long answer."""
LISTS = [[]] * 100_000


class Clients:
    """Hostile clients of one gateway, in a process of their own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.open: list[socket.socket] = []
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def calls(self, attack: str, count: int, **arguments: Any) -> None:
        """So many calls whose answers nobody reads."""
        for _ in range(count):
            try:
                session = Session(self.port)
                self.open.append(session.socket)
                session.ask("tools/call", {"name": "bad_attack", "arguments": {"attack": attack, **arguments}})
            except OSError:
                continue  # refused: the next one
        time.sleep(PATIENCE)

    def be_silent(self, count: int) -> None:
        """So many connections, made again when they are closed."""
        closings = selectors.DefaultSelector()
        while True:
            while len(closings.get_map()) < count:
                try:
                    one = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
                except OSError:
                    break
                closings.register(one, selectors.EVENT_READ, one)
            for key, _ in closings.select(0.02):
                closings.unregister(key.fileobj)
                key.data.close()

    def listen(self, count: int) -> None:
        """So many streams of news that nobody reads, while a server says without end that its tools changed."""
        envelope = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "plain", "version": "1"},
        }
        params = {"notifications": {"toolsListChanged": True}, "_meta": envelope}
        for _ in range(count):
            session = Session.__new__(Session)
            session.port, session.number = self.port, 0
            session.headers = "mcp-protocol-version: 2026-07-28\r\nmcp-method: subscriptions/listen\r\n"
            session.connect()
            self.open.append(session.socket)
            session.ask("subscriptions/listen", params)
        self.calls("list_changed without end", 1)


FLOODS: dict[str, Callable[[Clients], None]] = {
    "60 results of 16 MiB that nobody reads": lambda clients: clients.calls("letters", 60),
    "60 errors of 16 MiB that nobody reads": lambda clients: clients.calls("an error with long data", 60),
    "200 calls of 100,000 empty lists": lambda clients: clients.calls("silence", 200, a=LISTS),
    "1,100 silent connections": lambda clients: clients.be_silent(1_100),
    "400 streams of news that nobody reads": lambda clients: clients.listen(400),
}


def clients(options: argparse.Namespace) -> Iterator[Table]:
    """The table of all floods, or of those that are asked for."""
    only = options.only or [""]
    floods = [name for name in FLOODS if any(part.lower() in name.lower() for part in only)]
    if not floods:
        return
    found = {name: run(FLOODS[name]) for name in (floods[::3] if options.quick else floods)}
    rows = [
        [
            name,
            *(f"{each[key] * 1e3:.0f}" for key in ("quiet_p99", "beside_p99")),
            *(str(each["calls"]), f"{each['memory'] >> 20} MiB"),
        ]
        for name, each in found.items()
    ]
    slower = max(each["beside_p99"] - each["quiet_p99"] for each in found.values())
    memory = max(each["memory"] for each in found.values())
    notes = [
        verdict(slower * 1e3, BOUND * 1e3, "p99 over quiet", unit=" ms"),
        verdict(memory / (1 << 20), MOST_MEMORY >> 20, "memory of the gateway", unit=" MiB"),
    ]
    header = ["", "p99 quiet (ms)", "beside", "calls beside", "memory of the gateway"]
    yield Table("Clients of a gateway", header, rows, found, notes)


def run(flood: Callable[[Clients], None]) -> dict[str, Any]:
    """The figures of one flood."""
    bad = [sys.executable, "-I", "-S", str(HERE / "peers" / "hostile_server.py"), str(SIZE)]
    servers = {"calm": ECHO, "bad": bad}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "servers.json")
        config.write_text(
            json.dumps({"mcpServers": {name: {"command": one[0], "args": one[1:]} for name, one in servers.items()}})
        )
        program = str(Path(sys.executable).with_name("mcp-nursery"))
        ours = [program, "serve", "--http", "127.0.0.1:0", "--config", str(config)]
        with subprocess.Popen(ours, stderr=subprocess.PIPE, env={"HOME": folder, "PATH": "/usr/bin:/bin"}) as process:
            try:
                assert process.stderr is not None  # it is a pipe
                for line in process.stderr:
                    if port := re.search(rb"http://127\.0\.0\.1:(\d+)/mcp", line):
                        threading.Thread(target=process.stderr.read, daemon=True).start()
                        return _measured(process.pid, int(port[1]), flood)
                raise RuntimeError("the gateway does not serve")
            finally:
                process.kill()


def _measured(pid: int, port: int, flood: Callable[[Clients], None]) -> dict[str, Any]:
    neighbour = Session(port)
    neighbour.exchange("tools/list", {})
    quiet = _called(neighbour, QUIET)
    hostile = multiprocessing.get_context("fork").Process(target=_flood, args=[flood, port])
    hostile.start()
    beside = _called(neighbour, BESIDE)
    hostile.kill()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None  # Linux says it
    return {
        "quiet_p99": statistics.quantiles(quiet, n=100)[-1],
        "beside_p99": statistics.quantiles(beside, n=100)[-1],
        "calls": len(beside),
        "memory": int(peak[1]) << 10,
    }


def _flood(flood: Callable[[Clients], None], port: int) -> None:
    flood(Clients(port))


def _called(session: Session, seconds: float) -> list[float]:
    """How long calls take, made again and again for so long."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        session.exchange("tools/call", {"name": "calm_echo", "arguments": {"text": "heard?"}})
        took.append(time.perf_counter() - began)
        time.sleep(0.005)
    return took

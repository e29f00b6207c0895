"""One server on standard streams behind a gateway over HTTP: what ours and others add to a call, and to a session.

The client is the same plain sockets for everybody. "Direct" is the same server, serving HTTP itself. A round is the
same calls through every gateway in turn; all are up all the time. Memory is the proportional set size of the gateway
and of all processes below it.
"""

import argparse
import json
import os
import random
import secrets
import selectors
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import CannotInstall, npm_program, python_of
from harness import ECHO, HERE, OURS, Table, command, p25, verdict

DIRECT = "direct"
SHARING = ("mcp-proxy", "FastMCP proxy", "contextforge translate")
"""Peers whose clients share one server, as ours do. supergateway starts one for each session."""
CANNOT_RUN = {
    "mcp-hangar": "over HTTP it shows no tools to a client without an identity",
    "mcp-hub": "it speaks to clients by HTTP+SSE of 2024-11-05 alone",
}
CLIENTS = 100
IDLE = 100
"""Sessions that are opened to see what an idle one keeps."""
TARGETS = {"alone": 0.6, "together": 0.4}
TARGETS_SHARING = {"alone": 0.5, "together": 0.5}
"""The most that we add, against what a peer adds."""
IDLE_SESSION = 8
"""KiB that an idle session may keep."""
PATIENCE = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
HEAD = (
    "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    "accept: application/json, text/event-stream\r\ncontent-length: {size}\r\n"
)


def commands(port: int) -> dict[str, Callable[[], list[str]]]:
    """By gateway: the command that serves the echo server on that port."""
    return {
        DIRECT: lambda: [sys.executable, str(HERE / "peers" / "http_echo.py"), str(port)],
        OURS: lambda: serving(_beside_python("mcp-nursery"), port, "--", *ECHO),
        "supergateway": lambda: [
            *npm_program("supergateway@4.0.0"),
            *("--stdio", shlex.join(ECHO), "--outputTransport", "streamableHttp", "--stateful"),
            *("--logLevel", "none", "--port", str(port)),
        ],
        "mcp-proxy": lambda: [
            str(python_of("mcp-proxy").with_name("mcp-proxy")),
            *("--log-level", "ERROR", "--port", str(port), "--", *ECHO),
        ],
        "FastMCP proxy": lambda: [
            str(python_of("fastmcp")),
            *(str(HERE / "peers" / "fastmcp_proxy.py"), str(port), *ECHO),
        ],
        "contextforge translate": lambda: [
            *("env", *(f"{name}={secrets.token_hex(32)}" for name in ("JWT_SECRET_KEY", "AUTH_ENCRYPTION_SECRET"))),
            *(str(python_of("contextforge")), "-m", "mcpgateway.translate", "--stdio", shlex.join(ECHO)),
            *("--expose-streamable-http", "--jsonResponse", "--logLevel", "error", "--port", str(port)),
        ],
    }


def serving(program: str, port: int, *words: str) -> list[str]:
    """The command of our gateway."""
    return [program, "serve", "--http", f"127.0.0.1:{port}", *words]


def _beside_python(program: str) -> str:
    return shutil.which(program, path=str(Path(sys.executable).parent)) or program


# -- a client ---------------------------------------------------------------------------------------------------------


class Session:
    """A session of the handshake era on a connection of its own. Its ids are those that every other one has too."""

    count = 0

    def __init__(self, port: int) -> None:
        Session.count += 1
        self.name = f"client {Session.count}"
        self.port = port
        self.socket = socket.socket()
        self.connect()
        self.headers = ""
        self.received = b""
        self.number = 0
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
        head, _ = self.exchange("initialize", opening)
        session = [line.partition(": ")[2] for line in head.splitlines() if line.lower().startswith("mcp-session-id:")]
        self.headers = "mcp-protocol-version: 2025-11-25\r\n" + "".join(f"mcp-session-id: {one}\r\n" for one in session)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.answer()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def refresh(self) -> None:
        """Connect again if the server has closed the connection, since it was idle for a while."""
        self.socket.settimeout(0)
        try:
            closed = self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            closed = False
        except ConnectionResetError:
            closed = True
        self.socket.settimeout(PATIENCE)
        if closed:
            self.socket.close()
            self.connect()

    def write(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        head = HEAD.format(port=self.port, size=len(body)) + self.headers + "\r\n"
        self.socket.sendall(head.encode() + body)

    def ask(self, method: str, params: dict[str, Any]) -> None:
        self.number += 1
        self.write({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})

    def call(self) -> None:
        self.ask("tools/call", {"name": "echo", "arguments": {"text": f"{self.name}, call {self.number}"}})

    def take(self) -> tuple[str, str] | None:
        """Head and body of the answer, if it has come whole."""
        head, gap, body = self.received.partition(b"\r\n\r\n")
        if not gap:
            return None
        fields = head.lower()
        if b"transfer-encoding: chunked" in fields:
            if not body.endswith(b"0\r\n\r\n"):
                return None
        else:
            at = fields.find(b"content-length:")
            if at >= 0 and len(body) < int(fields[at + 15 :].split(b"\r\n")[0]):
                return None
        self.received = b""
        return head.decode(), body.decode()

    def answer(self) -> tuple[str, str]:
        while (taken := self.take()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError(f"closed after {self.received[:200]!r}")
            self.received += data
        return taken

    def exchange(self, method: str, params: dict[str, Any]) -> tuple[str, str]:
        self.ask(method, params)
        return self.answer()

    def check(self) -> None:
        """A call, and whether its answer is right."""
        self.call()
        self.check_answer(*self.answer())

    def check_answer(self, head: str, body: str) -> None:
        """Whether that answers the last call."""
        assert " 200 " in head.split("\r\n", 1)[0] + " ", head
        assert f'{self.name}, call {self.number - 1}"' in body.replace("\\", ""), f"{self.name} was answered: {body}"


def at_once(sessions: Sequence[Session]) -> float:
    """Seconds from the first call to the last answer, where each makes one, and all are right."""
    answers: list[tuple[Session, tuple[str, str]]] = []
    with selectors.DefaultSelector() as selector:
        for session in sessions:
            selector.register(session.socket, selectors.EVENT_READ, session)
        started = time.perf_counter()
        for session in sessions:
            session.call()
        left = len(sessions)
        while left:
            for key, _ in selector.select(PATIENCE) or _late():
                session = key.data
                session.received += session.socket.recv(1 << 16) or _late()
                if (answer := session.take()) is not None:
                    answers.append((session, answer))
                    left -= 1
        seconds = time.perf_counter() - started
    for session, answer in answers:
        session.check_answer(*answer)
    return seconds


def _late() -> Any:
    raise TimeoutError(f"no answer in {PATIENCE} s, or a closed connection")


# -- a gateway --------------------------------------------------------------------------------------------------------


@dataclass
class Gateway:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    one: Session
    many: list[Session]
    memory: float
    """KiB an idle session."""
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def round(self, calls: int) -> None:
        """So many calls one after another, then one of each client at once."""
        for session in (self.one, *self.many):
            session.refresh()
        for _ in range(calls):
            started = time.perf_counter()
            self.one.call()
            self.one.answer()
            self.alone.append(time.perf_counter() - started)
        before = cpu_of(self.process.pid)
        self.together.append(at_once(self.many) / len(self.many))
        self.cpu.append((cpu_of(self.process.pid) - before) / len(self.many))


@contextmanager
def gateways(options: argparse.Namespace, left_out: dict[str, str]) -> Iterator[list[Gateway]]:
    """Those that can be installed and answer right; of the others, why not."""
    with ExitStack() as stack:
        started = []
        for name in commands(0):
            if options.only and name != DIRECT and not any(part.lower() in name.lower() for part in options.only):
                continue
            port = free_port()
            try:
                process = stack.enter_context(running(commands(port)[name]()))
                started.append(opened(name, port, process))
            except (CannotInstall, OSError, AssertionError) as reason:
                left_out[name] = str(reason)
        yield started


def opened(name: str, port: int, process: subprocess.Popen[bytes]) -> Gateway:
    first = _session_when_up(port, process)
    first.check()
    before = memory_of(process.pid)
    many = [Session(port) for _ in range(IDLE)]
    time.sleep(1)  # what they leave behind is settled
    memory = (memory_of(process.pid) - before) / IDLE
    for each in many:
        each.refresh()
        each.check()
    at_once(many)  # where some are given the answers of others, it shows now
    return Gateway(name, port, process, first, many[:CLIENTS], memory)


def _session_when_up(port: int, process: subprocess.Popen[bytes]) -> Session:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Session(port)
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        below = tree(process.pid)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


def tree(pid: int) -> list[int]:
    """It, and all processes below it."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def memory_of(pid: int) -> float:
    """KiB of it and all below."""
    total = 0.0
    for each in tree(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def cpu_of(pid: int) -> float:
    """Seconds that it and all below have used."""
    total = 0
    for each in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- what is printed --------------------------------------------------------------------------------------------------


def subject(options: argparse.Namespace) -> Iterator[Table]:
    left_out = dict(CANNOT_RUN)
    with gateways(options, left_out) as started:
        for _ in range(options.rounds):
            for gateway in random.sample(started, len(started)):
                gateway.round(20)
        figures = {
            each.name: {
                "alone": p25(each.alone),
                "together": p25(each.together),
                "cpu": statistics.mean(each.cpu),
                "memory": each.memory,
            }
            for each in started
        }
    table = _table(figures)
    table.notes += [f"Left out: {name}: {reason}." for name, reason in left_out.items()]
    yield table


def _table(figures: dict[str, dict[str, float]]) -> Table:
    base = figures[DIRECT]
    rows, notes = [], []
    for name, one in figures.items():
        times = [f"{one[key] * 1e6:.0f}" for key in ("alone", "together", "cpu")]
        added = [f"{(one[key] - base[key]) * 1e6:.0f}" if one is not base else "" for key in ("alone", "together")]
        rows.append([name, times[0], added[0], times[1], added[1], times[2], f"{one['memory']:.0f}"])
    others = {name: one for name, one in figures.items() if name not in (DIRECT, OURS)}
    sharing = {name: one for name, one in others.items() if name in SHARING}
    for peers, which, targets in (
        (others, "the best peer", TARGETS),
        (sharing, "the best peer that shares one server", TARGETS_SHARING),
    ):
        for key, what in (("alone", "one call"), ("together", f"{CLIENTS} clients at once")):
            if OURS in figures and peers:
                best = min(one[key] - base[key] for one in peers.values())
                ratio = (figures[OURS][key] - base[key]) / best
                notes.append(verdict(ratio, targets[key], f"time added to {what}, against {which}"))
    if OURS in figures:
        notes.append(verdict(figures[OURS]["memory"], IDLE_SESSION, "an idle session", unit=" KiB"))
    header = [
        "",
        "one call (us)",
        "added",
        f"{CLIENTS} at once, each (us)",
        "added",
        "CPU each (us)",
        "KiB an idle session",
    ]
    return Table("A call over HTTP to a server on standard streams: p25 of wall time", header, rows, figures, notes)


if __name__ == "__main__":
    command(subject, rounds=30)

"""Sessions that were opened at one gateway and go on at another that starts empty, with a key in common.

    python benchmarks/session_moves.py [SESSIONS]

Each sends a ping and a call, one session after the other, to the second gateway. The first request of a session opens
its id and begins a session like a new one; the next looks it up. Memory is that of the second gateway's process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_urlsafe
from statistics import quantiles
from typing import Any

from harness import ECHO, machine

OLD = "2025-11-25"
HELLO = {"protocolVersion": OLD, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "client", "version": "1"}}
PROGRAM = str(Path(sys.executable).with_name("mcp-nursery"))
SERVE = [PROGRAM, "serve", "--http", "127.0.0.1:0"]


class Client:
    """One connection to a gateway."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, message: dict[str, Any], session: str | None = None) -> tuple[str | None, float]:
        """Send a message. Returns the id of its session and the seconds until the whole answer is there."""
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if session is not None:
            headers |= {"mcp-session-id": session, "mcp-protocol-version": OLD}
        began = time.perf_counter()
        self._connection.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", **message}), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        if answer.status not in (200, 202) or b'"error"' in body:
            sys.exit(f"session_moves.py: {answer.status}: {body[:200]!r}")
        return answer.headers["mcp-session-id"], took

    def open(self) -> str:
        """Open a session. Returns its id."""
        session, _ = self.post({"id": 0, "method": "initialize", "params": HELLO})
        assert session is not None
        self.post({"method": "notifications/initialized"}, session)
        return session


@contextmanager
def gateway(key: str, sessions: int) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """A gateway in front of an echo server, in a process of its own."""
    limits = [f"--limit={name}={sessions + 1}" for name in ("sessions", "sessions-of-client")]
    command = [*SERVE, "--replica-key", key, *limits, "--", *ECHO]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield Client(int(line.split()[2].rpartition(":")[2].split("/")[0])), process
    finally:
        process.kill()
        process.wait()


def resident(process: subprocess.Popen[str]) -> float:
    """Bytes in memory."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def percentiles(seconds: Iterable[float]) -> str:
    cuts = quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms"


def main(sessions: int) -> None:
    print(machine())
    ping, call = (
        {"id": 1, "method": "ping"},
        {"id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}},
    )
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "replica.key"
        key.touch(0o600)
        key.write_text(token_urlsafe(32))
        with gateway(str(key), sessions) as (first, _):
            opened = [first.open() for _ in range(sessions)]
        with gateway(str(key), sessions) as (second, process):
            warm = second.open()
            for _ in range(200):
                second.post(ping, warm)
                second.post(call, warm)
            before = resident(process)
            moved, after = [], []
            for session in opened:
                moved.append(second.post(ping, session)[1])
                after.append(second.post(ping, session)[1])
            took = resident(process) - before
            called = [second.post(call, session)[1] for session in opened]
    print(f"{sessions:,} sessions have moved; an id has {len(opened[0])} characters")
    print(f"first request (ping): {percentiles(moved)}")
    print(f"next one (ping): {percentiles(after)}")
    print(f"a call: {percentiles(called)}")
    print(f"memory of the second gateway: {took / sessions / 1024:.1f} KiB a session, {took / 1e6:.0f} MB in all")


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000)

"""One call, and 128 in flight, over streamable HTTP; and over WebSocket, beside stdio."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import (
    OURS,
    Contender,
    Table,
    command,
    echoes,
    interleave,
    measure,
    only,
    ratio_table,
    stdio,
    verdict,
    workers,
)

PEERS = Path(__file__).parent / "peers"
TARGETS = {1: 0.8, 128: 0.5}
"""The most of the SDK's time, by calls in flight."""
BESIDE_STDIO = 1.2
"""The most that a call over WebSocket takes, against one over stdio."""


@contextmanager
def serving(peer: str) -> Iterator[int]:
    """A server of plain Python, and its port."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, PEERS / peer], stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


def subject(options: argparse.Namespace) -> Iterator[Table]:
    contenders = only("SDK, asyncio", "SDK, Trio", OURS)
    with serving("http_echo.py") as port:
        for width, title in ((1, "One call over HTTP"), (128, "128 calls at once over HTTP, per call")):
            job = {"urls": {"s0": f"http://127.0.0.1:{port}/mcp"}, "plan": echoes(["s0"], width)}
            yield ratio_table(title, measure(job, options, contenders), target=TARGETS[width])
    yield from _web_socket(options)


def _web_socket(options: argparse.Namespace) -> Iterator[Table]:
    """Of this library alone: the SDK has no client for it."""
    over_stdio, over_it = (Contender(f"{OURS}, {how}", "here", "nursery.py") for how in ("stdio", "WebSocket"))
    with serving("ws_echo.py") as port:
        for width, title in ((1, "One call over WebSocket"), (128, "128 calls at once over WebSocket, per call")):
            url = {"urls": {"s0": f"ws://127.0.0.1:{port}/"}, "plan": echoes(["s0"], width)}
            with workers(stdio(1, width=width), [over_stdio]) as one, workers(url, [over_it]) as other:
                figures = interleave([*one, *other], options.rounds)
            table = ratio_table(title, figures, base=over_stdio.name)
            ratio = figures[over_it.name]["wall_p25"] / figures[over_stdio.name]["wall_p25"]
            table.notes.append(verdict(ratio, BESIDE_STDIO, "wall p25 against stdio"))
            yield table


if __name__ == "__main__":
    command(subject, rounds=20)

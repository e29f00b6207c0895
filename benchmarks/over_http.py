"""One call, and 128 in flight, over streamable HTTP."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Table, command, echoes, measure, only, ratio_table

PEER = Path(__file__).parent / "peers" / "http_echo.py"


@contextmanager
def serving() -> Iterator[str]:
    """A server of plain Python, and its URL."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, PEER], stdin=pipe, stdout=pipe, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(peer.stdout.readline())}/mcp"
        finally:
            peer.stdin.close()


def subject(options: argparse.Namespace) -> Iterator[Table]:
    contenders = only("SDK, asyncio", "SDK, Trio", "mcp-nursery")
    with serving() as url:
        for width, title in ((1, "One call over HTTP"), (128, "128 calls at once over HTTP, per call")):
            job = {"urls": {"s0": url}, "plan": echoes(["s0"], width)}
            yield ratio_table(title, measure(job, options, contenders))


if __name__ == "__main__":
    command(subject, rounds=20)

"""The cost of ids of sessions that outlive their gateway, and a million random ones that do not open.

    python benchmarks/session_ids.py [NUMBER]

An id is sealed once, at `initialize`, and opened once by a gateway that does not know it; other requests look it up.
"""

import os
import random
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from statistics import median

from mcp_nursery.supervisor.gateway import Principal, SessionKeys
from mcp_nursery.supervisor.gateway.http.session_ids import SessionStart, open_session, seal_session

ROUNDS, TIMES = 9, 5_000
OWNER = Principal("ann", key="5" * 64)
START = SessionStart(
    time.time(), "2025-11-25", {"elicitation": {"form": {}}, "sampling": {}}, {"name": "client", "version": "1.0"}
)


def microseconds(work: Callable[[], object]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(TIMES):
            work()
        rounds.append((time.perf_counter() - began) / TIMES * 1e6)
    return median(rounds)


def main(number: int) -> None:
    keys = SessionKeys([os.urandom(32)])
    rotated = SessionKeys([os.urandom(32) for _ in range(7)])
    sealed = seal_session(keys, START, OWNER, None)
    assert sealed is not None
    forged = sealed[:-4] + "AAAA"
    print(f"an id has {len(sealed)} characters")
    print(f"sealing it takes {microseconds(lambda: seal_session(keys, START, OWNER, None)):.1f} us")
    print(f"opening it takes {microseconds(lambda: open_session(keys, sealed, OWNER, None)):.1f} us")
    refusing = microseconds(lambda: open_session(keys, forged, OWNER, None))
    print(f"refusing a forged one takes {refusing:.1f} us, of 64 KiB", end=" ")
    print(f"{microseconds(lambda: open_session(keys, 'A' * (64 << 10), OWNER, None)):.1f} us,", end=" ")
    print(f"with seven keys {microseconds(lambda: open_session(rotated, forged, OWNER, None)):.1f} us")
    dice, opened, began = random.Random(os.urandom(8)), 0, time.perf_counter()
    for _ in range(number):
        made_up = urlsafe_b64encode(dice.randbytes(dice.randrange(160))).rstrip(b"=").decode()
        opened += open_session(keys, made_up, OWNER, None) is not None
    print(f"of {number:,} random ids {opened} opened, in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000)

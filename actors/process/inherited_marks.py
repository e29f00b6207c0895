"""Two marks that show which tree a process belongs to: it inherits them from the first process of the tree.

A variable of the environment names the tree. A descendant that is started with a clean environment loses it, and with
`setsid` it leaves session and group as well, so that it shows nothing of the tree any more. So on Linux there is a
second mark: a resource limit that the kernel keeps, hands down through fork, exec and setsid, and has not enforced
since 2.4, so that nobody else sets it and no process notices (RLIMIT_LOCKS in getrlimit(2)). It is set from outside
once the first process runs, in the thread that has started it: the loop may be busy. What the tree has started by then
is marked as well, unless its parent has gone already. One pass can miss a child: the kernel copies the limits at the
beginning of a fork, and lists the child with its parent at the end. So the tree is marked again soon after, and once
more before it is ended. What has no mark in spite of that is found by its pipes (`table.Table.writers`).
"""

import sys
from hashlib import blake2b

VARIABLE = "MCP_NURSERY_INCARNATION"
"""The variable that every process of one tree inherits."""

_RLIMIT_LOCKS = 10
"""The limit, nameless in Python. The same number on every architecture."""


def tag_of(marker: str) -> int:
    """The limit of the tree with this marker: below 2 ** 56, so that no 'unlimited' equals it."""
    return int.from_bytes(blake2b(marker.encode(errors="replace"), digest_size=7).digest())


def mark(pid: int, marker: str) -> None:
    """Set the limit for a process of ours that runs and has not been reaped, and for those it has started."""
    tag = tag_of(marker)
    found = [pid]
    while found:
        process = found.pop()
        if _set_tag(process, tag):
            found += _children(process)


def read_tag(pid: int) -> int | None:
    """The limit of a process; None if it has none, is gone, or is another user's."""
    if sys.platform != "linux":
        return None
    from resource import RLIM_INFINITY, prlimit

    try:
        limit, _ = prlimit(pid, _RLIMIT_LOCKS)
    except OSError:
        return None
    return None if limit == RLIM_INFINITY else limit


def _set_tag(pid: int, tag: int) -> bool:
    if sys.platform != "linux":
        return False
    from resource import prlimit

    try:
        _, hard = prlimit(pid, _RLIMIT_LOCKS)
        prlimit(pid, _RLIMIT_LOCKS, (tag, hard))
    except (OSError, ValueError):  # it is gone, runs as another user by now, or somebody has limited what is possible
        return False
    return True


def _children(pid: int) -> list[int]:
    """Ids of the processes that the first thread of this process has started. No other thread is looked at: a process
    that is looked at here has lived for a moment only."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(child) for child in file.readall().split()]
    except OSError:  # it is gone, or this kernel does not list them
        return []

"""A host to be killed: writes one list after another into the cache, and says which one is written.

Usage: caching_host.py STATE NUMBER
"""

import itertools
import sys
import time

from mcp_nursery.supervisor.storage.sqlite import SqliteStore


def main() -> None:
    file, first = sys.argv[1:]
    store = SqliteStore(file)
    for number in itertools.count(int(first)):
        text = str(number).encode()
        store.remember_definitions("lab", "d", text + b" " + text * 30_000, time.time())
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

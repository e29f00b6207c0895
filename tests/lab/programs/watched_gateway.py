"""`mcp-nursery`, which fails where a module of the SDK is imported in its loop: its clients would wait for a second."""

import sys

import trio

HEAVY = ("mcp", "mcp_types", "pydantic", "httpx2", "httpcore2", "trio_websocket")


class InTheLoop:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in HEAVY and trio.lowlevel.in_trio_run():
            sys.stderr.write(f"{name} is imported in the loop\n")
            raise AssertionError(name)


sys.meta_path.insert(0, InTheLoop())

from mcp_nursery.supervisor.cli import main  # noqa: E402

main()

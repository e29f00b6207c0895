"""`mcp-nursery install` and its `--undo`, killed one step later each time, and undone.

Arguments: the host's file, and the folder of ours. Prints how many steps there were.
"""

import json
import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path

from mcp_nursery.supervisor.cli import install as _loaded  # noqa: F401 - before the first fork
from mcp_nursery.supervisor.cli import main

FILE, OURS = Path(sys.argv[1]), Path(sys.argv[2])
TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod")
BEFORE = FILE.read_bytes()


def killed(kill_at, *options):
    """Whether it was killed, before its `kill_at`th touch of a file of the host or of ours."""
    child = os.fork()
    if not child:
        touches = count()

        def watch(event, arguments):
            touched = event in TOUCHES and str(arguments[0]).startswith((str(FILE.parent), str(OURS)))
            if touched and next(touches) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        main(["install", "claude-code", "--yes", *options])
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def undone():
    killed(None, "--undo")
    assert FILE.read_bytes() == BEFORE
    assert not list(FILE.parent.glob("*.bak"))
    assert not list(OURS.rglob("claude-code.json"))


def forwards(at, after):
    hit = killed(at, "--adopt")
    assert FILE.read_bytes() in (BEFORE, after)
    undone()
    return hit


def backwards(at, after):
    killed(None, "--adopt")
    assert FILE.read_bytes() == after
    hit = killed(at, "--undo")
    assert FILE.read_bytes() in (BEFORE, after)
    undone()
    return hit


killed(None, "--adopt")
AFTER = FILE.read_bytes()
undone()
steps = []
for way in (forwards, backwards):
    steps.append(next(at for at in count() if not way(at, AFTER)))
    shutil.rmtree(OURS, ignore_errors=True)
json.dump({"changed": AFTER != BEFORE, "steps": steps}, sys.stdout)

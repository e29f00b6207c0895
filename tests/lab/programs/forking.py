"""A process that has the SDK's server loaded, and forks: a program of the SDK answers after 0.1 s of work, not 2.

It reads lines of JSON, each a program of this folder with its arguments, and answers each with the pid of the process
that runs the program. It ends with its input; the programs go on.
"""

import json
import os
import runpy
import sys
from contextlib import suppress
from importlib import import_module

MODULES = (
    "mcp.server.mcpserver",
    "mcp.server.sse",
    "mcp.server.streamable_http_manager",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
)


def run(program, arguments):
    """Be the program from now on."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        os._exit(0)


def reap():
    """Reap what has ended. Until the next request a pid is its process's: nobody takes another one for it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


for name in MODULES:
    import_module(name)
for line in sys.stdin:
    reap()
    program, *arguments = json.loads(line)
    pid = os.fork()
    if not pid:
        run(program, arguments)
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()

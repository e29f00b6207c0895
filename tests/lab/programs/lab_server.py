"""The demo's server with tools that misbehave in every way the command line has an answer to."""

import os
import sys
import time
from pathlib import Path

from mcp_nursery.supervisor.cli.demo_server import (
    CRASH,
    INVALID_PARAMS,
    TOOLS,
    DemoRefusal,
    DemoTool,
    ToolFailed,
    serve,
)


def fail(_arguments):
    raise ToolFailed("it did not work")


def refuse(_arguments):
    raise DemoRefusal(INVALID_PARAMS, "no\x1b[31m way")


def slow(arguments):
    if "began" in arguments:
        Path(arguments["began"]).touch()
    time.sleep(arguments["seconds"])
    return "at last"


def rude(_arguments):
    return "\x1b]0;title\x07\x1b[31mred\x9b2J [bold]text[/bold]\nnext\tline"


MORE = {
    "fail": DemoTool(fail, "Fails."),
    "refuse": DemoTool(refuse, "Is refused."),
    "slow": DemoTool(slow, "Takes its time.", {"seconds": {"type": "number"}}),
    "rude": DemoTool(rude, "[red]mark[/red] \x1b[2Jup"),
    "pid": DemoTool(lambda _: str(os.getpid()), "The process."),
    "crash": CRASH,
}

if __name__ == "__main__":
    if "--broken" in sys.argv:
        raise SystemExit("[red]no\x1b[2J licence")
    serve("lab", {**TOOLS, **MORE})

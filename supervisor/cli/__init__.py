"""The `mcp-nursery` command. Importing this loads nothing else: help and completion must be quick."""

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, with the arguments of the process by default, and exit with its code."""
    import gc
    import os
    import sys

    if argv is None:
        if os.getpid() == 1:
            from .init_process import run_in_child

            run_in_child()
        gc.disable()  # modules that are being loaded are no garbage: see `runtime.collect_later`
        argv = sys.argv[1:]
        if argv[:1] == ["serve"]:
            _end_at_sigterm()
    try:
        from .app import run_command_line

        code = run_command_line(argv)
    except KeyboardInterrupt:
        code = 130  # 128 + SIGINT, as at any other time
    sys.exit(code)


def _end_at_sigterm() -> None:
    """Let SIGTERM end this process normally before and after the command handles it: at those times nothing has been
    started yet, or everything has ended."""
    import os
    import signal

    def end(_signum: int, _frame: object) -> NoReturn:
        os._exit(0)

    signal.signal(signal.SIGTERM, end)

"""The `mcp-nursery` command. Importing this loads nothing else: help and completion must be quick."""

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    Args:
        argv: The arguments; those of the process by default.
    """
    import sys

    from .app import run_command_line

    sys.exit(run_command_line(sys.argv[1:] if argv is None else argv))

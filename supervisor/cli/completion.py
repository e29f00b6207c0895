"""Completion in shells: the scripts of click, and the file in which each shell looks for its script."""

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class, shell_complete

from .options import COMPLETION, PROGRAM

_SCRIPTS: Final = {
    "bash": f".bash_completions/{PROGRAM}.sh",
    "zsh": f".zfunc/_{PROGRAM}",
    "fish": f".config/fish/completions/{PROGRAM}.fish",
}
"""The places of the script in the user's home."""
_STARTUP_LINES: Final = {
    "bash": (".bashrc", f"source '{{home}}/{_SCRIPTS['bash']}'"),
    "zsh": (".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
}
"""The file that a shell reads at its start, and the line in it that loads the script; fish finds it by itself."""


def complete(command: click.Command, asked: str) -> int:
    """Print the completions for a command line of a shell."""
    return shell_complete(command, {}, PROGRAM, COMPLETION, asked)


def script(command: click.Command, shell: str) -> str:
    """Return the script for a shell; by default for the user's own.

    Raises:
        UsageError: Completion does not exist for this shell.
    """
    shell = _check_shell(shell)
    completion = get_completion_class(shell)
    assert completion is not None
    return completion(command, {}, PROGRAM, COMPLETION).source()


def install(command: click.Command, shell: str) -> str:
    """Write the script where the shell looks for it, and return a line about it.

    Raises:
        UsageError: Completion does not exist for this shell.
    """
    shell = _check_shell(shell)
    home = Path.home()
    file = home / _SCRIPTS[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script(command, shell))
    if shell in _STARTUP_LINES:
        start, line = _STARTUP_LINES[shell]
        _add_line(home / start, line.format(home=home))
    return f"{shell} completion is in {file}; start the shell again\n"


def _check_shell(shell: str) -> str:
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _SCRIPTS:
        raise click.UsageError(f"completion is for one of {', '.join(_SCRIPTS)}, not for {shell or 'an unknown shell'}")
    return shell


def _add_line(file: Path, line: str) -> None:
    before = file.read_text() if file.exists() else ""
    if line not in before.splitlines():
        with file.open("a") as end:
            end.write(f"{'' if before.endswith(chr(10)) or not before else chr(10)}{line}\n")

"""The parts of a command's signature: its options and arguments. Loads click only.

`commands.py` lists for each command its options and the function that does its work. That function is imported when the
command runs, and is called with the options: `--help` does not load Trio.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

if TYPE_CHECKING:
    from .output import LogFormat

PROGRAM: Final = "mcp-nursery"
COMPLETION: Final = "_MCP_NURSERY_COMPLETE"
"""The variable by which a shell asks for completion."""

Work = TypeVar("Work", bound=Callable[..., Any])
Parameter: TypeAlias = Callable[[Work], Work]
"""An option or an argument, added to a function as a decorator."""

FILE: Final = click.Path(path_type=Path)
NOT_NEGATIVE: Final = click.FloatRange(min=0)


def option(spelling: str, about: str, *, to: str | None = None, **more: Any) -> Callable[[Work], Work]:
    """Make an option from its names and a word for its value; without that word it is a flag."""
    words = spelling.split()
    value = None if words[-1].startswith("-") else words.pop()
    if value is None and "/" not in spelling and "type" not in more:
        more["is_flag"] = True
    return click.option(*words, *([] if to is None else [to]), metavar=value, help=about, **more)


def argument(spelling: str, about: str, *, to: str | None = None, **more: Any) -> Callable[[Work], Work]:
    """Make an argument, spelled as the help shows it; one in brackets is optional."""
    name = to or spelling.strip("[]").lower()
    required = more.pop("required", not spelling.startswith("["))
    return click.argument(name, metavar=spelling, required=required, help=about, **more)


class CommandSignature:
    """A command as its user sees it, and the function that does its work, given as `module:name`. The function takes
    the `Options` of every command, its own options and `given` as keywords, and returns the exit code; its errors
    become one line, or one JSON document.

    `about` is the help, and the list of commands shows its first sentence. `parameters` are the options and arguments,
    in the order of the help.
    """

    def __init__(self, work: str, about: str, *parameters: Callable[[Any], Any], **given: Any) -> None:
        self.about = about
        self._work = work
        self._parameters = parameters
        self.given = given

    @property
    def work(self) -> Callable[..., int]:
        """The function, imported."""
        module, _, name = self._work.partition(":")
        work: Callable[..., int] = getattr(import_module(f".{module}", __package__), name)
        return work

    def command(self, name: str) -> click.Command:
        """Build the command for click."""

        def run(
            *,
            config: tuple[Path, ...] = (),
            no_project: bool = False,
            trust: bool = False,
            as_json: bool = False,
            verbose: bool = False,
            log_format: "LogFormat" = "text",
            state: str | None = None,
            **wanted: Any,
        ) -> int:
            from .runtime import Options, execute

            options = Options(
                config=config,
                project=not no_project,
                trust=trust,
                as_json=as_json,
                verbose=verbose,
                log_format=log_format,
                state=state,
            )
            return execute(lambda: self.work(options, **self.given, **wanted), options)

        for parameter in reversed(self._parameters):
            run = parameter(run)
        return click.command(name, help=self.about)(run)

"""The entry of the command line: from its arguments to an exit code. Loads click only; a command is built when it is
run or its help is shown."""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from .commands import COMMANDS
from .options import COMPLETION, PROGRAM, CommandSignature

CommandTable = Mapping[str, CommandSignature | tuple[str, Mapping[str, CommandSignature]]]


class Commands(click.Group):
    """A group with the commands of a table, which has the signature of each command; of a group in it, its help and its
    own table."""

    def __init__(self, *, table: CommandTable, **more: Any) -> None:
        super().__init__(invoke_without_command=True, **more)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        del ctx
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Build one of the commands."""
        del ctx
        match self._table.get(cmd_name):
            case None:
                return None
            case CommandSignature() as signature:
                return signature.command(cmd_name)
            case about, table:
                return Commands(name=cmd_name, table=table, help=about, callback=click.pass_context(_help_alone))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence about each command, without building any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command)) for name, command in self._table.items()])


def _first_sentence(command: CommandSignature | tuple[str, object]) -> str:
    about = command.about if isinstance(command, CommandSignature) else command[0]
    return f"{about.partition('. ')[0].removesuffix('.')}."


def _help_alone(context: click.Context) -> None:
    """Print the help and exit with code 2, where no command follows."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        raise click.exceptions.Exit(2)


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from .versions import describe_installation

        click.echo("\n".join(describe_installation()))
        context.exit()


def _complete(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        from .completion import install, script

        act = install if parameter.name == "install_completion" else script
        click.echo(act(app, shell), nl=False)
        context.exit()


def _of_completion(name: str, about: str) -> click.Option:
    return click.Option(
        [name],
        is_flag=False,
        flag_value="",
        metavar="[SHELL]",
        is_eager=True,
        expose_value=False,
        callback=_complete,
        help=about,
    )


app: Commands = Commands(
    table=COMMANDS,
    name=PROGRAM,
    callback=click.pass_context(_help_alone),
    help="A Trio nursery for MCP servers: supervised, restarted by policy, routed, stopped without a trace.",
    epilog="Exit codes: 0 done, 1 the tool answered with an error, 2 usage or configuration, 3 server not available, "
    "4 not approved or not trusted.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Print the version, the commit it was built from, and what it depends on.",
        ),
        _of_completion("--install-completion", "Install completion for bash, zsh or fish. Default: your shell."),
        _of_completion("--show-completion", "Print the completion script."),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110},
)


def run_command_line(argv: Sequence[str]) -> int:
    """Run one command line to its exit code."""
    _tolerate_narrow_encodings()
    try:
        if argv[:1] == ["serve"] and "--" in argv and list(argv).index("--") == len(argv) - 1:
            raise click.UsageError(f"there is no command after '--': {PROGRAM} serve -- COMMAND …")
        if asked := os.environ.get(COMPLETION):
            from .completion import complete

            return complete(app, asked)
        with app.make_context(PROGRAM, list(argv)) as context:
            code: int = app.invoke(context)
    except click.UsageError as error:
        return _report_usage(error, argv)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code


def _report_usage(error: click.UsageError, argv: Sequence[str]) -> int:
    from .failures import USAGE, error_document
    from .output import warn, write_json

    message = error.format_message()
    if "--json" in argv:
        write_json(error_document("UsageError", " ".join(message.split())))
    else:
        warn(f"{message.rstrip('.')}; try '{PROGRAM} --help'")
    return USAGE


def _tolerate_narrow_encodings() -> None:
    # A server's text need not fit the terminal's encoding.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

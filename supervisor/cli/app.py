"""The commands and their options. Loads typer only; what a command needs is imported when it runs."""

import io
import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

if TYPE_CHECKING:
    from mcp_nursery.supervisor.config.edits import Change
    from mcp_nursery.supervisor.control.client import ControlClient
    from mcp_nursery.supervisor.gateway import Unattended
    from mcp_nursery.supervisor.storage.pins import PinMode

    from .runtime import Options

PROGRAM = "mcp-nursery"
STATUS_SECONDS: Final = 10.0
"""Seconds for which `status` waits for servers that are connecting."""

app: Final = typer.Typer(
    name=PROGRAM,
    help="A Trio nursery for MCP servers: supervised, restarted by policy, routed, stopped without a trace.",
    epilog="Exit codes: 0 done, 1 the tool answered with an error, 2 usage or configuration, 3 server not available, "
    "4 not approved or not trusted.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

auth_app: Final = typer.Typer(help="Tokens of servers that want OAuth.", no_args_is_help=True)
app.add_typer(auth_app, name="auth")
token_app: Final = typer.Typer(help="Tokens of clients that `serve --http` lets in.", no_args_is_help=True)
app.add_typer(token_app, name="token")

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A file with servers, of any host. May repeat; later files win. Without it: .mcp.json and the like of the "
        "project, and the user's own.",
        show_default=False,
    ),
]
ServerName = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="PID",
        help="The host's process. Without it: the only one that runs, or the only one with that server.",
        show_default=False,
    ),
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print what happens, one JSON document a line.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Trust = Annotated[bool, typer.Option("--trust", help="Trust the project's files for this run, without being asked.")]
NoProject = Annotated[bool, typer.Option("--no-project", help="Do not look for files of the project.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print the log on standard error.")]
TokensFile = Annotated[Path, typer.Option("--file", "--token-file", metavar="FILE", help="The file of their digests.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0, metavar="S", help="Seconds to wait for the answer.", show_default=False),
]


class Scope(Enum):
    """Whose file of a host."""

    USER = "user"
    PROJECT = "project"


# The base that typer's errors about usage share; it exports only this one of them.
UsageError: type[Exception] = typer.BadParameter.__base__ or Exception


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Without a command: the help, and exit code 2."""
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def demo(*, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Watch a set of built-in servers being supervised; one of them crashes. Needs no configuration."""
    from .demo import demo as command

    _execute(command, _options(None, as_json=as_json, verbose=verbose))


@app.command()
def run(
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJsonLines = False,
    verbose: Verbose = False,
) -> None:
    """Keep the servers running and show how they do, on a full screen that takes orders, until `q` or Ctrl-C."""
    from .run import run as command

    _execute(command, _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose))


@app.command()
def top(*, host: Host = None, as_json: AsJsonLines = False, verbose: Verbose = False) -> None:
    """Show the same screen of a running host, until `q` or Ctrl-C."""
    from .attached import top as command
    from .hosts import HostOptions

    _execute(lambda options: command(options, HostOptions(host)), _options(None, as_json=as_json, verbose=verbose))


@app.command()
def reconnect(name: ServerName, *, host: Host = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Have a running host start a server afresh now, and wait for the outcome."""
    _tell(lambda client: client.reconnect(name), name, host, _options(None, as_json=as_json, verbose=verbose))


@app.command()
def stop(name: ServerName, *, host: Host = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Have a running host end a server, and leave it stopped."""
    _tell(lambda client: client.stop(name), name, host, _options(None, as_json=as_json, verbose=verbose))


@app.command()
def start(name: ServerName, *, host: Host = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Have a running host start a server that does not run."""
    _tell(lambda client: client.start(name), name, host, _options(None, as_json=as_json, verbose=verbose))


def _tell(act: "Callable[[ControlClient], Awaitable[None]]", name: str, host: str | None, options: "Options") -> None:
    from .attached import command
    from .hosts import HostOptions

    _execute(lambda options: command(options, HostOptions(host), name, act), options)


@app.command()
def reload(
    *,
    restart: Annotated[bool, typer.Option("--restart", help="Have every server begin again.")] = False,
    host: Host = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Have a running host read its files again."""
    from .attached import reload as command
    from .hosts import HostOptions

    _execute(
        lambda options: command(options, HostOptions(host), restart=restart),
        _options(None, as_json=as_json, verbose=verbose),
    )


@app.command()
def serve(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND ARG…", help="One server, under its own names.")
    ] = None,
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="How tools of all servers are named.")
    ] = "{server}_{tool}",
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", "--call-seconds", metavar="SECONDS", help="For one call to a server. Without it: no limit."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The server's name. Without it: its program's.")
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where the server runs.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A variable for the server, over those of the host. May repeat. All users can see it: no secrets.",
        ),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="When the server is restarted: permanent (the default), transient or temporary."
        ),
    ] = None,
    restart_delays: Annotated[
        str | None, typer.Option(metavar="SECONDS,…", help="The pauses before restarts of the server: 2,5,15.")
    ] = None,
    stable_after_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="When the pauses begin anew: after 30 s of connection.")
    ] = None,
    connect_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="What a start of the server may take: 30.")
    ] = None,
    idle_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop the server when it was unused for so long.")
    ] = None,
    revive: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="What ends a failure: never, on_call, SECONDS, or (as is) on_call,300."),
    ] = None,
    liveness: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS[,SECONDS]", help="Probe the server after such silence, and what it has to answer."
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="What is spoken with the server: auto, handshake, or a version."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve over HTTP, at /mcp, and not on standard streams. Port 0: any."),
    ] = None,
    lazy: Annotated[
        bool,
        typer.Option("--lazy", help="Start a server when it is first called; what it had is offered meanwhile."),
    ] = False,
    search: Annotated[
        bool,
        typer.Option("--search", help="Show two tools, find_tools and call_tool, in place of all definitions."),
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The tokens that let clients in: see `token add`.")
    ] = None,
    oauth_issuer: Annotated[
        str | None, typer.Option(metavar="URL", help="Let in clients with an access token (JWT) of this issuer.")
    ] = None,
    oauth_jwks: Annotated[
        str | None, typer.Option(metavar="URL", help="Where its keys are. Without it: where its metadata says.")
    ] = None,
    audience: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="For whom tokens are, besides for the address that is asked. May repeat."),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="A scope that a token needs. May repeat.")
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="What clients call this gateway, https://HOST, without /mcp.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="A certificate, as PEM.")] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its key. The password of that: $MCP_NURSERY_TLS_KEY_PASSWORD."),
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Something before it ends TLS: serve without it.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name that it is reached by. May repeat.")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="An origin whose pages may use it, https://NAME. May repeat."),
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Serve at /metrics all that OpenTelemetry is told, too.")
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="What clients may cost, such as sessions=200. May repeat."),
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Put what servers answer between marks that say it is no instruction.")
    ] = False,
    ask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Ask the client's user before calls of these tools, SERVER/TOOL. May repeat."
        ),
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Refuse calls of these tools, SERVER/TOOL. May repeat.")
    ] = None,
    unattended: Annotated[
        str, typer.Option(metavar="allow|deny", help="What becomes of calls that a client cannot be asked about.")
    ] = "allow",
    pins: Annotated[
        str, typer.Option(metavar="report|block", help="What becomes of tools whose definitions have changed.")
    ] = "report",
    hold: Annotated[
        float, typer.Option(metavar="SECONDS", help="What a call waits for its client to come back with answers.")
    ] = 300.0,
    gate: Annotated[
        float, typer.Option(metavar="SECONDS", help="What lists wait for servers that start at most.")
    ] = 10.0,
    drain: Annotated[float, typer.Option(metavar="SECONDS", help="What calls under way may take after SIGTERM.")] = 5.0,
    verbose: Verbose = False,
) -> None:
    """Serve the servers as one MCP server, on standard input and output or over HTTP."""
    from .command_server import CommandServer
    from .http_options import serving_over_http
    from .serve import Serving
    from .serve import serve as serve_servers

    def start(options: "Options") -> int:
        over_http = serving_over_http(
            http,
            token_file=token_file,
            oauth_issuer=oauth_issuer,
            oauth_jwks=oauth_jwks,
            audience=audience,
            scope=scope,
            public_url=public_url,
            tls_cert=tls_cert,
            tls_key=tls_key,
            behind_proxy=behind_proxy,
            allowed_host=allowed_host,
            allowed_origin=allowed_origin,
            metrics=metrics,
            limit=limit,
        )
        serving = Serving(
            tuple(command or ()),
            server=CommandServer(
                name=name,
                cwd=cwd,
                env=tuple(env or ()),
                restart=restart,
                restart_delays=restart_delays,
                stable_after_seconds=stable_after_seconds,
                connect_seconds=connect_seconds,
                idle_seconds=idle_seconds,
                revive=revive,
                liveness=liveness,
                protocol=protocol,
            ),
            template=template,
            timeout=timeout,
            http=over_http,
            hold=hold,
            gate=gate,
            drain=drain,
            lazy=lazy,
            search=search,
            mark=mark,
            ask=ask or (),
            deny=deny or (),
            unattended=cast("Unattended", unattended),
            pins=cast("PinMode", pins),
        )
        return serve_servers(options, serving)

    _execute(start, _options(config, no_project=no_project, trust=trust, verbose=verbose))


@app.command()
def status(
    *,
    attach: Annotated[
        bool | None,
        typer.Option(
            "--attach/--no-attach",
            help="Show those of a running host whatever they are, and start nothing; or start them here in any case.",
            show_default=False,
        ),
    ] = None,
    host: Host = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="S", help="Seconds to wait for servers that are connecting.")
    ] = STATUS_SECONDS,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show where each server stands, as soon as that is clear: as a running host says that supervises them, or else by
    starting and stopping them, but lazy ones."""
    from .status import StatusOptions, show_status

    wanted = StatusOptions(attach=attach, host=host, timeout=timeout)
    options = _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose)
    _execute(lambda options: show_status(options, wanted), options)


@app.command()
def logs(
    name: ServerName,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what it writes, until Ctrl-C. Of a running host.")
    ] = False,
    host: Host = None,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Print the last lines that a server of a running host wrote to standard error. Where none has it, or a file is
    named, start it and stop it."""
    from .logs import log

    _execute(
        lambda options: log(options, name, host=host, follow=follow),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


@app.command()
def tools(
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers, list their tools, stop them."""
    from .tools import show_tools

    _execute(show_tools, _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose))


@app.command()
def resources(
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers, list what can be read of them, stop them."""
    from .resources import show_resources

    _execute(show_resources, _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose))


@app.command()
def read(
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="One out of `resources`, or made from a template; with --server, any."),
    ],
    *,
    server: Annotated[str | None, typer.Option("--server", help="The server to ask.", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the content to this file, as it is, and do not print it.",
            show_default=False,
        ),
    ] = None,
    timeout: Timeout = None,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers it takes, read one resource, print what it holds, stop the servers."""
    from .resources import ReadOptions
    from .resources import read as command

    wanted = ReadOptions(uri=uri, server=server, timeout=timeout, output=output)
    _execute(
        lambda options: command(options, wanted),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


@app.command()
def prompts(
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers, list their prompts, stop them."""
    from .prompts import show_prompts

    _execute(show_prompts, _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose))


@app.command()
def prompt(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name out of `prompts`; with --server, the server's own name of the prompt."
        ),
    ],
    *,
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="The arguments, a JSON object of texts.")] = "{}",
    server: Annotated[
        str | None, typer.Option("--server", help="The server that has the prompt.", show_default=False)
    ] = None,
    timeout: Timeout = None,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers it takes, have one prompt filled in, print its messages, stop the servers."""
    from .prompts import PromptOptions
    from .prompts import prompt as command

    wanted = PromptOptions(name=name, args=args, server=server, timeout=timeout)
    _execute(
        lambda options: command(options, wanted),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


@app.command()
def call(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name out of `tools`; with --server, the server's own name of the tool."),
    ],
    *,
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="The arguments, a JSON object.")] = "{}",
    server: Annotated[
        str | None, typer.Option("--server", help="The server that has the tool.", show_default=False)
    ] = None,
    timeout: Timeout = None,
    max_result_chars: Annotated[
        int | None,
        typer.Option(
            "--max-result-chars",
            min=1,
            metavar="N",
            help="Show at most so many characters of the result.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Call without asking.")] = False,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers it takes, call one tool, print its result, stop the servers."""
    from .call import CallOptions
    from .call import call as command

    wanted = CallOptions(
        name=name, args=args, server=server, timeout=timeout, max_result_chars=max_result_chars, yes=yes
    )
    _execute(
        lambda options: command(options, wanted),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


def _check_until(text: str) -> str:
    if text not in ("all", "first") and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter("'all', 'first' or a number of successes, 1 or more", param_hint="--until")
    return text


@app.command(name="fan-out")
def fan_out(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The servers' own name of the tool.")],
    *,
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="The arguments, a JSON object.")] = "{}",
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="all|first|N",
            callback=_check_until,
            help="Stop at every outcome, at the first success, or at N successes; the rest is cancelled.",
        ),
    ] = "all",
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="S", help="Seconds to wait for each answer.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Call without asking.")] = False,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Start the servers, call one tool on each that has it, print outcomes as they finish, stop the servers."""
    from .fan_out import FanOutOptions
    from .fan_out import fan_out as command

    wanted = FanOutOptions(
        tool=tool,
        args=args,
        until="all" if until == "all" else "first" if until == "first" else int(until),
        timeout=timeout,
        yes=yes,
    )
    _execute(
        lambda options: command(options, wanted),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


@app.command()
def check(
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of our own files instead.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say what is wrong with a configuration. Starts nothing."""
    from .check import check, print_schema

    _execute(
        print_schema if schema else check, _options(config, no_project=no_project, as_json=as_json, verbose=verbose)
    )


@app.command(name="import")
def import_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files of other hosts; by default those in your home folder.", show_default=False
        ),
    ] = None,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="The file to write; your own by default.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Write the servers of other hosts' files into one of our own."""
    from .importing import ImportOptions, import_servers

    wanted = ImportOptions(files=tuple(files or ()), to=to, force=force)
    _execute(lambda options: import_servers(options, wanted), _options(None, as_json=as_json, verbose=verbose))


@app.command()
def install(
    host: Annotated[
        str | None,
        typer.Argument(metavar="[HOST]", help="Such as claude-code; without it: which there are.", show_default=False),
    ] = None,
    *,
    scope: Annotated[
        Scope, typer.Option(help="Whose file: the user's, or that of the project in the working directory.")
    ] = Scope.USER,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="This file of that host.", show_default=False)
    ] = None,
    adopt: Annotated[bool, typer.Option("--adopt", help="Move the servers in it behind mcp-nursery.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what was done to it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change alone.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Write mcp-nursery into a host's own file, so that the host starts it. Shows the change first."""
    from .install import InstallOptions, install_gateway

    wanted = InstallOptions(host, scope.value, file, adopt=adopt, undo=undo, yes=yes, dry_run=dry_run)
    _execute(lambda options: install_gateway(options, wanted), _options(None, as_json=as_json, verbose=verbose))


@app.command()
def enable(name: ServerName, *, config: ConfigFiles = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Switch a server on, in the file that it stands in: your own, or one that is named. Starts nothing."""
    _edit(name, "enable", _options(config, no_project=True, as_json=as_json, verbose=verbose))


@app.command()
def disable(name: ServerName, *, config: ConfigFiles = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Switch a server off, in the file that it stands in: your own, or one that is named. Stops nothing."""
    _edit(name, "disable", _options(config, no_project=True, as_json=as_json, verbose=verbose))


@app.command()
def remove(name: ServerName, *, config: ConfigFiles = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Take a server out of the file that it stands in: your own, or one that is named. Stops nothing."""
    _edit(name, "remove", _options(config, no_project=True, as_json=as_json, verbose=verbose))


def _edit(name: str, change: "Change", options: "Options") -> None:
    from .edit import edit

    _execute(lambda options: edit(options, name, change), options)


@app.command()
def trust(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The project's file.", show_default=False)
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Trust all of it without being asked.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show what a project's file would start, run or read, and remember that you trust it."""
    from .trust import TrustOptions
    from .trust import trust as command

    wanted = TrustOptions(file=file, yes=yes)
    _execute(lambda options: command(options, wanted), _options(None, as_json=as_json, verbose=verbose))


@app.command()
def pins(
    server: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", help="Only the tools of this server.", show_default=False)
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept all of it without being asked.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show how tools have changed since they were first used, and write down what you accept. Starts nothing."""
    from .pins import PinsOptions
    from .pins import pins as command

    wanted = PinsOptions(server=server, yes=yes)
    _execute(lambda options: command(options, wanted), _options(None, as_json=as_json, verbose=verbose))


@app.command()
def login(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")],
    *,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser; it is printed in any case.")] = True,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Authorise a server that wants OAuth, on a page in a browser. Hosts that run have the server back at once."""
    from .login import LoginOptions
    from .login import login as command

    wanted = LoginOptions(name=name, browser=browser)
    _execute(
        lambda options: command(options, wanted),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


@app.command()
def logout(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")],
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Keep the tokens of a server no more."""
    from .login import logout as command

    _execute(
        lambda options: command(options, name),
        _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose),
    )


@auth_app.command(name="status")
def auth_status(
    *,
    config: ConfigFiles = None,
    no_project: NoProject = False,
    trust: Trust = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show which of the servers that want OAuth are authorised, and where their tokens are. Starts nothing."""
    from .login import auth_status as command

    _execute(command, _options(config, no_project=no_project, trust=trust, as_json=as_json, verbose=verbose))


@token_app.command(name="add")
def token_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")],
    *,
    file: TokensFile,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="SERVER/TOOL", help="A glob of what it may use. May repeat; without it everything."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0, metavar="N", help="Valid for so long; without it until it is removed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, print it this once, and keep its digest."""
    from .token import add

    _execute(lambda options: add(options, name, file, allow or (), days), _options(None, as_json=as_json))


@token_app.command(name="list")
def token_list(*, file: TokensFile, as_json: AsJson = False) -> None:
    """Show whose tokens there are, what each may use, and until when."""
    from .token import show

    _execute(lambda options: show(options, file), _options(None, as_json=as_json))


@token_app.command(name="remove")
def token_remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")],
    *,
    file: TokensFile,
    as_json: AsJson = False,
) -> None:
    """Take a token out. A gateway that runs lets it in for a second or two more."""
    from .token import remove

    _execute(lambda options: remove(options, name, file), _options(None, as_json=as_json))


def run_command_line(argv: Sequence[str]) -> int:
    """Run one command line to its exit code."""
    _tolerate_narrow_encodings()
    try:
        if argv[:1] == ["serve"] and "--" in argv and list(argv).index("--") == len(argv) - 1:
            raise UsageError(f"there is no command after '--': {PROGRAM} serve -- COMMAND …")
        code = typer.main.get_command(app).main(list(argv), prog_name=PROGRAM, standalone_mode=False)
    except UsageError as error:
        return _report_usage(error, argv)
    return code or 0


def _options(
    config: Sequence[Path] | None,
    *,
    no_project: bool = False,
    trust: bool = False,
    as_json: bool = False,
    verbose: bool = False,
) -> "Options":
    from .runtime import Options

    return Options(config=tuple(config or ()), project=not no_project, trust=trust, as_json=as_json, verbose=verbose)


def _execute(command: "Callable[[Options], int]", options: "Options") -> None:
    from .runtime import execute

    raise typer.Exit(execute(lambda: command(options), options))


def _report_usage(error: Exception, argv: Sequence[str]) -> int:
    from .failures import USAGE, error_document
    from .output import warn, write_json

    message: str = getattr(error, "format_message", error.__str__)()
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

"""Every command of the command line: its help, its options, and the function that does its work.

A command is built when it is run or its help is shown; until then this is a table.
"""

import re
from collections.abc import Mapping
from typing import Final

import click

from .options import FILE, NOT_NEGATIVE, CommandSignature, argument, option

STATUS_SECONDS: Final = 10.0
"""Seconds for which `status` waits for servers that are connecting."""

_CONFIG: Final = option(
    "--config FILE",
    "A configuration file of any host. May repeat; later files win. Default: those of the project, such as .mcp.json, "
    "and your own.",
    type=FILE,
    multiple=True,
)
_NO_PROJECT: Final = option("--no-project", "Ignore the project's files.")
_TRUST: Final = option("--trust", "Trust the project's files for this run, without a question.")
_JSON: Final = option("--json", "Print one JSON document on standard output.", to="as_json")
_JSON_LINES: Final = option("--json", "Print one JSON document per line.", to="as_json")
_VERBOSE: Final = option("--verbose", "Print the log on standard error.")
_LOG_FORMAT: Final = option(
    "--log-format text|json",
    "How lines on standard error are written: text, or JSON objects.",
    type=click.Choice(["text", "json"]),
    default="text",
)
_STATE: Final = option(
    "--state FILE|URL",
    "What outlasts a run: a file, or postgresql://… for several machines. $MCP_NURSERY_STATE names it, too. Default: "
    "your own file.",
    envvar="MCP_NURSERY_STATE",  # all users can read the arguments of a process
)
_OUTPUT: Final = (_JSON, _VERBOSE)
"""The options for the output of a command."""
_SERVERS: Final = (_CONFIG, _NO_PROJECT, _TRUST, _STATE, *_OUTPUT)
"""The options for the servers of a command, their state, and the output."""

_NAME: Final = argument("NAME", "The name of the server.")
_HOST: Final = option(
    "--host PID", "The process id of the host. Default: the only host that runs, or the only one with this server."
)
_ORDER: Final = (_NAME, _HOST, *_OUTPUT)
_EDIT: Final = (_NAME, _CONFIG, *_OUTPUT)
_TIMEOUT: Final = option("--timeout S", "Seconds to wait for the answer.", type=NOT_NEGATIVE)
_ARGS: Final = option("--args JSON", "The arguments, as a JSON object.", default="{}")
_ACCEPT: Final = option("-y --yes", "Accept every change without a question.")
_CALL: Final = option("-y --yes", "Call without a question.")


def _until(_context: click.Context, _parameter: click.Parameter, text: str) -> str | int:
    if text in ("all", "first"):
        return text
    if re.fullmatch("[1-9][0-9]{0,8}", text):
        return int(text)
    raise click.BadParameter("must be 'all', 'first' or a number of successes, 1 or more", param_hint="--until")


# -- serve ------------------------------------------------------------------------------------------------------------

_ENTRY: Final = (
    option("--name NAME", "The name of the server. Default: the name of its program."),
    option("--cwd FOLDER", "The working directory of the server."),
    option(
        "--env NAME=VALUE",
        "A variable for the server, in addition to the environment. May repeat. All users can read it: no secrets.",
        multiple=True,
    ),
    option("--restart MODE", "When to restart the server: permanent (the default), transient or temporary."),
    option("--restart-delays SECONDS,…", "The pauses before restarts. Default: 2,5,15."),
    option("--stable-after-seconds SECONDS", "The connected time that resets the pauses. Default: 30.", type=float),
    option("--connect-seconds SECONDS", "The time limit for a start of the server. Default: 30.", type=float),
    option("--idle-seconds SECONDS", "Stop the server after so long without use.", type=float),
    option("--revive HOW", "What ends a failure: never, on_call, SECONDS, or on_call,SECONDS. Default: on_call,300."),
    option("--liveness SECONDS[,SECONDS]", "Probe the server after so long a silence, with this time limit."),
    option("--protocol VERSION", "The protocol to speak with it: auto, handshake, handshake-first, or a version."),
)
"""The fields of `CommandServer`: those of the entry that a file would have for the one server."""

_OVER_HTTP: Final = (
    option("--token-file FILE", "The tokens of clients: see `token add`.", type=FILE),
    option("--oauth-issuer URL", "Admit clients with an access token (JWT) of this issuer."),
    option("--oauth-jwks URL", "The keys of the issuer. Default: as its metadata says."),
    option("--audience TEXT", "Another audience of tokens, besides the requested address. May repeat.", multiple=True),
    option("--scope SCOPE", "A scope that a token needs. May repeat.", multiple=True),
    option("--public-url URL", "The address by which clients call this gateway: https://HOST, without /mcp."),
    option("--tls-cert FILE", "A certificate, as PEM.", type=FILE),
    option("--tls-key FILE", "Its key. $MCP_NURSERY_TLS_KEY_PASSWORD holds the password of the key.", type=FILE),
    option("--behind-proxy", "Serve without TLS, because a proxy in front ends TLS."),
    option("--allowed-host NAME", "Another host name of this gateway. May repeat.", multiple=True),
    option("--allowed-origin ORIGIN", "A web origin that may call it, https://NAME. May repeat.", multiple=True),
    option("--metrics", "Add all OpenTelemetry metrics to /metrics."),
    option("--ui", "Add a page at /ui, on which to look at servers and clients, and to act on them."),
    option("--limit NAME=NUMBER", "A limit on clients, such as sessions=200. May repeat.", multiple=True),
    option("--reuse-port", "Listen beside another gateway on the same port, which is to end then."),
    option(
        "--lame-duck SECONDS",
        "How long requests are answered after SIGTERM, while /readyz is 503. Default: 0; 2 if the socket is shared.",
        type=float,
    ),
    option(
        "--replica-key FILE",
        "Keys for session ids, one a line: the first seals, all open. Gateways with a key in common go on with each "
        "other's sessions: see `key new`. Default: a key of your own, in your state folder.",
        type=FILE,
    ),
    option("--no-resume", "End sessions with the gateway, in place of going on with them after a restart."),
    option(
        "--session-max-age SECONDS",
        "How long after its beginning a gateway that does not know a session goes on with it. Default: 30 days.",
        type=float,
    ),
)
"""The arguments of `HttpFront`: options that need `--http`."""

_SERVE: Final = CommandSignature(
    "serve:serve",
    "Serve all servers as one MCP server, on standard input and output or over HTTP.",
    argument("-- COMMAND ARG…", "One server, under its own names.", to="command", nargs=-1, required=False),
    _CONFIG,
    _NO_PROJECT,
    _TRUST,
    _STATE,
    option("--template TEMPLATE", "How the tools of all servers are named.", default="{server}_{tool}"),
    option(
        "--timeout --call-seconds SECONDS",
        "The time limit for one call, without the time in which a client is asked. Default: none.",
        type=float,
    ),
    *_ENTRY,
    option("--http HOST:PORT", "Serve over HTTP, at /mcp, in place of standard streams. Port 0 takes a free port."),
    option("--lazy", "Start each server at its first call; until then list its tools from the cache."),
    option("--search", "List two tools, find_tools and call_tool, in place of all definitions."),
    *_OVER_HTTP,
    option("--mark", "Put answers of servers between marks that tell a model they are no instructions."),
    option("--ask GLOB", "Ask the client's user before calls of these tools, SERVER/TOOL. May repeat.", multiple=True),
    option("--deny GLOB", "Refuse calls of these tools, SERVER/TOOL. May repeat.", multiple=True),
    option("--unattended allow|deny", "What to do with a call if the client cannot ask its user.", default="allow"),
    option("--pins report|block", "What to do with tools and skills that have changed.", default="report"),
    option(
        "--hold SECONDS", "How long a call is held while its server restarts. 0: refuse it.", type=float, default=20.0
    ),
    option(
        "--answer-within SECONDS",
        "How long a client may take to answer, for servers whose entries have no humanSeconds. Default: 600.",
        type=float,
    ),
    option(
        "--tasks SECONDS",
        "After how long a call becomes a task, for clients that declare Tasks, at servers that do not. Default: never.",
        type=float,
    ),
    option("--gate SECONDS", "How long a list waits for servers that are starting.", type=float, default=10.0),
    option("--drain SECONDS", "How long calls may go on after SIGTERM.", type=float, default=5.0),
    _LOG_FORMAT,
    _VERBOSE,
)

# -- the table --------------------------------------------------------------------------------------------------------

_AUTH: Final[Mapping[str, CommandSignature]] = {
    "status": CommandSignature(
        "login:auth_status",
        "Show which servers that use OAuth are authorised, and where their tokens are. Starts nothing.",
        *_SERVERS,
    ),
}
_TOKEN_NAME: Final = argument("NAME", "The name of the client.")
_TOKEN_FILE: Final = option("--file --token-file FILE", "The file of token digests.", type=FILE, required=True)
_TOKEN: Final[Mapping[str, CommandSignature]] = {
    "add": CommandSignature(
        "token:add",
        "Make a token, print it once, and keep its digest.",
        _TOKEN_NAME,
        _TOKEN_FILE,
        option("--allow SERVER/TOOL", "A glob of tools it may use. May repeat. Default: every tool.", multiple=True),
        option("--days N", "The days for which it is valid. Default: until it is removed.", type=NOT_NEGATIVE),
        _JSON,
    ),
    "list": CommandSignature("token:show", "List tokens: their clients, their tools, their end.", _TOKEN_FILE, _JSON),
    "remove": CommandSignature(
        "token:remove",
        "Remove a token. A running gateway admits it for one or two seconds more.",
        _TOKEN_NAME,
        _TOKEN_FILE,
        _JSON,
    ),
}

_KEY: Final[Mapping[str, CommandSignature]] = {
    "new": CommandSignature("session_keys:new", "Print a new key for the file of `serve --replica-key`.", _JSON),
}

COMMANDS: Final[Mapping[str, CommandSignature | tuple[str, Mapping[str, CommandSignature]]]] = {
    "demo": CommandSignature(
        "demo:demo",
        "Watch built-in servers under supervision while one of them crashes. Needs no configuration.",
        *_OUTPUT,
    ),
    "run": CommandSignature(
        "watching:run",
        "Supervise the servers and show their state on a full screen, until `q` or Ctrl-C. Keys reconnect, stop and "
        "start servers. Without a terminal it prints a line for each event.",
        option("--web HOST:PORT", "Show a page there, too, for browsers of this machine. Port 0 takes a free port."),
        _CONFIG,
        _NO_PROJECT,
        _TRUST,
        _STATE,
        _LOG_FORMAT,
        _JSON_LINES,
        _VERBOSE,
    ),
    "top": CommandSignature(
        "watching:top", "Show the same screen for a running host, until `q` or Ctrl-C.", _HOST, _JSON_LINES, _VERBOSE
    ),
    "reconnect": CommandSignature(
        "running_hosts:order",
        "Reconnect a server of a running host now, and wait for the outcome.",
        *_ORDER,
        action="reconnect",
    ),
    "stop": CommandSignature(
        "running_hosts:order", "Stop a server of a running host; it stays stopped.", *_ORDER, action="stop"
    ),
    "start": CommandSignature(
        "running_hosts:order", "Start a server of a running host, unless it runs already.", *_ORDER, action="start"
    ),
    "reload": CommandSignature(
        "running_hosts:reload",
        "Have a running host read its configuration files again.",
        option("--restart", "Restart every server."),
        _HOST,
        *_OUTPUT,
    ),
    "serve": _SERVE,
    "status": CommandSignature(
        "status:status",
        "Show the state of each server. The running host that supervises these servers is asked; without one, they are "
        "started, except lazy ones, and stopped.",
        option(
            "--attach/--no-attach",
            "Ask a running host, whatever its servers, and start nothing; or start the servers in any case.",
            default=None,
        ),
        _HOST,
        option(
            "--timeout S", "Seconds to wait for servers that are connecting.", type=NOT_NEGATIVE, default=STATUS_SECONDS
        ),
        option("--strict", "Fail if any server is down, and not only if all are. Idle and stopped ones are not down."),
        *_SERVERS,
    ),
    "logs": CommandSignature(
        "running_hosts:logs",
        "Print the last lines that a server wrote to standard error. A running host is asked; if none has the server, "
        "or a file is named, the server is started and stopped.",
        _NAME,
        option("--follow -f", "Go on with new lines of a running host, until Ctrl-C."),
        _HOST,
        *_SERVERS,
    ),
    "tools": CommandSignature("tools:tools", "Start the servers, list their tools, stop them.", *_SERVERS),
    "resources": CommandSignature(
        "resources:resources", "Start the servers, list their resources, stop them.", *_SERVERS
    ),
    "read": CommandSignature(
        "resources:read",
        "Start the servers needed, read one resource, print its content, stop the servers.",
        argument("URI", "A URI that `resources` lists or that follows a template; with --server any URI."),
        option("--server NAME", "The server that has the resource."),
        option("--output FILE", "Write the content to this file, unchanged, in place of printing it.", type=FILE),
        _TIMEOUT,
        *_SERVERS,
    ),
    "skills": CommandSignature("skills:skills", "Start the servers, list their skills, stop them.", *_SERVERS),
    "skill": CommandSignature(
        "skills:skill",
        "Start the servers, read the SKILL.md of a skill or another file of it, verify it, print it, stop the servers.",
        argument("NAME", "A name that `skills` lists, SERVER/NAME, or the URI of a SKILL.md."),
        argument("FILE", "The path of another file in the folder of the skill.", required=False),
        option("--server NAME", "The server that has the skill."),
        option("--output FILE", "Write the content to this file, unchanged, in place of printing it.", type=FILE),
        _TIMEOUT,
        *_SERVERS,
    ),
    "prompts": CommandSignature("resources:prompts", "Start the servers, list their prompts, stop them.", *_SERVERS),
    "prompt": CommandSignature(
        "resources:prompt",
        "Start the servers needed, fill in one prompt, print its messages, stop the servers.",
        argument("NAME", "A name that `prompts` lists; with --server the server's own name of the prompt."),
        option("--args JSON", "The arguments, as a JSON object of strings.", default="{}"),
        option("--server NAME", "The server that has the prompt."),
        _TIMEOUT,
        *_SERVERS,
    ),
    "call": CommandSignature(
        "tasks:call",
        "Start the servers needed, call one tool, print its result, stop the servers.",
        argument("NAME", "A name that `tools` lists; with --server the server's own name of the tool."),
        _ARGS,
        option("--server NAME", "The server that has the tool."),
        _TIMEOUT,
        option("--max-result-chars N", "Print at most so many characters of the result.", type=click.IntRange(min=1)),
        _CALL,
        option("--detach", "Have a running host make the call and follow its task; print the id of the task."),
        _HOST,
        *_SERVERS,
    ),
    "tasks": CommandSignature(
        "tasks:tasks",
        "List the recorded tasks of all hosts with this state. Starts nothing.",
        option("--watch", "Print a line for each change, until Ctrl-C."),
        _STATE,
        *_OUTPUT,
    ),
    "task": CommandSignature(
        "tasks:task",
        "Show a recorded task. Starts nothing without an option.",
        argument("ID", "The id of the task."),
        option("--wait", "Wait for its result and print that. If no host follows the task, its server is started."),
        option("--cancel", "Have it cancelled."),
        *_SERVERS,
    ),
    "fan-out": CommandSignature(
        "tools:fan_out",
        "Start the servers, call one tool on each server that has it, print outcomes as they arrive, stop the servers.",
        argument("TOOL", "The servers' own name of the tool."),
        _ARGS,
        option(
            "--until all|first|N",
            "End with every outcome, with the first success, or with N successes; the other calls are cancelled.",
            default="all",
            callback=_until,
        ),
        option("--timeout S", "Seconds to wait for each answer.", type=NOT_NEGATIVE),
        _CALL,
        *_SERVERS,
    ),
    "check": CommandSignature(
        "files:check",
        "Check configuration files for errors. Starts nothing.",
        _CONFIG,
        _NO_PROJECT,
        option("--schema", "Print the JSON Schema of mcp-nursery's own files instead."),
        _STATE,
        *_OUTPUT,
    ),
    "doctor": CommandSignature(
        "doctor:doctor",
        "Describe this machine, its files and its servers for a bug report, without secrets. Starts trusted servers.",
        option("--start/--no-start", "Start the servers that are trusted, and stop them.", default=True),
        option(
            "--timeout S", "Seconds to wait for servers that are connecting.", type=NOT_NEGATIVE, default=STATUS_SECONDS
        ),
        *_SERVERS,
    ),
    "import": CommandSignature(
        "files:import_servers",
        "Copy the servers of other hosts' files into one file for mcp-nursery.",
        argument("[FILE]...", "Files of other hosts. Default: those in your home.", to="files", type=FILE, nargs=-1),
        option("--to FILE", "The file to write. Default: your own file.", type=FILE),
        option("--force", "Overwrite an existing file."),
        *_OUTPUT,
    ),
    "install": CommandSignature(
        "install:install_gateway",
        "Add mcp-nursery to a host's configuration file, so that the host starts it. Shows the change first.",
        argument("[HOST]", "The host, such as claude-code. Without it: list the hosts found."),
        option(
            "--scope",
            "Which file: yours, or that of the project in the working directory.",
            type=click.Choice(["user", "project"]),
            default="user",
        ),
        option("--file FILE", "This file of the host.", type=FILE),
        option("--adopt", "Move the servers in it behind mcp-nursery."),
        option("--undo", "Restore the backup of the file, if it was not changed since.", to="undoing"),
        option("-y --yes", "Write without a question."),
        option("--dry-run", "Show the change, write nothing."),
        *_OUTPUT,
    ),
    "enable": CommandSignature(
        "files:edit",
        "Enable a server in its configuration file. That is your own, or one named with --config. Starts nothing.",
        *_EDIT,
        change="enable",
    ),
    "disable": CommandSignature(
        "files:edit",
        "Disable a server in its configuration file. That is your own, or one named with --config. Stops nothing.",
        *_EDIT,
        change="disable",
    ),
    "remove": CommandSignature(
        "files:edit",
        "Remove a server from its configuration file. That is your own, or one named with --config. Stops nothing.",
        *_EDIT,
        change="remove",
    ),
    "trust": CommandSignature(
        "consent:trust",
        "Show what a project's file would start, run or read, and record that you trust it.",
        argument("[FILE]", "The project's file.", type=FILE),
        option("-y --yes", "Trust every entry without a question."),
        _STATE,
        *_OUTPUT,
    ),
    "pins": CommandSignature(
        "consent:pins",
        "Show how tools and skills have changed since their first use, and record what you accept. Starts nothing.",
        argument("[SERVER]", "Only those of this server."),
        _ACCEPT,
        _STATE,
        *_OUTPUT,
    ),
    "login": CommandSignature(
        "login:login",
        "Authorise a server that uses OAuth, on a page in a browser. Running hosts then connect to it at once.",
        _NAME,
        option("--browser/--no-browser", "Open the page in a browser; its address is printed anyway.", default=True),
        *_SERVERS,
    ),
    "logout": CommandSignature("login:logout", "Remove the tokens of a server.", _NAME, *_SERVERS),
    "auth": ("Inspect the tokens of servers that use OAuth.", _AUTH),
    "token": ("Manage the tokens of clients of `serve --http`.", _TOKEN),
    "key": ("Make keys by which replicas of `serve --http` go on with each other's sessions.", _KEY),
}
"""The commands, in the order of the help; a group of commands has a line of help and a table of its own."""

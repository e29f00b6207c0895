"""Hosts that others wrote, in front of servers that others wrote, with a model on loopback.

`python -m tests.interop.hosts` prints how many tools the model was told of in the first request of each.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import frozen
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from .cases import CASES
from .fake_model import Model, Turn, fake_model
from .installing import npm_binary, npm_package

PROGRAM = str(Path(sys.executable).with_name("mcp-nursery"))
WAYS = ("serve --", "serve --config", "install --adopt")
LATE = 2
"""Seconds that the last of the servers takes before it starts, as `npx` and `uvx` do."""

Commands = Mapping[str, Sequence[str]]
Reached = Mapping[str, Sequence[str] | str]
"""The servers that a host is told of, by name: the command of each, or its URL."""


@frozen
class Host:
    """A program with a model, and how it is told of servers."""

    name: str
    """As `mcp-nursery install` calls it, if it knows it."""
    command: Callable[[], Sequence[str]]
    """Installs it."""
    arguments: Sequence[str]
    """With which it answers one question and ends."""
    file: str
    """Its user's file, in the home folder."""
    settings: Callable[[Reached, str], str]
    """What stands in that, given the servers and the URL of the model."""
    environment: Callable[[str], Mapping[str, str]] = lambda url: {}
    ways: Sequence[str] = WAYS


def _plain(servers: Reached) -> dict[str, Any]:
    return {
        name: {"type": "http", "url": each} if isinstance(each, str) else _started(each)
        for name, each in servers.items()
    }


def _started(command: Sequence[str]) -> dict[str, Any]:
    return {"command": command[0], "args": list(command[1:])}


def _claude_code(servers: Reached, url: str) -> str:
    return json.dumps({"mcpServers": _plain(servers)})


def _codex(servers: Reached, url: str) -> str:
    """`required`: it waits 1 s for a server that is not, and goes without its tools."""
    provider = f'[model_providers.here]\nname = "here"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    entries = {name: {"url": each} if isinstance(each, str) else _started(each) for name, each in servers.items()}
    said = "".join(
        f"[mcp_servers.{name}]\nrequired = true\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
        for name, entry in entries.items()
    )
    return f'model = "fake"\nmodel_provider = "here"\n{provider}{said}'


def _gemini(servers: Reached, url: str) -> str:
    said = {
        "mcpServers": _plain(servers),
        "model": {"name": "gemini-2.5-flash"},  # else it asks another model which to take
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    return json.dumps(said)


def _opencode(servers: Reached, url: str) -> str:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"fake": {}}}
    said = {
        "model": "here/fake",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"here": provider},
        "mcp": {
            name: {"type": "remote", "url": each} if isinstance(each, str) else {"type": "local", "command": list(each)}
            for name, each in servers.items()
        },
    }
    return json.dumps(said)


def _copilot(servers: Reached, url: str) -> str:
    return json.dumps({"mcpServers": {name: {**each, "tools": ["*"]} for name, each in _plain(servers).items()}})


QUESTION = "What is half past twelve in Tokyo?"
CALL = Turn("convert_time", {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"})
ANSWER = "T21:30:00+09:00"
ALLOWED = ["--allowedTools", "mcp__time", "mcp__lab", "mcp__mcp-nursery"]

HOSTS = (
    Host(
        "claude-code",
        lambda: npm_binary("@anthropic-ai/claude-code@2.1.330", "@anthropic-ai/claude-code-*/claude"),
        ["-p", QUESTION, *ALLOWED],
        ".claude.json",
        _claude_code,
        lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
            # Else it asks the model before the servers of its file are there, and then after 5 s at most.
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "60000",
        },
    ),
    Host(
        "codex",
        lambda: npm_binary("@openai/codex@0.169.0", "@openai/codex-*/vendor/*/bin/codex"),
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", QUESTION],
        ".codex/config.toml",
        _codex,
    ),
    Host(
        "gemini",
        lambda: npm_package("@google/gemini-cli@0.61.0", least_node=20),
        ["-p", QUESTION, "--yolo"],
        ".gemini/settings.json",
        _gemini,
        lambda url: {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": url},
    ),
    Host(
        "opencode",
        lambda: npm_binary("opencode-ai@1.18.33", "opencode-*/bin/opencode"),
        ["run", QUESTION],
        ".config/opencode/opencode.json",
        _opencode,
        # Else it fetches a list of models, and a package for plugins that there are none of.
        lambda url: {"OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_offline": "true"},
    ),
    Host(
        "copilot",
        lambda: npm_binary("@github/copilot@1.0.102", "@github/copilot-linux*/copilot"),
        ["-p", QUESTION, "--allow-all-tools"],
        ".copilot/mcp-config.json",
        _copilot,
        lambda url: {"COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_MODEL": "fake", "COPILOT_OFFLINE": "true"},
        ways=WAYS[:2],  # `install` does not know it
    ),
)


def servers(folder: Path) -> dict[str, Sequence[str]]:
    """Three, of which the last takes its time."""
    late = folder / "late"
    late.write_text(f'sleep {LATE}\nexec "$@"\n')
    commands = {name: CASES[name].command(folder) for name in ("time", "everything")}
    return {**commands, "repository": ["sh", str(late), *CASES["git"].command(folder)]}


def tools_of(commands: Commands) -> set[str]:
    """What they show a client of the SDK that can be asked for nothing, as `SERVER TOOL`."""
    found = set()

    async def ask(name: str, command: Sequence[str]) -> None:
        parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
        with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230
            async with Client(stdio_client(parameters, errlog=nowhere)) as client:
                found.update(f"{name} {tool.name}" for tool in (await client.list_tools()).tools)

    async def ask_all() -> None:
        async with trio.open_nursery() as nursery:
            for name, command in commands.items():
                nursery.start_soon(ask, name, command)

    trio.run(ask_all)
    return found


@frozen
class Seen:
    """What a run of a host came to."""

    tools: frozenset[str]
    """Those of the servers that stand in the first request that has tools."""
    answered: bool
    """Whether the model was told what a tool answered that it called."""
    seconds: float
    said: str
    """All else, for who wonders."""


def install(
    host: Host, way: str | None, home: Path, commands: Reached, url: str, *, stable_after: float | None = None
) -> None:
    """Write the host's file; `way`: None for the servers as they are, without us or behind a gateway that runs."""
    given = commands
    if way == "serve --":
        stable = [] if stable_after is None else ["--stable-after-seconds", str(stable_after)]
        front = [PROGRAM, "serve", *stable]
        given = {name: [*front, "--name", name, "--", *command] for name, command in commands.items()}
    elif way == "serve --config":
        own = own_file(home, commands, stable_after=stable_after)
        given = {"mcp-nursery": [PROGRAM, "serve", "--config", str(own)]}
    file = home / host.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(host.settings(given, url))
    if way == "install --adopt":
        command = [PROGRAM, "install", host.name, "--adopt", "--yes"]
        subprocess.run(command, env=_surroundings(home), check=True, capture_output=True, timeout=60)


def own_file(home: Path, commands: Reached, *, stable_after: float | None = None) -> Path:
    """A file of ours with these servers."""
    own = home / "servers.json"
    stably = {} if stable_after is None else {"stableAfterSeconds": stable_after}
    own.write_text(json.dumps({"mcpServers": {name: each | stably for name, each in _plain(commands).items()}}))
    return own


def run(host: Host, home: Path, wanted: set[str], model: Model, *turns: Turn) -> Seen:
    """Ask the host a question; the model calls what `turns` have, or else the time. Each tool of `wanted` is looked for
    under any name that ends with the server's and its own."""
    model.forget(*(turns or [CALL]))
    work = home / "work"
    work.mkdir(exist_ok=True)
    began = time.monotonic()
    ran = subprocess.run(
        [*host.command(), *host.arguments],
        cwd=work,
        env={**_surroundings(home), **host.environment(model.url)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    took = time.monotonic() - began
    listed = [f"_{_plainly(name)}" for name in model.first_tools]
    seen = {each for each in wanted if sum(name.endswith(f"_{_plainly(each)}") for name in listed) == 1}
    answered = any(ANSWER in json.dumps(body) for _, body in model.asked)
    said = f"{ran.returncode}\n{ran.stdout[-1500:]}\n{ran.stderr[-1500:]}\n{model.paths}"
    return Seen(frozenset(seen), answered, took, said)


def _plainly(name: str) -> str:
    return re.sub(r"[-_ ]+", "_", name)


def _surroundings(home: Path) -> dict[str, str]:
    """Of a user who has nothing yet."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def main() -> None:
    """Print the table. Names of hosts may be given."""
    with tempfile.TemporaryDirectory() as folder:
        commands = servers(Path(folder))
        wanted = tools_of(commands)
        write(f"{len(wanted)} tools of {len(commands)} servers; the last starts {LATE} s late")
        for host in [host for host in HOSTS if not sys.argv[1:] or host.name in sys.argv[1:]]:
            for way in host.ways:
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, fake_model() as model:
                    install(host, way, Path(home), commands, model.url)
                    for start in ("cold", "warm"):
                        seen = run(host, Path(home), wanted, model)
                        called = "called" if seen.answered else "not called"
                        write(f"{host.name:12} {way:16} {start} {len(seen.tools):3}  {called:10} {seen.seconds:5.1f} s")


def write(line: str) -> None:
    """At once, as a row takes seconds."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

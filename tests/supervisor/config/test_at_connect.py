"""K5, K7, L17: what dialects read when a server connects, what that needs of the user, and who is shown it."""

import json
import os

import pytest
import trio
from attrs import evolve

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.process.command import ShownCommand
from mcp_nursery.supervisor import discover_config, load_config
from mcp_nursery.supervisor.config.deferred import DeferredConnector, Resolver
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.security.secret_values import secrets_of

SECRET = "hunter2-hunter2"
OTHER = "swordfish-${GONE}"


def only(file, text, load=load_config, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    (spec,) = load(file, **options).servers
    return spec


async def resolved(spec):
    resolver = Resolver(spec.transport)
    transport = await resolver.transport()
    assert SECRET not in repr((spec, resolver))
    return transport, resolver.secrets


@pytest.mark.parametrize("env", [{"B": "own"}, {"B": "own", "C": "${env:PLANTED}"}])
async def test_the_whole_environment(tmp_path, monkeypatch, env):
    """K5, L17: below `env`, never expanded, without what belongs to the shell; what looks like a secret is one."""
    for name, value in {"PLANTED": SECRET, "A": "${HOME}", "B": "host's", "SHLVL": "7", "MODE": "development"}.items():
        monkeypatch.setenv(name, value)
    spec = only(tmp_path / "f.json", {"mcpServers": {"s": {"command": "x", "env": env, "inheritEnv": True}}})
    transport = (await resolved(spec))[0] if "C" in env else spec.transport
    given = transport.connector(close_grace=1).env
    assert {name: given.get(name) for name in ("PLANTED", "A", "B", "SHLVL")} == {
        "PLANTED": SECRET,
        "A": "${HOME}",
        "B": "own",
        "SHLVL": None,
    }
    assert SECRET in secrets_of(transport)
    assert "development" not in secrets_of(transport)
    assert "PLANTED" not in evolve(transport, inherit_env=False).connector(close_grace=1).env


async def test_an_env_file(tmp_path, monkeypatch):
    """K5, L17: under `env`, seen by arguments and headers, never expanded, and read anew each time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.env").write_text(f"TOKEN={SECRET}\nB=file\nC=${{B}}\nD_KEY=opensesame\n")
    entry = {"command": "x", "args": ["${TOKEN}", "${C}"], "env": {"B": "block"}}
    entry["envFile"] = "${workspaceFolder}/some.env"
    spec = only(tmp_path / ".cursor" / "mcp.json", {"mcpServers": {"s": entry}})
    transport, secrets = await resolved(spec)
    assert transport.args == (SECRET, "${B}")
    assert transport.env == {"TOKEN": SECRET, "B": "block", "C": "${B}", "D_KEY": "opensesame"}
    assert {SECRET, "${B}", "opensesame"} <= secrets
    assert not {"file", "block"} & secrets
    (tmp_path / "some.env").write_text("TOKEN=new\nC=\n")
    assert (await resolved(spec))[0].args == ("new", "")
    (tmp_path / "some.env").write_text(f"{SECRET}\n")
    with pytest.raises(StartFailed) as caught:
        await resolved(spec)
    assert str(caught.value) == f"{spec.source}: server 's': field 'envFile' is unusable: line 1 is not NAME=VALUE"
    assert not caught.value.retriable
    entry["envFile"] = "${GONE}/some.env"
    with pytest.raises(StartFailed, match=r"field 'envFile' is unusable: variable \$\{GONE\} is not set"):
        await resolved(only(tmp_path / ".cursor" / "mcp.json", {"mcpServers": {"s": entry}}))


async def test_what_the_client_of_a_container_says(tmp_path, monkeypatch):
    """K2, L17: without what was resolved for it, as of any process."""
    monkeypatch.setenv("PLANTED", SECRET)
    entry = {"image": "mcp/time", "args": ["${TOKEN}"], "env": {"TOKEN": "${PLANTED}"}}
    spec = only(tmp_path / "servers.json", {"mcpServers": {"s": entry}})
    connector = await DeferredConnector(spec.transport, close_grace=1)._resolve()
    assert connector.client.args == ("run", "-i", "--rm", "--init", "--env=TOKEN", "--", "mcp/time", SECRET)
    assert connector.client.shown == ShownCommand("docker", None, (SECRET,))
    assert SECRET not in repr(connector)


async def test_an_env_file_is_of_its_project(tmp_path):
    """A relative name is one in the project's folder."""
    (tmp_path / ".env").write_text(f"TOKEN={SECRET}")
    entry = {"url": "https://x", "headers": {"A": "Bearer ${TOKEN}"}, "envFile": ".env"}
    spec = only(tmp_path / ".vscode" / "mcp.json", {"servers": {"s": entry}}, load_project)
    transport, _ = await resolved(spec)
    assert transport.headers == {"A": f"Bearer {SECRET}"}
    assert load_project(spec.source).warnings == ()


async def test_no_variable_of_an_env_block_sees_another(tmp_path, monkeypatch):
    """K5: their order says nothing; within it there is the host's environment alone."""
    monkeypatch.setenv("A", "host's")
    entry = {"command": "x", "args": ["${A}"], "env": {"A": "own", "B": "${A}"}}
    transport, _ = await resolved(only(tmp_path / "servers.json", {"mcpServers": {"s": entry}}))
    assert (transport.args, transport.env) == (("own",), {"A": "own", "B": "host's"})


async def test_a_command_for_a_header_alone(tmp_path):
    """K9: nothing else of the entry needs to be found out."""
    entry = {"url": "https://x", "headers": {"A": f"!printf {SECRET}", "B": "not !this"}}
    spec = only(tmp_path / "servers.json", {"mcpServers": {"s": entry}})
    transport, secrets = await resolved(spec)
    assert transport.headers == {"A": SECRET, "B": "not !this"}
    assert SECRET in secrets


async def test_where_one_is_is_no_secret(tmp_path):
    """L17: what everybody may read stays readable."""
    entry = {"command": "${workspaceFolder}/x", "args": ["${workspaceFolderBasename}${/}${pathSeparator}${userHome}"]}
    folder = tmp_path / "some-project"
    transport, secrets = await resolved(
        only(folder / ".cursor" / "mcp.json", {"mcpServers": {"s": entry}}, load_project)
    )
    assert transport.args[0].startswith("some-project//")
    assert secrets == set()


async def test_a_working_directory_is_of_its_project(tmp_path, monkeypatch):
    """K5: also if a variable says which, or its folder looks like one."""
    monkeypatch.setenv("SUB", "sub")
    folder = tmp_path / "${SUB}"
    entry = {"command": "x", "cwd": "${SUB}/dir", "env": {"A": "${SUB}"}}
    spec = only(folder / ".vscode" / "mcp.json", {"servers": {"s": entry}}, load_project)
    assert (await resolved(spec))[0].cwd == f"{folder}/sub/dir"


def test_roots_are_of_their_project(tmp_path):
    """K5, P3: a relative one; others are what they are, and an empty list is not the same as nothing."""
    entry = {"command": "x", "roots": [".", "src", "/data", "file:///else"]}
    spec = only(tmp_path / ".vscode" / "mcp.json", {"servers": {"s": entry}}, load_project)
    assert spec.roots == (tmp_path.as_uri(), (tmp_path / "src").as_uri(), "file:///data", "file:///else")
    assert only(tmp_path / "servers.json", {"mcpServers": {"s": {**entry, "roots": []}}}).roots == ()


def test_the_working_directory_is_a_root_for_who_wants_that(tmp_path, monkeypatch):
    """P3: the one of the host, whatever the project."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    spec = only(tmp_path / ".mcp.json", {"mcpServers": {"s": {"command": "x", "roots": "cwd"}}})
    assert spec.roots == (here.as_uri(),)


async def test_a_bearer_token_of_the_environment(tmp_path, monkeypatch):
    """K5: read when it connects; a header sees it by way of the entry's `env`, and nothing else of the environment."""
    spec = only(
        tmp_path / "config.toml",
        '[mcp_servers.s]\nurl = "https://x"\nbearer_token_env_var = "TOKEN"\n'
        'env_http_headers = {"X-A" = "TRACE", "X-B" = "GONE"}\nhttp_headers = {"X-C" = "${HOME}"}',
    )
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("TRACE", "t")
    transport, secrets = await resolved(spec)
    assert transport.headers == {"X-C": "", "Authorization": f"Bearer {SECRET}", "X-A": "t", "X-B": ""}
    assert SECRET in secrets
    monkeypatch.delenv("TOKEN")
    with pytest.raises(StartFailed, match=r"field 'env.TOKEN' is unusable: variable \$\{env:TOKEN\} is not set"):
        await resolved(spec)


async def test_inputs(tmp_path):
    """K5, L17: what the host gave, in every text, never expanded, shown nowhere; each server keeps only its own."""
    entry = {"command": "${input:a}", "args": ["${input:b-1.c}"], "env": {"E": "${input:a}"}}
    remote = {"url": "https://x", "headers": {"A": "Bearer ${input:a}"}}
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps({"servers": {"s": entry, "r": remote, "n": {"command": "x", "args": ["${input:z:-d}"]}}})
    )
    config = load_config(file, inputs={"a": SECRET, "b-1.c": OTHER, "z": "", "unused": "u"})
    local, far, default = config.servers
    transport, secrets = await resolved(local)
    assert (transport.command, transport.args, transport.env) == (SECRET, (OTHER,), {"E": SECRET})
    assert {SECRET, OTHER} <= secrets
    assert (await resolved(far))[0].headers == {"A": f"Bearer {SECRET}"}
    assert (await resolved(default))[0].args == ("d",)
    assert [set(spec.transport.inputs) for spec in config.servers] == [{"a", "b-1.c"}, {"a"}, {"z"}]
    assert (config.warnings, SECRET in repr(config)) == ((), False)
    assert load_config(file, inputs={"a": "changed", "b-1.c": OTHER, "z": ""}).servers[0] != local


@pytest.mark.parametrize(
    ("place", "root", "entry", "reasons"),
    [
        (".vscode/mcp.json", "servers", {"url": "https://x", "envFile": "a"}, ("reads a file for env",)),
        (".vscode/mcp.json", "servers", {"command": "x", "envFile": "a"}, ("starts a process", "reads a file for env")),
        (
            ".vscode/mcp.json",
            "servers",
            {"url": "https://x", "headers": {"A": "${input:k}"}},
            ("uses inputs for headers",),
        ),
        (".vscode/mcp.json", "servers", {"url": "https://x/${input:k}"}, ("reads variables for url",)),
        ("opencode.json", "mcp", {"command": ["x", "-y"]}, ("starts a process",)),
        ("opencode.json", "mcp", {"url": "https://{env:TOKEN}"}, ("reads variables for url",)),
        (".codebuddy/mcp.json", "mcpServers", {"transport": {"command": "x"}}, ("starts a process",)),
        (".gemini/settings.json", "mcpServers", {"httpUrl": "https://$TOKEN"}, ("reads variables for httpUrl",)),
        (".gemini/settings.json", "mcpServers", {"httpUrl": "https://x", "includeTools": [], "timeout": 1}, None),
        (".windsurf/mcp_config.json", "mcpServers", {"serverUrl": "https://x"}, None),
        (".mcp.json", "mcpServers", {"url": "https://x", "maxResultChars": 5, "idleSeconds": 1, "tools": []}, None),
    ],
)
def test_what_a_project_has_to_ask_for(tmp_path, place, root, entry, reasons):
    """K7: whatever the words, for what it would do; and what is agreed to is what stands in the file."""
    spec = only(tmp_path / place, {root: {"s": entry}}, load_project_with_input)
    request = spec.trust_request
    assert (request and request.reasons) == (reasons and tuple(r.replace("httpUrl", "url") for r in reasons))
    if request:
        assert request.entry == entry


def load_project_with_input(file):
    return discover_config(file.parent if file.parent.name[0] != "." else file.parent.parent, inputs={"k": SECRET})


def test_an_environment_variable_of_a_project_in_toml(tmp_path):
    """K7: `bearer_token_env_var` and the like read the process's environment."""
    for line in ('bearer_token_env_var = "T"', 'env_http_headers = {"A" = "T"}'):
        text = f'[mcp_servers.s]\nurl = "https://x"\n{line}\nwhen = 2025-01-01'
        spec = only(tmp_path / ".codex" / "config.toml", text, load_project)
        assert spec.trust_request.reasons == ("reads variables for env",)
        assert spec.trust_request.entry["when"] == "2025-01-01"


def test_an_env_block_goes_before_the_environment(tmp_path):
    """As Codex has it."""
    spec = only(tmp_path / "c.toml", '[mcp_servers.s]\ncommand = "x"\nenv = {A = "block"}\nenv_vars = ["A"]')
    assert spec.transport.env == {"A": "block"}


@pytest.mark.parametrize(
    ("place", "root", "entry", "argv"),
    [
        ("opencode.json", "mcp", {"command": ["npx", "-y"]}, ("npx", "-y")),
        (
            ".mcp.json",
            "mcpServers",
            {
                "command": "npx",
                "args": ["-y", "${X}"],
            },
            ("npx", "-y", "${X}"),
        ),
        (
            ".mcp.json",
            "mcpServers",
            {"image": "mcp/time", "args": ["--utc"], "env": {"TOKEN": "x"}},
            ("docker", "run", "-i", "--rm", "--init", "--env=TOKEN", "--", "mcp/time", "--utc"),
        ),
        (".mcp.json", "mcpServers", {"url": "https://x/${X}"}, ()),
    ],
)
def test_what_a_command_is(tmp_path, place, root, entry, argv):
    """K7: whatever the words."""
    assert only(tmp_path / place, {root: {"s": entry}}, load_project).trust_request.argv == argv


def test_a_change_elsewhere_that_changes_what_words_mean_asks_again(tmp_path):
    """K7: the same entry in a file that has become another host's."""
    entry = {"command": "x", "args": ["$A"]}
    digests = set()
    for other in ({"command": "y"}, {"httpUrl": "https://x"}):
        file = tmp_path / "some.json"
        file.write_text(json.dumps({"mcpServers": {"s": entry, "t": other}}))
        digests.add(load_project(file).servers[0].trust_request.digest)
    assert len(digests) == 2


async def test_a_pipe_instead_of_an_env_file(tmp_path):
    """No connect waits for it."""
    os.mkfifo(tmp_path / "pipe")
    spec = only(tmp_path / "f.json", {"servers": {"s": {"command": "x", "envFile": str(tmp_path / "pipe")}}})
    with trio.fail_after(20), pytest.raises(StartFailed, match="not a regular file"):
        await resolved(spec)

"""The gateway in a host's file, and its servers behind the gateway; and everything back as it was."""

import json
import tomllib
from pathlib import Path

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import load_config
from mcp_nursery.supervisor.config.discovery import own_file
from mcp_nursery.supervisor.config.document import parse_document
from mcp_nursery.supervisor.config.edits import edit_text
from mcp_nursery.supervisor.config.hosts import GATEWAY_ENTRY, HOSTS
from mcp_nursery.supervisor.config.installation import install, place_of, project_place, status, undo, user_place
from mcp_nursery.supervisor.config.whole_file import Replacement

PROGRAM = "/opt/bin/mcp-nursery"
BY_NAME = {host.name: host for host in HOSTS}

JSONC = """{
  // servers of mine
  "mcpServers": {
    "a": {"command": "x", "args": ["1"]}, // about a
    /* about b */
    "b": {
      "command": "y" // why y
    },
    "off": {"command": "z", "disabled": true}
  }, // end
  "theme": "dark",
}
"""
TOML = """model = "o" # the model

# about a
[mcp_servers.a]
command = "x" # why x
[mcp_servers.a.env]
K = "1"

[mcp_servers.b]
# within b
command = "y"
enabled = false

# about the rest
[other]
x = 1
"""
WRITTEN = {
    "codex": TOML,
    "vscode": JSONC.replace("mcpServers", "servers").replace(', "disabled": true', ""),
    "opencode": '{\n\t"mcp": {\n\t\t"a": {"type": "local", "command": ["x", "1"]},\n'
    '\t\t"b": {"type": "local", "command": ["y"], "enabled": false}\n\t}\n}\n',
    "gemini": JSONC[:-2].rstrip().rstrip(",") + ',\n  "mcp": {"allowed": ["a", "b"], "excluded": ["b"]}\n}\n',
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture(params=BY_NAME)
def place(request):
    return user_place(BY_NAME[request.param])


def given(place, text):
    place.file.parent.mkdir(parents=True, exist_ok=True)
    place.file.write_bytes(text.encode())


def make(plan):
    for replacement in plan.replacements:
        replacement.make()
    return plan


def install_in(place, **options):
    return install(place, [PROGRAM], **options)


def said(place, data=None):
    text = (place.file.read_bytes() if data is None else data).decode().removeprefix("\ufeff")
    return parse_document(text, str(place.file))


def servers(place):
    document = said(place)
    for key in place.host.root(document):
        document = document.get(key, {})
    return document


def ours(place):
    return [*place.servers.parent.glob("*"), *place.backups()]


def marked(text):
    return f"\ufeff{text}"


def with_crlf(text):
    return text.replace("\n", "\r\n")


def as_it_is(text):
    return text


@pytest.mark.parametrize("style", [as_it_is, with_crlf, marked])
@pytest.mark.parametrize("adopting", [False, True])
def test_what_was_there_comes_back(place, adopting, style):
    given(place, style(WRITTEN.get(place.host.name, JSONC)))
    before = place.file.read_bytes()
    place.file.chmod(0o640)
    plan = make(install_in(place, adopting=adopting))
    assert plan.change == ("adopted" if adopting else "installed")
    assert (set(servers(place)) == {GATEWAY_ENTRY}) is adopting
    assert GATEWAY_ENTRY in servers(place)
    if not adopting:  # a line more, and perhaps a comma or a name in a list
        lines = place.file.read_bytes().splitlines()
        assert len([line for line in before.splitlines() if line not in lines]) <= 2
    assert place.file.stat().st_mode & 0o777 == 0o640
    assert make(install_in(place, adopting=adopting)).change is None
    if style is with_crlf:
        assert place.file.read_bytes().count(b"\n") == place.file.read_bytes().count(b"\r\n")
    assert make(undo(place)).change == "undone"
    assert place.file.read_bytes() == before
    assert place.file.stat().st_mode & 0o777 == 0o640
    assert ours(place) == []


@pytest.mark.parametrize("text", [None, "", "{}", "{}\n", '{"mcpServers": {}}', "{\n// mine\n}", '{"theme": 1}'])
@pytest.mark.parametrize("name", ["claude-code", "opencode", "codex"])
def test_a_file_without_servers(name, text):
    place = user_place(BY_NAME[name])
    if text is not None:
        text = "" if name == "codex" else text
        given(place, text)
    with pytest.raises(ConfigError, match="no server that can go behind"):
        install_in(place, adopting=True)
    plan = make(install_in(place))
    assert plan.notes == (
        f"there are no servers of yours for it yet, in {own_file()}; see mcp-nursery import, or --adopt",
    )
    assert set(servers(place)) == {GATEWAY_ENTRY}
    assert "mine" not in (text or "") or "// mine" in place.file.read_text()
    assert status(place) == (0, "installed")
    make(undo(place))
    assert (place.file.read_bytes().decode() if place.file.exists() else None) == (text or None)
    assert ours(place) == []


def test_the_entry_that_a_host_reads(place):
    make(install_in(place))
    entry = servers(place)[GATEWAY_ENTRY]
    argv = entry["command"] if place.host.name == "opencode" else [entry["command"], *entry["args"]]
    assert argv == [PROGRAM, "serve", "--no-project"]
    assert entry.get("type") == {
        "opencode": "local",
        "claude-code": "stdio",
        "cursor": "stdio",
        "vscode": "stdio",
    }.get(place.host.name)


def test_what_is_off_stays_off(place):
    given(place, WRITTEN.get(place.host.name, JSONC))
    before = {spec.name: spec for spec in load_config(place.file).servers}
    plan = make(install_in(place, adopting=True))
    after = {spec.name: spec for spec in load_config(place.servers).servers}
    assert set(plan.moved) == set(before) == set(after)
    assert {name: spec.enabled for name, spec in after.items()} == {name: spec.enabled for name, spec in before.items()}
    ((backup, _),) = place.backups().items()
    assert place.servers.stat().st_mode & 0o777 == backup.stat().st_mode & 0o777 == 0o600
    assert backup.suffix == ".bak"
    if place.host.name == "gemini":
        assert said(place)["mcp"] == {"allowed": ["a", "b", GATEWAY_ENTRY], "excluded": ["b"]}


def rewritten(place):
    """As a host does that keeps its state in the same file: without comments, with one thing more."""
    if place.host.name == "codex":
        place.file.write_text(place.file.read_text() + '\n[fresh]\ny = "2"\n')
    else:
        place.file.write_text(json.dumps({**said(place), "fresh": {"y": "2"}}))


def test_a_file_that_was_changed_stays_and_the_backup_is_named(place):
    given(place, WRITTEN.get(place.host.name, JSONC))
    before, servers_before = place.file.read_bytes(), servers(place)
    make(install_in(place))
    rewritten(place)
    now = place.file.read_text()
    with pytest.raises(ConfigError, match="it was changed since; copy what you need from") as raised:
        undo(place)
    assert place.file.read_text() == now
    ((backup, content),) = place.backups().items()
    assert content == before
    assert str(backup) in str(raised.value)
    assert f"mcp-nursery remove mcp-nursery --config {place.file}" in str(raised.value)
    place.file.write_text(edit_text(now, str(place.file), GATEWAY_ENTRY, "remove"))
    assert servers(place) == servers_before


def test_the_first_backup_outlives_further_installs():
    place = user_place(BY_NAME["cursor"])
    given(place, JSONC)
    make(install_in(place))
    make(install_in(place, adopting=True))
    assert list(place.backups().values()) == [JSONC.encode()]
    rewritten(place)
    document = said(place)
    document["mcpServers"][GATEWAY_ENTRY]["command"] = "/gone/mcp-nursery"
    place.file.write_text(json.dumps(document))
    changed = place.file.read_bytes()
    make(install_in(place))
    assert list(place.backups().values()) == [JSONC.encode(), changed]
    make(undo(place))
    assert place.file.read_bytes() == changed
    with pytest.raises(ConfigError, match="it was changed since"):
        undo(place)
    assert list(place.backups().values()) == [JSONC.encode()]


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_whoever_is_killed_can_undo_it(name):
    """After each of the files, at every step of what people do."""
    place = user_place(BY_NAME[name])
    given(place, WRITTEN.get(name, JSONC))
    before = place.file.read_bytes()
    steps = [lambda: install_in(place), lambda: install_in(place, adopting=True), lambda: undo(place)]
    for step, plan in enumerate(steps):
        for killed in range(len(plan().replacements) + 1):
            states = {path: path.read_bytes() for path in [place.file, *ours(place)]}
            possible = {place.file.read_bytes(), plan().shown[0].after}
            for replacement in plan().replacements[:killed]:
                replacement.make()
            assert place.file.read_bytes() in possible
            if place.backups():
                make(undo(place))
            assert place.file.read_bytes() == before, (step, killed)
            assert ours(place) == []
            for path, data in states.items():
                path.write_bytes(data)
        make(plan())
    assert place.file.read_bytes() == before


def test_a_server_that_came_later_stays():
    place = user_place(BY_NAME["claude-code"])
    given(place, JSONC)
    make(install_in(place))
    make(install_in(place, adopting=True))
    arguments = ["serve", "--config", str(place.servers)]
    entry = {GATEWAY_ENTRY: {"type": "stdio", "command": PROGRAM, "args": arguments}}
    assert servers(place) == entry
    behind = place.servers.read_bytes()
    document = said(place)
    document["mcpServers"]["new"] = {"command": "n"}
    place.file.write_text(json.dumps(document))
    plan = make(install_in(place, adopting=True))
    assert (plan.change, plan.moved) == (None, ())
    assert plan.stay == {"new": f"came after the others were moved; write it into {place.servers}"}
    assert servers(place) == {**entry, "new": {"command": "n"}}
    assert place.servers.read_bytes() == behind


def test_what_was_edited_behind_the_gateway_is_kept():
    place = user_place(BY_NAME["cursor"])
    given(place, JSONC)
    make(install_in(place, adopting=True))
    edited = place.servers.read_text().replace('"x"', '"edited"')
    place.servers.write_text(edited)
    plan = make(undo(place))
    assert plan.notes == (f"the servers as they are behind the gateway are kept in {place.servers}",)
    assert place.file.read_text() == JSONC
    with pytest.raises(ConfigError, match="exists already, with other servers; move it away"):
        install_in(place, adopting=True)
    assert place.servers.read_text() == edited
    assert place.file.read_text() == JSONC


def test_own_servers_stay_behind_it():
    own_file().parent.mkdir(parents=True)
    own_file().write_text('{"mcpServers": {}}')
    place = user_place(BY_NAME["cursor"])
    given(place, JSONC)
    assert make(install_in(place)).notes == ()
    make(install_in(place, adopting=True))
    arguments = ["serve", "--config", str(own_file()), "--config", str(place.servers)]
    assert servers(place)[GATEWAY_ENTRY]["args"] == arguments


def test_what_somebody_wrote_for_the_gateway_stays():
    place = user_place(BY_NAME["cursor"])
    mine = {"command": "mcp-nursery", "args": ["serve", "--search", "--config", "/f.json"], "note": 1}
    given(place, json.dumps({"mcpServers": {GATEWAY_ENTRY: mine, "a": {"command": "x"}}}))
    before = place.file.read_bytes()
    assert install_in(place).change is None
    with pytest.raises(ConfigError, match="nothing to undo"):
        undo(place)
    make(install_in(place, adopting=True))
    args = [*mine["args"], "--config", str(place.servers)]
    assert servers(place) == {GATEWAY_ENTRY: {**mine, "type": "stdio", "args": args}}
    make(undo(place))
    assert place.file.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "entry", "reason"),
    [
        ("claude-code", {"command": "x", "env": {"A": "!b"}}, "env: a value that begins with '!' would be run as a c"),
        ("claude-code", {"url": "https://x", "headers": {"A": "!b"}}, "headers: a value that begins with '!' would be"),
        ("claude-code", {"args": []}, "command: missing command"),
        ("claude-code", {"command": PROGRAM, "args": ["serve"]}, "is mcp-nursery itself"),
        ("claude-code", {"command": "x", "args": ["${env:A}"]}, "args: ${env:A} is for Claude Code alone"),
        ("claude-desktop", {"command": "x", "args": ["${A}"]}, "args: ${A} is for Claude Desktop alone"),
        ("codex", {"command": "x", "env": {"A": "${A:-hunter2}"}}, "env: ${A} is for Codex alone"),
        ("cursor", {"command": "x", "cwd": "${workspaceFolder}"}, "cwd: ${workspaceFolder} is for Cursor alone"),
        ("vscode", {"command": "x", "env": {"A": "${input:key}"}}, "env: the input 'key' has no value"),
        (
            "vscode",
            {"url": "https://x", "env": {"A": "1"}, "headers": {"B": "${env:A}"}},
            "headers: ${A} is not what A is in env",
        ),
        ("opencode", {"type": "local", "command": ["x", "{file:a}"]}, "command: {file:…} is not supported"),
    ],
)
def test_what_would_be_another_thing_stays(name, entry, reason):
    place = user_place(BY_NAME[name])
    key = place.host.root({})[0]
    other = {"type": "local", "command": ["y"]} if name == "opencode" else {"command": "y"}
    if name == "codex":
        given(
            place, '[mcp_servers.s]\ncommand = "x"\nenv = {A = "${A:-hunter2}"}\n[mcp_servers.other]\ncommand = "y"\n'
        )
    else:
        given(place, json.dumps({key: {"s": entry, "other": other}}))
    plan = make(install_in(place, adopting=True))
    assert plan.moved == ("other",)
    assert plan.stay["s"].startswith(reason)
    assert "hunter2" not in plan.stay["s"]
    assert servers(place)["s"] == entry


def test_another_server_of_that_name(place):
    given(
        place,
        WRITTEN.get(place.host.name, JSONC)
        .replace('"a"', f'"{GATEWAY_ENTRY}"')
        .replace("servers.a", f"servers.{GATEWAY_ENTRY}"),
    )
    before = place.file.read_bytes()
    with pytest.raises(ConfigError, match="is another server; rename it"):
        install_in(place)
    assert place.file.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ('{"mcpServers": []}', "must be an object"),
        ('{"mcpServers": {"a": {}, "a": {}}}', "'a' appears twice"),
        ("[]", "top level"),
    ],
)
def test_a_file_that_cannot_be_used(text, problem):
    place = user_place(BY_NAME["claude-code"])
    given(place, text)
    with pytest.raises(ConfigError, match=problem):
        install_in(place, adopting=True)
    assert place.file.read_text() == text


def test_a_table_that_cannot_be_extended():
    place = user_place(BY_NAME["codex"])
    given(place, 'mcp_servers = {a = {command = "x"}}\n')
    with pytest.raises(ConfigError, match="by hand"):
        install_in(place)


def test_a_file_that_is_read_only():
    place = user_place(BY_NAME["claude-code"])
    given(place, JSONC)
    place.file.chmod(0o444)
    with pytest.raises(ConfigError, match="read-only"):
        install_in(place)
    place.file.chmod(0o644)
    make(install_in(place))
    place.file.chmod(0o444)
    with pytest.raises(ConfigError, match="read-only"):
        undo(place)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one(there, tmp_path):
    place = user_place(BY_NAME["claude-code"])
    target = tmp_path / "dotfiles.json"
    if there:
        target.write_text(JSONC)
    place.file.symlink_to(target)
    make(install_in(place))
    assert place.file.is_symlink()
    assert GATEWAY_ENTRY in target.read_text()
    make(undo(place))
    assert place.file.is_symlink()
    assert (target.read_text() if target.exists() else None) == (JSONC if there else None)


def test_somebody_else_writes_meanwhile():
    place = user_place(BY_NAME["claude-code"])
    given(place, JSONC)
    plan = install_in(place)
    place.file.write_text("{}")
    with pytest.raises(ConfigError, match="changed meanwhile"):
        make(plan)
    assert place.file.read_text() == "{}"
    with pytest.raises(ConfigError, match="is there by now"):
        Replacement(place.file, None, b"x").make()


def test_which_file(tmp_path, monkeypatch, home):
    project = tmp_path / "repository"
    (project / ".git").mkdir(parents=True)
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    code, desktop, opencode = (BY_NAME[name] for name in ("claude-code", "claude-desktop", "opencode"))
    assert project_place(desktop) is None
    assert project_place(code).file == project / "sub" / ".mcp.json"
    (project / ".mcp.json").write_text("{}")
    (project / ".cursor").mkdir()
    (project / ".cursor" / "mcp.json").write_text("{}")
    assert project_place(code).file == project / ".mcp.json"
    assert project_place(BY_NAME["cursor"]).file == project / ".cursor" / "mcp.json"
    assert user_place(opencode).file == home / ".config" / "opencode" / "opencode.json"
    (home / ".config" / "opencode").mkdir(parents=True)
    (home / ".config" / "opencode" / "opencode.jsonc").touch()
    assert user_place(opencode).file == home / ".config" / "opencode" / "opencode.jsonc"
    assert place_of(code, home / ".claude.json") == user_place(code)
    assert place_of(code, Path("../.mcp.json")) == project_place(code)
    with pytest.raises(ConfigError, match=r"ends in \.toml"):
        place_of(BY_NAME["codex"], Path("f.json"))


def test_a_command_that_is_gone_is_exchanged(tmp_path):
    """Another environment has ours by now. What somebody wrote otherwise stays."""
    place = user_place(BY_NAME["cursor"])
    given(place, '{"mcpServers": {"mcp-nursery": {"command": "/gone/mcp-nursery", "args": ["serve", "--search"]}}}')
    before = place.file.read_bytes()
    assert make(install_in(place)).change == "installed"
    assert servers(place)[GATEWAY_ENTRY] == {"type": "stdio", "command": PROGRAM, "args": ["serve", "--search"]}
    make(undo(place))
    assert place.file.read_bytes() == before
    (tmp_path / "mcp-nursery").touch()
    for there in (str(tmp_path / "mcp-nursery"), "mcp-nursery"):
        given(place, json.dumps({"mcpServers": {GATEWAY_ENTRY: {"command": there, "args": ["serve"]}}}))
        assert install_in(place).change is None


def test_servers_of_single_projects_are_told_of():
    place = user_place(BY_NAME["claude-code"])
    projects = {"/a": {"mcpServers": {"s": {"command": "x"}}}, "/b": {"mcpServers": {}}, "/c": 1}
    given(place, json.dumps({"mcpServers": {"a": {"command": "x"}}, "projects": projects}))
    note = "what it has for single projects stays as it is, in 1 of them"
    assert make(install_in(place, adopting=True)).notes == (note,)
    assert said(place)["projects"] == projects
    given(place, json.dumps({"projects": projects}))
    with pytest.raises(ConfigError, match=note):
        install_in(place, adopting=True)


def test_codex_is_told_to_wait():
    """It gives other servers a second, and those behind the gateway have just been started."""
    place = user_place(BY_NAME["codex"])
    given(place, TOML)
    make(install_in(place, adopting=True))
    assert servers(place)[GATEWAY_ENTRY]["required"] is True


def test_variables_that_a_host_keeps_back():
    codex, gemini = user_place(BY_NAME["codex"]), user_place(BY_NAME["gemini"])
    given(
        codex, '[mcp_servers.a]\nurl = "https://x"\nbearer_token_env_var = "TOKEN"\nenv_http_headers = {X = "OTHER"}\n'
    )
    make(install_in(codex, adopting=True))
    assert tomllib.loads(codex.file.read_text())["mcp_servers"][GATEWAY_ENTRY]["env_vars"] == ["OTHER", "TOKEN"]
    given(gemini, '{"mcpServers": {"a": {"command": "x", "env": {"KEY": "$MY_KEY"}}}}')
    make(install_in(gemini, adopting=True))
    assert servers(gemini)[GATEWAY_ENTRY]["env"] == {"MY_KEY": "$MY_KEY"}
    make(undo(gemini))
    make(install_in(gemini))
    document = said(gemini)
    document["mcpServers"][GATEWAY_ENTRY]["env"] = {"MINE": "1"}
    document["mcpServers"]["b"] = {"httpUrl": "https://x", "headers": {"A": "Bearer $OTHER"}}
    gemini.file.write_text(json.dumps(document))
    make(install_in(gemini, adopting=True))
    assert servers(gemini)[GATEWAY_ENTRY]["env"] == {"MY_KEY": "$MY_KEY", "MINE": "1", "OTHER": "$OTHER"}

"""K3, K4: which files are found, which goes first, and what is dropped."""

import json
import logging

import pytest

from mcp_nursery.supervisor import ServerSpec, StdioTransport, discover_config, load_config
from mcp_nursery.supervisor.config.dialects import DIALECTS
from mcp_nursery.supervisor.config.loader import load_project

ROOTS = {"VS Code": "servers", "OpenCode": "mcp", "SideCar": "sidecar.mcpServers"}


def write(path, *names, root="mcpServers", **entry):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".toml":
        path.write_text("".join(f'[mcp_servers.{name}]\nurl = "https://x/{path.name}"\n' for name in names))
    else:
        said = {"url": f"https://x/{path.name}", **entry}
        path.write_text(json.dumps({root: dict.fromkeys(names, said)}))
    return str(path)


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_every_place_of_a_project(tmp_path, home):
    """K4, K7: every host's file is found and not trusted; `.mcp.json` goes first, then the others in order."""
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "deep").mkdir()
    places = [(dialect, place) for dialect in DIALECTS for place in dialect.project]
    files = [
        write(
            project / place,
            "all",
            place.replace(".", "_").replace("/", "_"),
            root=ROOTS.get(dialect.name, "mcpServers"),
        )
        for dialect, place in places
    ]
    config = discover_config(project / "deep")
    assert config.files == tuple(reversed(files))
    assert (config.errors, config.warnings) == ((), ())
    servers = {spec.name: spec for spec in config.servers}
    assert len(servers) == len(places) + 1
    assert servers["all"].source == str(project / ".mcp.json")
    assert not any(spec.trust_hints for spec in config.servers)
    assert len(config.replaced) == len(places) - 1
    assert config.replaced[-1].startswith(
        f"mcp:all via Claude ({project}/.mcp.json) overrides mcp:all via VS Code ({project}/.vscode/"
    )


def test_every_place_of_a_user_on_request(tmp_path, home, user_folders):
    """K4, K7: the user's files of other hosts are trusted, and go after the user's own; nobody reads them unasked."""
    places = [(dialect, place) for dialect in DIALECTS for place in dialect.user]
    files = [
        write(home / place, "all", f"n{number}", root=ROOTS.get(dialect.name, "mcpServers"))
        for number, (dialect, place) in enumerate(places)
    ]
    own = write(user_folders / "config" / "mcp-nursery" / "servers.json", "all")
    project = write(tmp_path / ".mcp.json", "all", "p")
    assert discover_config(tmp_path).files == (project, own)
    config = discover_config(tmp_path, hosts=True)
    assert config.files == (project, *reversed(files), own)
    servers = {spec.name: spec for spec in config.servers}
    assert (servers["all"].source, servers["p"].source) == (own, project)
    assert [name for name, spec in servers.items() if not spec.trust_hints] == ["p"]
    assert discover_config(tmp_path, hosts=True, user=False).files == (project,)
    assert discover_config(tmp_path, hosts=True, project=False).files == config.files[1:]


def test_the_home_of_a_user_is_no_project(home):
    """K7: what is the user's own did not come with a project."""
    write(home / ".cursor" / "mcp.json", "a")
    theirs = write(home / ".vscode" / "mcp.json", "b", root="servers")
    assert discover_config(home).files == (theirs,)


@pytest.mark.parametrize("name", [".gemini/settings.json", ".codex/config.toml", "opencode.json"])
def test_settings_without_servers_are_no_error(tmp_path, home, name):
    """K3: what a host keeps there besides is its own affair; what cannot be read at all is told."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('theme = "dark"' if name.endswith("toml") else '{"theme": "dark"}')
    assert (discover_config(tmp_path).files, discover_config(tmp_path).errors) == ((), ())
    file.write_text("{")
    (error,) = discover_config(tmp_path).errors
    assert error.startswith(f"{file}: not ")
    file.write_text("mcp_servers = 1" if name.endswith("toml") else '{"mcp": 1, "mcpServers": 1}')
    (error,) = discover_config(tmp_path).errors
    assert "must be an object with one entry per server" in error


def test_the_folder_of_a_project(tmp_path):
    """K5: `${workspaceFolder}` is the folder that the host would open."""
    file = write(tmp_path / ".cursor" / "mcp.json", "s", url="https://${workspaceFolder}")
    (spec,) = load_project(file).servers
    assert spec.transport.workspace == str(tmp_path)


def test_code_goes_before_files(tmp_path):
    """K4: given in code only > user > project."""
    file = write(tmp_path / ".mcp.json", "a", "b")
    code = ServerSpec("a", StdioTransport("x"))
    for config in (load_config(file, specs=[code]), discover_config(tmp_path, specs=[code])):
        assert [(spec.name, spec.source) for spec in config.servers] == [("a", None), ("b", file)]
        assert config.replaced == (f"mcp:a via code overrides mcp:a via Claude ({file})",)


def test_servers_that_nobody_wants(tmp_path):
    """K4: a predicate drops them, wherever they come from; it sees the one that won."""
    first = write(tmp_path / "1.json", "a", "b", "c")
    second = write(tmp_path / "2.json", "b", command="x")
    seen = []

    def keep(spec):
        seen.append((spec.name, spec.source))
        return spec.name != "a" and spec.source != second

    config = load_config(first, second, keep=keep)
    assert [spec.name for spec in config.servers] == ["c"]
    assert seen == [("a", first), ("b", second), ("c", first)]
    write(tmp_path / ".mcp.json", "a", "z")
    assert [spec.name for spec in discover_config(tmp_path, keep=keep).servers] == ["z"]


def test_labels():
    """K4."""
    assert ServerSpec("a", StdioTransport("x")).label == "mcp:a via code"
    assert ServerSpec("a", StdioTransport("x"), source="/f").label == "mcp:a via /f"
    assert ServerSpec("a", StdioTransport("x"), source="/f", host="Zed").label == "mcp:a via Zed (/f)"


def test_what_a_configuration_warns_of_is_logged(tmp_path, caplog):
    """K1, K3: also in a host that never looks at the fields."""
    caplog.set_level(logging.INFO)
    first = write(tmp_path / "1.json", "s", nonesense=1)
    second = write(tmp_path / "2.json", "s")
    write(tmp_path / ".mcp.json", "s", other=1)
    (tmp_path / "opencode.json").write_text("{")
    (warning,) = load_config(first).warnings
    (replaced,) = load_config(first, second).replaced
    config = discover_config(tmp_path, user=False)
    for line in (warning, replaced, *config.warnings, *config.errors):
        assert line in caplog.text
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert levels[replaced] == "INFO"
    assert {levels[line] for line in (warning, *config.warnings, *config.errors)} == {"WARNING"}
    assert len(config.errors) == len(config.warnings) == 1

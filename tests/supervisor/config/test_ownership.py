"""Files that somebody else put where they are found: passed over, in one line, and used if they are named. K7, Q28."""

import json
import os
import stat

import pytest

from mcp_nursery.supervisor import discover_config, load_config

SERVER = {"mcpServers": {"s": {"url": "https://evil.example/mcp"}}}
STRANGER = 54321

needs_root = pytest.mark.usefixtures("as_root")


@pytest.fixture
def project(tmp_path):
    """A folder in a git repository, with a file in the folder above."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".mcp.json").write_text(json.dumps(SERVER))
    below = tmp_path / "below"
    below.mkdir()
    return below


def errors(folder):
    config = discover_config(folder, user=False)
    assert (len(config.servers), len(config.errors)) in {(1, 0), (0, 1)}
    return config.errors


def passed_over(file, why):
    return (f"{file}: skipped: {why}; --config {file} uses it anyway",)


def test_the_users_own(project):
    """K7: nothing is said of it; that a group can write is usual."""
    for path in (project.parent, project.parent / ".mcp.json"):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWGRP)
    assert errors(project) == ()


def test_a_user_who_is_somebody_else(project, monkeypatch):
    """K7: what belongs to neither the user nor root is not read; named, it is."""
    file = project.parent / ".mcp.json"
    if os.geteuid() == 0:
        os.chown(file, STRANGER, -1)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert errors(project) == passed_over(file, f"{file} belongs to another user (uid {owner})")
    assert [spec.name for spec in load_config(file).servers] == ["s"]


@needs_root
@pytest.mark.parametrize("whose", ["file", "folder", "link", "target", "folder of target", "inner folder"])
def test_every_part_of_the_way_counts(project, tmp_path, monkeypatch, whose):
    """K7: a stranger's folder or link is as good as a stranger's file."""
    monkeypatch.setenv("SUDO_UID", "1")
    file = strange = project.parent / ".mcp.json"
    if whose == "folder":
        strange = project.parent
    elif whose == "inner folder":
        file = file.rename(project / "mcp.json")
        strange = project.parent / ".vscode"
        project.rename(strange)
        (strange / "mcp.json").write_text(json.dumps({"servers": SERVER["mcpServers"]}))
        project, file = strange.parent, strange / "mcp.json"
    elif whose != "file":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        target = file.rename(elsewhere / "x.json")
        file.symlink_to(target)
        strange = {"link": file, "target": target, "folder of target": elsewhere}[whose]
    os.chown(strange, STRANGER, -1, follow_symlinks=False)
    assert errors(project) == passed_over(file, f"{strange} belongs to another user (uid {STRANGER})")
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert errors(project) == ()


def test_what_everybody_can_write_to(project):
    """K7: it says what anybody wants it to say; where only owners replace, it does not matter."""
    file, folder = project.parent / ".mcp.json", project.parent
    folder.chmod(0o777)
    assert errors(project) == passed_over(file, f"everybody can write to {folder}")
    folder.chmod(0o1777)
    assert errors(project) == ()
    file.chmod(0o666)
    assert errors(project) == passed_over(file, f"everybody can write to {file}")


def test_the_users_own_folder(user_folders):
    """K7: its file is trusted, so it has to be the user's."""
    own = user_folders / "config" / "mcp-nursery" / "servers.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {"s": {"command": "x"}}}))
    own.chmod(0o666)
    config = discover_config(project=False)
    assert config.servers == ()
    assert config.errors == passed_over(own, f"everybody can write to {own}")


def test_where_files_have_no_owners(project, monkeypatch):
    """K7: there everything that is found is read."""
    (project.parent / ".mcp.json").chmod(0o666)
    monkeypatch.delattr(os, "geteuid")
    assert errors(project) == ()

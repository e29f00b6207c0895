"""The version, its commit and what it depends on."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from mcp_nursery.actors import commit
from mcp_nursery.actors.version import VERSION
from mcp_nursery.supervisor.cli import versions
from mcp_nursery.supervisor.cli.versions import describe_installation


def git(folder, *arguments):
    told = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
    return subprocess.run(
        ["git", "-C", folder, *told, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def package(tmp_path):
    """The folder of a package in a tree that is a repository."""
    folder = tmp_path / "tree" / "actors"
    folder.mkdir(parents=True)
    (folder / "commit.py").write_text("")
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", "-A")
    git(folder.parent, "commit", "-qm", "All of it")
    git(folder.parent, "tag", "v9")
    return folder


def test_a_checkout_has_the_commit_that_it_is_at(package):
    head = git(package, "rev-parse", "--short=12", "HEAD")
    assert commit.commit_of(package) == head
    (package / "commit.py").write_text("changed = True")
    assert commit.commit_of(package) == f"{head}-dirty"


def test_what_was_recorded_holds(package):
    (package / "commit.txt").write_text("0123456789ab\n")
    assert commit.commit_of(package) == "0123456789ab"
    (package / "commit.txt").write_text("\n")
    assert commit.commit_of(package) == git(package, "rev-parse", "--short=12", "HEAD")


def test_the_repository_of_another_project_is_not_asked(package):
    vendored = package / "vendored" / "actors"
    vendored.mkdir(parents=True)
    assert commit.commit_of(vendored) == "unknown"


def test_a_variable_for_git_is_not_followed(package, tmp_path, monkeypatch):
    head = git(package, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit.commit_of(package) == head


@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_without_git_it_is_unknown(package, monkeypatch, path):
    monkeypatch.setenv("PATH", path)
    assert commit.commit_of(package) == "unknown"


def test_a_broken_repository_is_unknown(package):
    (package.parent / ".git" / "HEAD").unlink()
    assert commit.commit_of(package) == "unknown"


REQUIRES = [
    "mcp<3,>=2.3",
    'colorama>=1; sys_platform == "win32"',
    'mcp-nursery[otel]; extra == "gateway"',
    'pyjwt[crypto]>=2; extra == "gateway"',
    'both>=1; extra == "gateway"',
    "both>=1; extra == 'otel'",
    'ruff>=0.12; extra == "dev"',
    'absent>=1; extra == "postgres"',
]


def test_dependencies_are_those_that_are_installed(monkeypatch):
    def version(name):
        if name in ("absent", "colorama"):
            raise PackageNotFoundError(name)
        return f"1.0.of.{name}"

    monkeypatch.setattr(versions, "requires", lambda _name: REQUIRES)
    monkeypatch.setattr(versions, "version", version)
    first, of_commit, python, *rest = describe_installation()
    assert first == f"mcp-nursery {VERSION}"
    assert of_commit == f"commit {commit.commit_of(Path(commit.__file__).resolve().parent)}"
    assert python == f"python {platform.python_version()} {platform.system()} {platform.machine()}"
    assert rest == ["mcp 1.0.of.mcp", "both 1.0.of.both [gateway, otel]", "pyjwt 1.0.of.pyjwt [gateway]"]


def test_sources_that_are_not_installed(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "requires", requires)
    assert len(describe_installation()) == 3

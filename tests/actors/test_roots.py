"""What counts as a folder that servers may work in, and what each is called."""

import os
from pathlib import Path

import pytest

from mcp_nursery.actors.callbacks import Callbacks, CurrentRoots
from mcp_nursery.actors.roots import fixed_roots, folders_or_none, root_uris


@pytest.mark.parametrize(
    ("folder", "uri"),
    [
        ("/work", "file:///work"),
        (Path("/a b/\N{LATIN SMALL LETTER E WITH ACUTE}"), "file:///a%20b/%C3%A9"),
        ("/work/../other/.", "file:///other"),
        ("file:///as/it%20is", "file:///as/it%20is"),
        ("FILE:///x", "FILE:///x"),
        ("/odd:// name", "file:///odd%3A/%20name"),
    ],
)
def test_a_folder(folder, uri):
    """P3."""
    assert root_uris([folder]) == (uri,)


def test_a_path_is_taken_from_the_working_directory_of_then(tmp_path, monkeypatch):
    """P3: not from the one of the moment in which a server asks."""
    monkeypatch.chdir(tmp_path)
    roots = CurrentRoots([".", "sub"])
    monkeypatch.chdir(os.sep)
    assert roots.given == (tmp_path.as_uri(), (tmp_path / "sub").as_uri())


def test_the_working_directory(tmp_path, monkeypatch):
    """P3: whatever folder other paths are taken from."""
    monkeypatch.chdir(tmp_path)
    assert root_uris("cwd", "/project") == (tmp_path.as_uri(),)


def test_a_working_directory_that_was_removed(tmp_path, monkeypatch):
    """P3."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert fixed_roots("cwd") == "cwd"
    assert "a list of paths" in folders_or_none("cwd")


@pytest.mark.parametrize(
    "roots", ["/work", b"/work", [1], [b"/work"], [""], ["a\0b"], ["https://far.example"], [None], 7, object()]
)
def test_what_is_none(roots):
    """P3."""
    wanted = 'roots must be an async function, a list of paths and file:// URIs, or "cwd", not '
    wanted = 'roots must be an async function, a list of paths and file:// URIs, or "cwd", not '
    with pytest.raises(ValueError, match=wanted):
        Callbacks(roots=roots)

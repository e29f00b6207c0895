"""What counts as a folder that servers may work in, and what each is called."""

import os
from pathlib import Path

import pytest

from mcp_nursery.actors.callbacks import Callbacks, CurrentRoots
from mcp_nursery.actors.roots import root_uris


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


@pytest.mark.parametrize(
    "roots", ["/work", b"/work", [1], [b"/work"], [""], ["a\0b"], ["https://far.example"], [None], 7, object()]
)
def test_what_is_none(roots):
    """P3."""
    with pytest.raises(ValueError, match="roots must be an async function, or a list of paths and file:// URIs, not "):
        Callbacks(roots=roots)

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of this test's sockets, not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mcp-nursery" / "control"

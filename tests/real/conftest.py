import pytest

from .harness import Journal
from .remote import KINDS, Remote


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


@pytest.fixture(scope="session")
def remotes(tmp_path_factory):
    """Gives the server of a kind, started at its first use."""
    started = {}

    def of_kind(kind):
        if kind not in started:
            started[kind] = Remote(kind, tmp_path_factory.mktemp(kind))
        return started[kind]

    yield of_kind
    for remote in started.values():
        remote.kill()


@pytest.fixture(params=KINDS)
def remote(request, remotes):
    """Each kind of remote server in turn, behaving."""
    remote = remotes(request.param)
    remote.reset()
    return remote


@pytest.fixture
def modern(remotes):
    remote = remotes("modern")
    remote.reset()
    return remote

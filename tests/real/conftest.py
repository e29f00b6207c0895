import pytest

from .harness import Journal


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")

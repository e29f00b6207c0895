"""What holds for every error of a configuration, whichever test has it made."""

import pytest

from mcp_nursery.supervisor import ConfigError

from ...lab.plain_words import unwanted


@pytest.fixture(autouse=True)
def in_plain_words(monkeypatch):
    """Each error is one line for a person, without a word of a library."""
    made = []
    make = ConfigError.__init__

    def watched(error, *arguments, **facts):
        make(error, *arguments, **facts)
        made.append(str(error))

    monkeypatch.setattr(ConfigError, "__init__", watched)
    yield
    assert unwanted(made) == []

"""Hypothesis profiles: `quick` by default, `thorough` in CI or when HYPOTHESIS_PROFILE asks. And folders of a user
for the tests alone: nothing here reads or writes what the developer's own mcp-nursery remembers."""

import logging
import os

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=50, deadline=None, derandomize=False)
settings.register_profile("thorough", max_examples=150, deadline=None, derandomize=False, print_blob=True)

_default = "thorough" if os.environ.get("CI", "").lower() == "true" else "quick"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or _default)


@pytest.fixture(autouse=True)
def user_folders(tmp_path_factory, monkeypatch):
    """The state and configuration folders of a user of this test's own, also for the processes it starts."""
    base = tmp_path_factory.mktemp("user")
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(base / name.lower()))
    return base


@pytest.fixture(autouse=True)
def log_levels():
    """A command that runs in this process says what is logged; the next test has what it was."""
    ours = logging.getLogger("mcp_nursery")
    before = logging.root.level, ours.level
    yield
    logging.root.setLevel(before[0])
    ours.setLevel(before[1])

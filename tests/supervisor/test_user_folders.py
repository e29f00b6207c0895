"""The folders of a user, where desktops look for them."""

import os
import pwd
import sys
from pathlib import Path

import pytest

from mcp_nursery.supervisor.user_folders import config_folder, state_folder


@pytest.fixture
def home(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/ann")


@pytest.mark.parametrize(
    ("platform", "state", "config"),
    [
        ("linux", ".local/state/mcp-nursery", ".config/mcp-nursery"),
        ("darwin", "Library/Application Support/mcp-nursery", "Library/Application Support/mcp-nursery"),
    ],
)
def test_in_the_home(home, monkeypatch, platform, state, config):
    monkeypatch.setattr(sys, "platform", platform)
    assert (state_folder(), config_folder()) == (Path("/home/ann") / state, Path("/home/ann") / config)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_where_variables_say(home, monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert (state_folder(), config_folder()) == (Path("/s/mcp-nursery"), Path("/c/mcp-nursery"))


@pytest.mark.parametrize("relative", ["", "state", "./state"])
def test_a_relative_one_is_ignored(home, monkeypatch, relative):
    monkeypatch.setenv("XDG_STATE_HOME", relative)
    assert state_folder().is_relative_to("/home/ann")


def test_a_relative_home_is_that_of_the_system(home, monkeypatch):
    monkeypatch.setenv("HOME", "ann")
    assert state_folder().is_relative_to(pwd.getpwuid(os.getuid()).pw_dir)


def test_a_user_without_a_home(home, monkeypatch):
    monkeypatch.setenv("HOME", "ann")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_123)
    with pytest.raises(RuntimeError, match="this user has no home"):
        state_folder()

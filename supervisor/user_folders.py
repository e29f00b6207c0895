"""The folders of this user's state and configuration, by the conventions of Linux desktops and macOS."""

import os
import sys
from pathlib import Path
from typing import Final

_NAME: Final = "mcp-nursery"
_LIBRARY: Final = "Library/Application Support"


def state_folder() -> Path:
    """Return the folder of state that outlasts a run: in `$XDG_STATE_HOME`, else `~/.local/state`; on macOS
    `~/Library/Application Support`.

    Raises:
        RuntimeError: This user has no home.
    """
    return _folder("XDG_STATE_HOME", ".local/state")


def config_folder() -> Path:
    """Return the folder of the user's own files: in `$XDG_CONFIG_HOME`, else `~/.config`; on macOS
    `~/Library/Application Support`.

    Raises:
        RuntimeError: This user has no home.
    """
    return _folder("XDG_CONFIG_HOME", ".config")


def _folder(variable: str, usual: str) -> Path:
    named = os.environ.get(variable, "")
    if os.path.isabs(named):  # by the specification, a relative one is ignored
        return Path(named) / _NAME
    return _home() / (_LIBRARY if sys.platform == "darwin" else usual) / _NAME


def _home() -> Path:
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
    if not os.path.isabs(home):
        raise RuntimeError("this user has no home: set HOME to an absolute path")
    return Path(home)

"""Roots: the folders that servers are told to work in."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

Folder = str | os.PathLike[str]
"""A path, relative to the working directory, or a `file://` URI."""

CWD: Final = "cwd"
"""The working directory alone, in place of a list of folders."""

_URI: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def root_uris(folders: Iterable[Folder] | Literal["cwd"], base: str = "") -> tuple[str, ...]:
    """The folders as `file://` URIs; `base`: the folder that paths are taken from, by default the working directory.

    Raises:
        ValueError: An entry is not a folder, or `folders` is a single text other than `"cwd"`.
    """
    if folders == CWD:
        return (_uri(os.curdir, ""),)
    if isinstance(folders, str | bytes):
        raise ValueError("roots must be a list of folders, not one text")  # noqa: TRY004
    return tuple(_uri(folder, base) for folder in folders)


def _uri(folder: object, base: str) -> str:
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"a root is a path or a file:// URI, not {type(folder).__name__}")  # noqa: TRY004
    path: str | bytes = os.fspath(folder)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError("a root is a path or a file:// URI, and this is neither")
    if (scheme := _URI.match(path)) is None:
        return Path(os.path.abspath(os.path.join(base, path))).as_uri()
    if scheme[1].lower() != "file":
        raise ValueError(f"a root is a path or a file:// URI, not one of {scheme[1]}")
    return path


def roots_or_none(value: object) -> str | None:
    """An async function, folders, or None: see `actors.argument_checks`."""
    return None if value is None else are_roots(value)


def are_roots(value: object) -> str | None:
    """An async function, or folders. A relative path is not a folder if the working directory was removed."""
    if callable(value):
        return None
    try:
        root_uris(value)  # type: ignore[arg-type]  # it raises for anything else
    except (TypeError, ValueError, FileNotFoundError):
        return 'an async function, a list of paths and file:// URIs, or "cwd"'
    return None


def fixed_roots(folders: Iterable[Folder] | None) -> tuple[str, ...] | None:
    """The folders as URIs, whatever becomes of the list that was given; None stays. A value of another kind is left for
    `folders_or_none` to refuse."""
    try:
        return None if folders is None else root_uris(folders)
    except (TypeError, ValueError, FileNotFoundError):
        return folders  # type: ignore[return-value]


def folders_or_none(value: object) -> str | None:
    """Folders, or None."""
    wanted = 'a list of paths and file:// URIs, "cwd", or None'
    return wanted if callable(value) or roots_or_none(value) is not None else None

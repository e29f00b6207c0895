"""A configuration: the servers of files, and how these are read again. Light to import: reading needs much more."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from mcp_nursery.actors.records import evolve, field, frozen

from ..spec import ServerSpec

Signature = tuple[int, ...] | None
"""The identity of a file's state; None if there is no file. It differs once the file has changed."""


def signatures(paths: Iterable[str]) -> Mapping[str, Signature]:
    """The signatures of these files now."""
    signatures: dict[str, Signature] = dict.fromkeys(paths)
    for path in signatures:
        with suppress(OSError, ValueError):
            found = os.stat(path)
            signatures[path] = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return signatures


@frozen
class Config:
    """The content of the files."""

    servers: tuple[ServerSpec, ...]
    """The specs, one for each name. The spec of an entry that cannot work carries an `UnusableTransport`."""
    files: tuple[str, ...]
    """The files read, in the order given."""
    warnings: tuple[str, ...]
    """One line each: keys that mean nothing here, once for each file and key, and headers that a variable leaves
    empty."""
    errors: tuple[str, ...] = ()
    """One line each: files that were found and cannot be used."""
    replaced: tuple[str, ...] = ()
    """One line each: servers in whose place another of the same name was taken."""
    reread: "Callable[[], Config] | None" = field(default=None, init=False, eq=False, repr=False)
    """The function that reads the same files again, in the same way; None if the configuration is not as it was read.
    `evolve` does not copy it, since the changes made there would be lost."""

    locate: Callable[[], Sequence[str]] | None = field(default=None, init=False, eq=False, repr=False)
    """The function that returns the files that `reread` would read now, existing or not; None if there is no
    `reread`."""

    before: Mapping[str, Signature] = field(factory=dict[str, Signature], init=False, eq=False, repr=False)
    """The signatures of the files before they were read."""

    def read_by(
        self, reread: "Callable[[], Config]", locate: Callable[[], Sequence[str]], before: Mapping[str, Signature]
    ) -> "Config":
        """The same configuration, which is read again in this way."""
        config = evolve(self)
        object.__setattr__(config, "reread", reread)
        object.__setattr__(config, "locate", locate)
        object.__setattr__(config, "before", before)
        return config

    def with_each(self, change: Callable[[ServerSpec], ServerSpec]) -> "Config":
        """The same configuration with each of its servers changed, also whenever it is read again."""
        changed, reread = evolve(self, servers=tuple(map(change, self.servers))), self.reread
        if reread is None:
            return changed
        return changed.read_by(lambda: reread().with_each(change), self.locate or tuple, self.before)

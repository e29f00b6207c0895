"""Reading several files as one configuration."""

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Final

from mcp_nursery.actors.argument_checks import check_argument, true_or_false
from mcp_nursery.actors.errors import ConfigError, one_line
from mcp_nursery.actors.records import evolve, field, frozen
from mcp_nursery.supervisor.spec import ServerSpec

from ..decisions.suggestions import advice_for_key
from .config import Config, signatures
from .deferred import DeferredTransport
from .dialects import entries_of, recognise
from .discovery import (
    SETTINGS,
    EntryOrigin,
    absolute,
    as_project,
    problem_with_owner,
    project_files,
    user_files,
)
from .document import PROJECT_LIMIT, read_document
from .entry import ENTRY_KEYS, NAMELESS, Entry, read_entry
from .variables import command_of, how_to_pass_on, unexpanded_in

logger: Final = logging.getLogger(__name__)

Keep = Callable[[ServerSpec], bool]
"""A test of whether a server is wanted."""


@frozen
class File:
    """One file that was read."""

    path: str
    host: str
    """The name of the host in whose dialect it is written."""
    entries: tuple[tuple[str, Entry], ...] = field(repr=False)
    """The servers by name."""


def load_config(
    *files: str | os.PathLike[str],
    specs: Iterable[ServerSpec] = (),
    inputs: Mapping[str, str] | None = None,
    keep: Keep | None = None,
) -> Config:
    """Read the servers of each file, in the words of the host that it is written for.

    Naming a file is the user's act: its commands and its servers' hints are trusted. If two files name the same server,
    the entry of the later file wins as a whole, even an invalid one. The rest of a file belongs to other programs and
    is left alone.

    An entry that cannot work is an error of its server alone: the spec's transport is an `UnusableTransport`. Warnings
    and errors are logged, too.

    Args:
        files: The files.
        specs: Servers given by code; they take precedence over all files.
        inputs: The values of `${input:ID}`, by ID. A server that asks for another cannot work.
        keep: A test of which servers are wanted; the others are dropped.

    Raises:
        ConfigError: A file cannot be read, is neither a JSON object nor TOML, has a key twice or has no servers.
    """
    by_code = tuple(specs)
    paths = tuple(os.fspath(file) for file in files)
    before = signatures(paths)
    read = [read_file(EntryOrigin(path), inputs=inputs) for path in paths]
    again = partial(load_config, *files, specs=by_code, inputs=inputs, keep=keep)
    return _log_problems(_config(read, by_code, keep)).read_by(again, lambda: paths, before)


def discover_config(
    folder: str | os.PathLike[str] | None = None,
    *,
    project: bool = True,
    user: bool = True,
    hosts: bool = False,
    specs: Iterable[ServerSpec] = (),
    inputs: Mapping[str, str] | None = None,
    keep: Keep | None = None,
) -> Config:
    """Read the user's own file and the current project's, where they exist; the user's entries take precedence.

    The user's file is `servers.json` in the user's configuration folder, and trusted. The project's are `.mcp.json` and
    then those of other hosts, each the nearest from `folder` up to the root of its git repository; outside of a
    repository, in `folder` alone. They came with the project: what their entries would start, run or read has to be
    agreed to first.

    A file that cannot be used is one of `Config.errors`, and so is one that belongs to neither the user nor root, or
    lies in a folder that does not: `load_config` uses it anyway, if it is named.

    Args:
        folder: The folder in which the project is searched; the working directory by default.
        project: False leaves the project's files alone.
        user: False leaves the user's files alone.
        hosts: Whether the user's files of other hosts are read and trusted, too; the user's own take precedence.
        specs: As for `load_config`.
        inputs: As for `load_config`.
        keep: As for `load_config`.

    Raises:
        ValueError: `project`, `user` or `hosts` is neither True nor False.
    """
    for name, value in {"project": project, "user": user, "hosts": hosts}.items():
        check_argument(name, value, true_or_false)

    def locate() -> tuple[list[EntryOrigin], tuple[str, ...]]:
        origins, unfound = _find_in(folder or os.curdir) if project else ([], ())
        return origins + (user_files(hosts=hosts) if user else []), unfound

    origins, unfound = locate()
    before = signatures(origin.file for origin in origins)
    by_code = tuple(specs)
    files, errors = read_found(origins, inputs=inputs)
    found = {"project": project, "user": user, "hosts": hosts}
    again = partial(discover_config, folder, **found, specs=by_code, inputs=inputs, keep=keep)
    return _log_problems(evolve(_config(files, by_code, keep), errors=unfound + errors)).read_by(
        again, lambda: [origin.file for origin in locate()[0]], before
    )


def _log_problems(config: Config) -> Config:
    """Log the problems, for hosts that never read these fields, and return the configuration."""
    for line in (*config.errors, *config.warnings):
        logger.warning("%s", line)
    for line in config.replaced:
        logger.info("%s", line)
    return config


def _find_in(folder: str | os.PathLike[str]) -> tuple[list[EntryOrigin], tuple[str, ...]]:
    try:
        return project_files(absolute(folder)), ()
    except ConfigError as error:
        return [], (str(error),)


def load_project(file: str | os.PathLike[str]) -> Config:
    """Read one file as a project's: what its entries would start, run or read has to be agreed to first.

    Raises:
        ConfigError: As for `load_config`.
    """
    return _config([read_file(as_project(absolute(file)))])


def read_found(
    origins: Iterable[EntryOrigin], *, inputs: Mapping[str, str] | None = None
) -> tuple[list[File], tuple[str, ...]]:
    """The files that can be used, and the problems of the others, one line each."""
    files: list[File] = []
    errors: list[str] = []
    for origin in origins:
        try:
            _check_owner(origin)
            document = read_document(origin.file, found=True, limit=None if origin.trusted else PROJECT_LIMIT)
            if PurePath(origin.file).name in SETTINGS and not _has_servers(origin.file, document):
                continue
            files.append(read_file(origin, inputs=inputs, document=document))
        except ConfigError as error:
            errors.append(str(error))
    return files, tuple(errors)


def _check_owner(origin: EntryOrigin) -> None:
    problem = problem_with_owner(origin)
    if problem is not None:
        how = f"--config {shlex.quote(origin.file)} uses it anyway"
        raise ConfigError(f"skipped: {problem}; {how}", file=origin.file)


def read_file(
    origin: EntryOrigin, *, inputs: Mapping[str, str] | None = None, document: Mapping[str, object] | None = None
) -> File:
    """The servers of one file; `document` is its content, if that was read already.

    Raises:
        ConfigError: As for `load_config`.
    """
    if document is None:
        document = read_document(origin.file)
    dialect, root = recognise(origin.file, document)
    here = evolve(origin, root=root)
    read: list[tuple[str, Entry]] = []
    for number, (name, value) in enumerate(entries_of(origin.file, document, dialect, root), 1):
        entry = read_entry(name, value, number=number, origin=here, dialect=dialect, inputs=inputs)
        read.append((name, entry.off() if dialect.rules and dialect.is_off(document, name) else entry))
    return File(origin.file, dialect.name, tuple(read))


def _has_servers(path: str, document: Mapping[str, object]) -> bool:
    try:
        recognise(path, document)
    except ConfigError:
        return False
    return True


_ADVISED = 100
"""Unknown keys whose warnings suggest the key that may have been meant."""


def _config(files: Sequence[File], specs: Iterable[ServerSpec] = (), keep: Keep | None = None) -> Config:
    servers: dict[str, ServerSpec] = {}
    replaced: list[str] = []
    warnings: dict[tuple[str, str], str] = {}
    nameless = 0
    for file in files:
        for name, entry in file.entries:
            for same, line in warnings_of(file.path, name, entry, before=len(warnings)):
                warnings.setdefault(same, line)
    for spec in (*(entry.spec for file in files for _, entry in file.entries), *specs):
        named = spec
        if spec.name == NAMELESS:  # none of them overrides another
            nameless += 1
            named = evolve(spec, name=f"{NAMELESS} {nameless}") if nameless > 1 else spec
        before = servers.get(named.name)
        if before is not None:
            replaced.append(f"{named.label} overrides {before.label}")
        servers[named.name] = named
    return Config(
        servers=tuple(spec for spec in servers.values() if keep is None or keep(spec)),
        files=tuple(file.path for file in files),
        warnings=tuple(map(one_line, warnings.values())),
        replaced=tuple(map(one_line, replaced)),
    )


_EXPANDING = frozenset(
    ["bash", "cmd", "cmd.exe", "dash", "fish", "ksh", "powershell", "pwsh", "sh", "ssh", "wsl", "zsh"]
)
"""Commands that expand their arguments themselves."""


def _texts_as_they_stand(entry: Entry) -> Iterator[tuple[str, str]]:
    """The texts of an entry that a server gets with no more than our variables replaced, with their fields."""
    transport = entry.spec.transport
    written = transport.transport if isinstance(transport, DeferredTransport) else transport
    for name, text in getattr(written, "env", {}).items():
        if command_of(text) is None:
            yield f"env.{name[:80]}", text
    if PurePath(getattr(written, "command", "")).name not in _EXPANDING:
        for text in getattr(written, "args", ()):
            yield "args", text


def warnings_of(path: str, name: str, entry: Entry, *, before: int = 0) -> Iterator[tuple[tuple[str, str], str]]:
    """The warnings about words of an entry that have no meaning, one line each, with a key that equal ones share. There
    are `before` lines already: a file may have any number of keys, and the search for what was meant takes a tenth of a
    millisecond."""
    where = f"{path}: server {name!r}"
    for number, key in enumerate(entry.spec.extra, before):
        meant = advice_for_key(key, ENTRY_KEYS) if number < _ADVISED else ""
        yield (path, key), f"{where}: unknown key {key[:80]!r} is ignored{meant}"
    for member, text in _texts_as_they_stand(entry):
        if (advice := unexpanded_in(text)) is not None:
            yield (where, member), f"{where}: field {member!r}: {advice}"
    if isinstance(entry.spec.transport, DeferredTransport):
        for header, variable in entry.spec.transport.empty_headers():
            said = [f"field 'headers.{header}': {variable} is not in its env, so it is empty", how_to_pass_on(variable)]
            yield (where, f"{header} {variable}"), f"{where}: {'; '.join(filter(None, said))}"

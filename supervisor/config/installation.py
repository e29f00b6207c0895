"""The gateway in a host's file: plans to install it and to undo that. Plans only; their owner carries them out.

Before the host's file is written, its former content is kept in a backup beside it. The name of the backup holds the
digest of the content that we write: so undoing finds the backup of a file that is as we left it, without a record. If
the program is killed in between, the host's file has one of the two contents, and undoing removes the rest.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from shlex import quote
from typing import Any

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import field, frozen

from .discovery import absolute, own_file, project_files
from .document import as_object, parse_document
from .edits import Edit, apply_edits, steps_to_enable
from .entry import Entry
from .hosts import (
    GATEWAY_ENTRY,
    Adoption,
    HostProgram,
    adopt,
    host_variables_in,
    is_gateway,
    projects_with_servers,
    servers_in,
)
from .whole_file import Replacement, check_writable, read_bytes, split_mark


@frozen
class HostFile:
    """A host's file, and our files that belong to it."""

    host: HostProgram
    file: Path
    """An absolute path."""
    key: str
    """The name of our file with its servers."""

    @property
    def servers(self) -> Path:
        """The file with the servers that are behind the gateway."""
        return own_file().parent / "hosts" / f"{self.key}.json"

    def backup(self, after: bytes | None) -> Path:
        """The backup that is made before the host's file gets this content. No host takes a file of that name for one
        of its own."""
        digest = hashlib.sha256(after or b"").hexdigest()[:16]
        return self.file.with_name(f"{self.file.name}.{GATEWAY_ENTRY}-{digest}.bak")

    def backups(self) -> dict[Path, bytes]:
        """The backups and their contents, the oldest first. The backup of a file that did not exist is empty."""
        found = self.file.parent.glob(f"{escape(self.file.name)}.{GATEWAY_ENTRY}-*.bak")
        return {path: read_bytes(path) for path in sorted(found, key=os.path.getmtime)}


def user_place(host: HostProgram) -> HostFile:
    """The host's file for its user."""
    files = [Path.home() / name for name in host.user]
    return HostFile(host, next((file for file in files if os.path.lexists(file)), files[0]), host.name)


def project_place(host: HostProgram) -> HostFile | None:
    """The host's file of the project that the working directory is in: the nearest one, else one in this folder; None
    if the host has no files for projects.

    Raises:
        ConfigError: The working directory does not exist any more.
    """
    if not host.project:
        return None
    here = absolute(os.curdir)
    ends = [Path(name).parts for name in host.project]
    found = [Path(origin.file) for origin in project_files(here)]
    file = next((each for each in found if any(each.parts[-len(end) :] == end for end in ends)), None)
    return place_of(host, file or here / host.project[0])


def place_of(host: HostProgram, file: Path) -> HostFile:
    """The place of a host's file that was named."""
    path = Path(os.path.normpath(absolute(file)))
    if path == user_place(host).file:
        return user_place(host)
    if path.suffix != ".toml" and host.name == "codex":
        raise ConfigError("Codex reads a file whose name ends in .toml", file=str(path))
    return HostFile(host, path, f"{host.name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}")


@frozen
class Plan:
    """The changes of an install, before anything is done."""

    change: str | None
    """`installed`, `adopted` or `undone`; None: there is nothing to change."""
    file: Path
    replacements: tuple[Replacement, ...] = ()
    """The replacements, in the order in which they have to be made."""
    shown: tuple[Replacement, ...] = ()
    """The replacements that a person has to see."""
    backup: Path | None = None
    """The backup of the file that is made."""
    moved: tuple[str, ...] = ()
    stay: Mapping[str, str] = field(factory=dict[str, str])
    """The servers that cannot go behind the gateway, and why."""
    notes: tuple[str, ...] = ()
    """Further remarks for a person, one line each."""


@frozen
class _Host:
    """A host's file with some content."""

    place: HostFile
    data: bytes | None
    mark: str
    """The byte order mark, if there is one."""
    text: str
    """The rest of the text; if there is no file, or a blank one, the text of an empty document."""
    document: Mapping[str, Any]
    root: tuple[str, ...]
    servers: Mapping[str, Entry]

    @property
    def gateway(self) -> Entry | None:
        """The entry of the gateway, if there is one."""
        entry = self.servers.get(GATEWAY_ENTRY)
        return entry if entry is not None and is_gateway(entry.own) else None

    @property
    def program(self) -> str | None:
        """The command of the gateway's entry; None if it is a path at which there is nothing any more."""
        command = None if self.gateway is None else str(self.gateway.own["command"])
        return None if command is None or (os.path.isabs(command) and not os.path.exists(command)) else command

    @property
    def adopted(self) -> bool:
        """True if the gateway has servers of this host."""
        return self.gateway is not None and str(self.place.servers) in self.gateway.own.get("args", ())

    def adoption(self) -> Adoption:
        """The servers that can go behind the gateway, and those that cannot."""
        return adopt(self.place.host, self.document, self.servers)


def install(place: HostFile, argv: Sequence[str], *, adopting: bool = False) -> Plan:
    """Plan to put the gateway into the host's file; with `adopting`, to move the host's servers behind it. `argv` is
    the command of mcp-nursery, without arguments.

    Raises:
        ConfigError: The file cannot be used, or cannot be edited without changing more than that.
    """
    check_writable(place.file)
    host = _read(place, _content(place.file))
    if GATEWAY_ENTRY in host.servers and host.gateway is None:
        raise ConfigError(
            "is there already, and is another server; rename it", file=str(place.file), server=GATEWAY_ENTRY
        )
    adoption = host.adoption() if adopting else Adoption({}, {}, ())
    moving: Mapping[str, Any] = adoption.entries
    notes = list(adoption.notes)
    stay = {name: reason for name, reason in adoption.stay.items() if name != GATEWAY_ENTRY}
    if adopting and (projects := projects_with_servers(host.document)):
        notes.append(f"what it has for single projects stays as it is, in {projects} of them")
    if host.adopted:
        stay |= dict.fromkeys(moving, f"came after the others were moved; write it into {place.servers}")
        moving = {}
    elif adopting and not moving:
        why = "; ".join([*(f"{name}: {reason}" for name, reason in stay.items()), *notes])
        problem = f"it has no server that can go behind the gateway{f' ({why})' if why else ''}"
        raise ConfigError(problem, file=str(place.file))
    text = host.text if host.program is not None and not moving else _install(host, argv, moving)
    if parse_document(text, str(place.file)) == host.document:
        return Plan(None, place.file, stay=stay, notes=tuple(notes))
    if host.gateway is None and not moving and not own_file().exists():
        notes.append(f"there are no servers of yours for it yet, in {own_file()}; see mcp-nursery import, or --adopt")
    shown = [Replacement(place.file, host.data, (host.mark + text).encode())]
    if moving:
        shown.append(Replacement(place.servers, _content(place.servers), _servers(moving)))
        if shown[1].before not in (None, shown[1].after):
            raise ConfigError("exists already, with other servers; move it away", file=str(place.servers))
    backups, backup = place.backups(), place.backup(shown[0].after)
    former = place.backup(host.data)  # if it exists, the file is as we left it, and the former content is older
    keeping = Replacement(backup, backups.get(backup), backups.get(former, host.data or b""))
    gone = [Replacement(former, backups[former], None)] if former in backups else []
    replacements = (keeping, *reversed(shown), *gone)
    change = "adopted" if moving else "installed"
    return Plan(change, place.file, replacements, tuple(shown), backup, tuple(moving), stay, tuple(notes))


def undo(place: HostFile) -> Plan:
    """Plan to restore the host's file from its backup.

    Raises:
        ConfigError: There is no backup, or the file is not as it was left, or it cannot be written.
    """
    check_writable(place.file)
    data, backups = _content(place.file), place.backups()
    as_before = next((path for path, content in backups.items() if content == (data or b"")), None)
    backup = place.backup(data) if place.backup(data) in backups else as_before
    if backup is None:
        former = "there is nothing to undo, as no backup is beside it"
        if backups:
            former = f"it was changed since; copy what you need from {next(iter(backups))}"
        command = f"{GATEWAY_ENTRY} remove {GATEWAY_ENTRY} --config {quote(str(place.file))}"
        raise ConfigError(f"{former}; to take out our entry alone: {command}", file=str(place.file))
    ours = Replacement(place.file, data, backups[backup] or None)
    behind = _content(place.servers)
    unchanged = behind == _servers(_read(place, ours.after).adoption().entries)
    moved = [Replacement(place.servers, behind, None)] if unchanged else []
    kept = f"the servers as they are behind the gateway are kept in {place.servers}"
    notes = (kept,) if behind is not None and not unchanged else ()
    done = [Replacement(path, content, None) for path, content in backups.items() if content == backups[backup]]
    return Plan("undone", place.file, (ours, *moved, *done), (ours,), notes=notes)


def status(place: HostFile) -> tuple[int, str]:
    """The number of servers in the host's file besides the gateway, and the gateway's state there: `installed`,
    `adopted` or empty.

    Raises:
        ConfigError: The file cannot be used.
    """
    host = _read(place, _content(place.file))
    count = len(host.servers) - (host.gateway is not None)
    return count, "" if host.gateway is None else "adopted" if host.adopted else "installed"


def _content(file: Path) -> bytes | None:
    return read_bytes(file) if os.path.exists(file) else None


def _read(place: HostFile, data: bytes | None) -> _Host:
    mark, text = split_mark(data)
    if not text.strip() and place.file.suffix != ".toml":
        text = "{}\n"
    document = parse_document(text, str(place.file))
    root = place.host.root(document)
    return _Host(
        place, data, mark, text, document, root, servers_in(str(place.file), document, place.host.dialect, root)
    )


def _servers(moving: Mapping[str, Any]) -> bytes:
    """The file with the servers that are behind the gateway."""
    return (json.dumps({"mcpServers": moving}, indent=2, ensure_ascii=False) + "\n").encode()


def _install(host: _Host, argv: Sequence[str], moving: Mapping[str, Any]) -> str:
    place = host.place
    said: dict[str, Any] = {}
    if host.gateway is not None:
        servers: Any = host.document
        for key in host.root:
            servers = servers[key]
        said = servers[GATEWAY_ENTRY]
    program = argv if host.program is None else [host.program]
    entry = said | place.host.written([*program, *_arguments(host.gateway, place.servers if moving else None)])
    passed = place.host.passes(host_variables_in(moving.values()))
    if "env" in passed:
        passed = {"env": said.get("env", {}) | passed["env"]}
    entry |= passed
    if host.text.strip() == "{}":
        document: Mapping[str, Any] = {GATEWAY_ENTRY: entry}
        for key in reversed(host.root):
            document = {key: document}
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    path = (*host.root, GATEWAY_ENTRY)
    steps = [Edit("remove", path)] if host.gateway is not None and place.file.suffix == ".toml" else []
    steps.append(Edit("set", path, entry))
    rules = host.place.host.dialect.rules
    if rules is not None:
        steps += steps_to_enable({}, as_object(host.document.get(rules)) or {}, rules, path, GATEWAY_ENTRY)
    steps += [Edit("remove", (*host.root, name)) for name in moving]
    return apply_edits(host.text, str(place.file), steps)


def _arguments(gateway: Entry | None, behind: Path | None) -> list[str]:
    """The arguments of the gateway. Without servers of the host it serves those of the user's own file; a project's
    would be started twice, or be the gateway itself."""
    said = list(gateway.own.get("args", ())) if gateway is not None else ["serve", "--no-project"]
    if behind is None:
        return said
    if "--config" not in said:
        said = [word for word in said if word != "--no-project"]
        if gateway is not None and own_file().exists():
            said += ["--config", str(own_file())]
    return [*said, "--config", str(behind)]

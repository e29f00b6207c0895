"""The gateway in a host's file: plans to install it and to undo that, and the record of the former state. Plans only;
their owner carries them out.

Three files are written in this order, each as a whole: the record of the former state; the
servers that went behind the gateway; the host's own. If the program is killed in between, the host's file is as it was,
and the record names more than was done, which undoing allows for. Undoing has the opposite order.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, frozen

from mcp_nursery.actors.errors import ConfigError

from .discovery import absolute, own_file, project_files
from .document import Written, as_object, parse_document
from .edits import Edit, apply_edits, raw_texts, steps_to_enable
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
from .values import FieldError, structurer
from .whole_file import Replacement, check_writable, read_bytes, split_mark

_RECORD_FORMAT = 1


@frozen
class HostFile:
    """A host's file, and our files that belong to it."""

    host: HostProgram
    file: Path
    """An absolute path."""
    key: str
    """The name that our files for it share."""

    @property
    def servers(self) -> Path:
        """The file with the servers that are behind the gateway."""
        return own_file().parent / "hosts" / f"{self.key}.json"

    @property
    def record(self) -> Path:
        """The file with the record of the former state."""
        return own_file().parent / "hosts" / f"{self.key}.undo.json"


@frozen
class Record:
    """The data that undoes what was done to a file."""

    original: str | None = None
    """The former content of the file, or the content that it would have without us; None: there was no file."""
    written: tuple[str, ...] = ()
    """Digests of the contents that we made from exactly that one."""
    moved: tuple[str, ...] = ()
    """The servers that went behind the gateway."""
    servers: str | None = None
    """Digest of the file with those servers, as we wrote it."""
    folders: tuple[str, ...] = ()
    """The folders that were made for the file."""


_structure_record = structurer(Record)


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


def read_record(place: HostFile) -> Record | None:
    """The record of a host's file; None if nothing was done to the file.

    Raises:
        ConfigError: The record cannot be read.
    """
    if not os.path.exists(place.record):
        return None
    said = parse_document(read_bytes(place.record).decode(), str(place.record))
    if said.get("format") != _RECORD_FORMAT or said.get("file") != str(place.file):
        raise ConfigError("is of another file, or of another version of mcp-nursery", file=str(place.record))
    try:
        return _structure_record(as_object(said.get("undo")) or {})
    except FieldError as error:
        problem, where = str(error), error.key
    raise ConfigError(problem, file=str(place.record), field=where)


def record_bytes(place: HostFile, record: Record) -> bytes:
    """The record in the form in which it is kept."""
    document = {"format": _RECORD_FORMAT, "file": str(place.file), "undo": asdict(record)}
    return (json.dumps(document, indent=2) + "\n").encode()


def servers_behind(place: HostFile) -> Mapping[str, Any]:
    """The servers in our file for the host.

    Raises:
        ConfigError: Our file cannot be used.
    """
    if not os.path.exists(place.servers):
        return {}
    return as_object(parse_document(read_bytes(place.servers).decode(), str(place.servers)).get("mcpServers")) or {}


def missing_folders(file: Path) -> tuple[str, ...]:
    """The folders that have to be made for a file, the innermost first."""
    return tuple(str(folder) for folder in file.parents if not folder.exists())


def digest_of(data: bytes | None) -> str:
    """The digest that shows whether a file is as it was."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


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
    moved: tuple[str, ...] = ()
    stay: Mapping[str, str] = field(factory=dict[str, str])
    """The servers that cannot go behind the gateway, and why."""
    notes: tuple[str, ...] = ()
    """Further remarks for a person, one line each."""
    folders: tuple[str, ...] = ()
    """The folders to remove if they are empty, the innermost first."""


@frozen
class _Host:
    """A host's file as it is."""

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


def install(place: HostFile, argv: Sequence[str], *, adopting: bool = False) -> Plan:
    """Plan to put the gateway into the host's file; with `adopting`, to move the host's servers behind it. `argv` is
    the command of mcp-nursery, without arguments.

    Raises:
        ConfigError: The file cannot be used, or cannot be edited without changing more than that.
    """
    check_writable(place.file)
    host = _read(place)
    if GATEWAY_ENTRY in host.servers and host.gateway is None:
        raise ConfigError(
            "is there already, and is another server; rename it", file=str(place.file), server=GATEWAY_ENTRY
        )
    record = read_record(place)
    kept: tuple[Replacement, ...] = ()
    if record is None or _text(host.data) == record.original:
        record, kept = Record(_text(host.data), folders=missing_folders(place.file)), _put_aside(place, record)
    behind: Mapping[str, Any] = servers_behind(place) if not kept and record.servers is not None else {}
    adoption = adopt(place.host, host.document, host.servers) if adopting else Adoption({}, {}, ())
    moving = {name: entry for name, entry in adoption.entries.items() if name not in behind}
    stay = {**adoption.stay, **{name: "is behind the gateway already" for name in adoption.entries if name in behind}}
    stay.pop(GATEWAY_ENTRY, None)
    notes = list(adoption.notes)
    if adopting and (projects := projects_with_servers(host.document)):
        notes.append(f"what it has for single projects stays as it is, in {projects} of them")
    if adopting and not moving and not behind:
        why = "; ".join([*(f"{name}: {reason}" for name, reason in stay.items()), *notes])
        problem = f"it has no server that can go behind the gateway{f' ({why})' if why else ''}"
        raise ConfigError(problem, file=str(place.file))
    if host.program is not None and not moving:
        return Plan(None, place.file, stay=stay, notes=tuple(notes))
    text = _install(host, argv, {**behind, **moving}, moving)
    if parse_document(text, str(place.file)) == host.document:
        return Plan(None, place.file, stay=stay, notes=tuple(notes))
    if host.gateway is None and not (behind or moving) and not own_file().exists():
        notes.append(f"there are no servers of yours for it yet, in {own_file()}; see mcp-nursery import, or --adopt")
    return evolve(_plan(host, record, kept, text, moving), stay=stay, notes=tuple(notes))


def undo(place: HostFile) -> Plan:
    """Plan to undo all that was done to the host's file. If it was changed since, the gateway is removed, and the
    servers that were moved are put back.

    Raises:
        ConfigError: Nothing was done to the file, or it cannot be used or edited.
    """
    record = read_record(place)
    if record is None:
        raise ConfigError("there is nothing to undo: nothing was installed in it", file=str(place.file))
    check_writable(place.file)
    data = read_bytes(place.file) if os.path.exists(place.file) else None
    before, notes = record.original, list[str]()
    if _text(data) != record.original and digest_of(data) not in record.written:
        before, lost = _restore(_read(place), record)
        notes.append("it was changed since: what is ours is taken out, and what was moved is put in again")
        notes += [f"{name}: there is another of that name now, which stays" for name in lost]
        record = evolve(record, moved=tuple(name for name in record.moved if name not in lost))
    ours = Replacement(place.file, data, None if before is None else before.encode())
    aside = _put_aside(place, record)
    notes += [f"the servers as they are behind the gateway are kept in {aside[0].file}" for _ in aside[1:]]
    gone = Replacement(place.record, read_bytes(place.record), None)
    return Plan("undone", place.file, (ours, *aside, gone), (ours,), notes=tuple(notes), folders=record.folders)


def status(place: HostFile) -> tuple[int, str]:
    """The number of servers in the host's file besides the gateway, and the gateway's state there: `installed`,
    `adopted` or empty.

    Raises:
        ConfigError: The file cannot be used.
    """
    host = _read(place)
    count = len(host.servers) - (host.gateway is not None)
    if host.gateway is None:
        return count, ""
    return count, "adopted" if str(place.servers) in host.gateway.own.get("args", ()) else "installed"


def _read(place: HostFile) -> _Host:
    data = read_bytes(place.file) if os.path.exists(place.file) else None
    mark, text = split_mark(data)
    if not text.strip() and place.file.suffix != ".toml":
        text = "{}\n"
    document = parse_document(text, str(place.file))
    root = place.host.root(document)
    return _Host(
        place, data, mark, text, document, root, servers_in(str(place.file), document, place.host.dialect, root)
    )


def _install(host: _Host, argv: Sequence[str], behind: Mapping[str, Any], moving: Mapping[str, Any]) -> str:
    place = host.place
    program = argv if host.program is None else [host.program]
    entry = place.host.written([*program, *_arguments(host.gateway, place.servers if behind else None)])
    passed = place.host.passes(host_variables_in(behind.values()))
    if host.gateway is not None:
        said = _value(host, GATEWAY_ENTRY)
        entry = {**said, **entry}
        if "env" in passed:
            passed = {"env": {**said.get("env", {}), **passed["env"]}}
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
    if behind is None or str(behind) in said:
        return said
    if "--config" not in said:
        said = [word for word in said if word != "--no-project"]
        if gateway is not None and own_file().exists():
            said += ["--config", str(own_file())]
    return [*said, "--config", str(behind)]


def _plan(host: _Host, record: Record, kept: Sequence[Replacement], text: str, moving: Mapping[str, Any]) -> Plan:
    """The plan of all that has to be written, if the host's file becomes this text."""
    place, now = host.place, _text(host.data)
    after = (host.mark + text).encode()
    written: tuple[str, ...] = ()
    if now == record.original or digest_of(host.data) in record.written:
        written = record.written
    else:  # it was changed since: the original is now what it would be without us
        original, lost = _restore(host, record)
        record = evolve(record, original=original, moved=tuple(name for name in record.moved if name not in lost))
    shown = [Replacement(place.file, host.data, after)]
    if moving:
        data = read_bytes(place.servers) if record.servers is not None and os.path.exists(place.servers) else None
        servers = _with_servers(place.servers, data, moving).encode()
        shown.append(Replacement(place.servers, data, servers))
        record = evolve(record, servers=digest_of(servers), moved=tuple(dict.fromkeys((*record.moved, *moving))))
    record = evolve(record, written=(*written, digest_of(after)))
    before = read_bytes(place.record) if os.path.exists(place.record) else None
    replacements = (*kept, Replacement(place.record, before, record_bytes(place, record)), *reversed(shown))
    change = "adopted" if moving else "installed"
    return Plan(change, place.file, replacements, tuple(shown), tuple(moving))


def _with_servers(file: Path, data: bytes | None, moving: Mapping[str, Any]) -> str:
    """The file's text with these servers added; the rest stays as it was edited."""
    if data is None:
        return json.dumps({"mcpServers": moving}, indent=2, ensure_ascii=False) + "\n"
    steps = [Edit("set", ("mcpServers", name), own) for name, own in moving.items()]
    return apply_edits(data.decode(), str(file), steps)


def _restore(host: _Host, record: Record) -> tuple[str, list[str]]:
    """The host's file without the gateway and with the servers that were moved, and those of them whose names other
    servers have now."""
    file = str(host.place.file)
    _, original = split_mark((record.original or "").encode())
    said = parse_document(original, file) if original.strip() else {}
    root = host.place.host.root(said)
    steps: list[Edit] = []
    lost: list[str] = []
    texts = raw_texts(original, file, root) if record.moved else {}
    for name in record.moved:
        value = _at(said, (*root, name))
        if name not in host.servers:
            steps.append(Edit("set", (*host.root, name), Written(texts.get(name, ""), value)))
        elif _value(host, name) != value:
            lost.append(name)
    if host.gateway is not None:
        steps.append(Edit("remove", (*host.root, GATEWAY_ENTRY)))
    rules = host.place.host.dialect.rules
    allowed: list[Any] | None = (as_object(host.document.get(rules or "")) or {}).get("allowed")
    if rules is not None and isinstance(allowed, list) and GATEWAY_ENTRY in allowed:
        steps.append(Edit("remove", (rules, "allowed", allowed.index(GATEWAY_ENTRY))))
    return host.mark + apply_edits(host.text, file, steps), lost


def _put_aside(place: HostFile, record: Record | None) -> tuple[Replacement, ...]:
    """The replacements that remove the file with the servers. If somebody has changed it, or not all of its servers are
    back with the host, a copy is kept beside it."""
    if not os.path.exists(place.servers):
        return ()
    data = read_bytes(place.servers)
    gone = Replacement(place.servers, data, None)
    if record is not None and record.servers == digest_of(data) and servers_behind(place).keys() <= set(record.moved):
        return (gone,)
    names = (place.servers.with_suffix(f".kept{number or ''}.json") for number in range(1000))
    return (Replacement(next(name for name in names if not name.exists()), None, data), gone)


def _value(host: _Host, name: str) -> Any:
    return _at(host.document, (*host.root, name))


def _at(document: Any, path: Sequence[str]) -> Any:
    for key in path:
        document = document[key]
    return document


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()

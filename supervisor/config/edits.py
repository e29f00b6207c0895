"""Edits that switch servers of a file on or off, or remove them: text in, text out. The rest of the text stays, with
its comments, its indentation and its line ends. Writes nothing."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any, Literal, TypeAlias

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import evolve, frozen
from mcp_nursery.supervisor.spec import ServerSpec

from . import json_edits, toml_edits
from .dialects import Dialect, entries_of, opencode, recognise
from .discovery import EntryOrigin
from .document import as_object, parse_document
from .loader import read_file

Change: TypeAlias = Literal["enable", "disable", "remove"]
KeyPath: TypeAlias = tuple[str | int, ...]
"""A path to a value: keys of objects and places in lists, from the top of a file."""


@frozen
class Edit:
    """One edit. `set` and `append` make missing objects, and a missing list, on the way."""

    verb: Literal["set", "append", "remove"]
    path: KeyPath
    """The path of the value to set or remove, or of the list to append to."""
    value: Any = ""


def apply_edits(text: str, file: str, steps: Sequence[Edit]) -> str:
    """The file's text after these edits, and no others.

    Raises:
        ConfigError: The text cannot be used, or cannot be edited without changing more.
    """
    new, wanted = _edit(text, file, parse_document(text, file), steps)
    if not _is_read_as(new, file, wanted):
        field = ".".join(map(str, steps[-1].path)) if steps else None
        raise ConfigError("cannot be edited without changing more; do it by hand", file=file, field=field)
    return new


def edit_text(text: str, file: str, server: str, change: Change) -> str:
    """The file's text after the change of one of its servers; the same text if nothing has to change. The text has no
    byte order mark, and the name of the file decides on the dialect.

    The new text is parsed and compared with the intended result: the change, and nothing else.

    Raises:
        ConfigError: The text cannot be used, has no such server, or cannot be edited without changing more.
    """
    document = parse_document(text, file)
    dialect, root = recognise(file, document)
    before = _specs(file, document)
    if server not in before:
        raise ConfigError("there is no such server in it", file=file, server=server)
    if change != "remove" and before[server].enabled is (change == "enable"):
        return text
    steps = _steps(document, dialect, _path(document, dialect, root, file, server), server, change)
    new, wanted = _edit(text, file, document, steps)
    after = {name: spec for name, spec in before.items() if name != server}
    if change != "remove":
        after = {**before, server: evolve(before[server], enabled=change == "enable")}
    if not _holds(new, file, wanted, after):
        field = ".".join(map(str, steps[-1].path)) if steps else None
        problem = f"cannot be edited to {change} it without changing more; do it by hand (nothing was written)"
        raise ConfigError(problem, file=file, server=server, field=field)
    return new


def _specs(file: str, document: Mapping[str, Any]) -> dict[str, ServerSpec]:
    """The specs by name, without nameless entries: their errors hold their positions, which other changes shift."""
    return {name: entry.spec for name, entry in read_file(EntryOrigin(file), document=document).entries if name.strip()}


def _edit(text: str, file: str, document: dict[str, Any], steps: Sequence[Edit]) -> tuple[str, dict[str, Any]]:
    edits = toml_edits if file.endswith(".toml") else json_edits
    wanted = deepcopy(document)
    for step in steps:
        _apply(wanted, step)
    for (verb, way), group in groupby(steps, lambda step: (step.verb, step.path[:-1])):
        some = list(group)
        if verb == "remove" and all(isinstance(step.path[-1], str) for step in some):
            text = edits.remove(text, way, {step.path[-1] for step in some})
            continue
        for step in some:  # the places of items in a list are those after the step before
            if step.verb == "remove":
                text = edits.remove(text, way, {step.path[-1]})
            else:
                text = edits.apply(text, step.verb, step.path, step.value)
    return text, wanted


def _is_read_as(text: str, file: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return parse_document(text, file) == wanted
    except ConfigError:
        return False


def _holds(text: str, file: str, wanted: Mapping[str, Any], specs: Mapping[str, ServerSpec]) -> bool:
    try:
        document = parse_document(text, file)
        return document == wanted and _specs(file, document) == specs
    except ConfigError:
        return False


def _path(document: Mapping[str, Any], dialect: Dialect, root: str, file: str, server: str) -> KeyPath:
    servers = document[root]
    if isinstance(servers, list):
        names = [name for name, _ in entries_of(file, document, dialect, root)]
        return root, names.index(server)
    nested = opencode.nested_servers(servers) if root == "mcp" else None
    return (root, "servers", server) if nested is not None and server in nested else (root, server)


def _steps(document: dict[str, Any], dialect: Dialect, path: KeyPath, server: str, change: Change) -> list[Edit]:
    """The steps of a change, by what the dialect reads; those in a list from the last place to the first, so that
    places stay valid."""
    if change == "remove":
        return [Edit("remove", path)]
    entry = as_object(_at(document, path))
    rules = as_object(document.get(dialect.rules, {})) if dialect.rules is not None else {}
    if entry is None or rules is None or not isinstance(rules.get("excluded", []), list):
        return []  # none that would do
    if change == "enable":
        return steps_to_enable(entry, rules, dialect.rules or "", path, server)
    if dialect.rules is not None:
        return [Edit("append", (dialect.rules, "excluded"), server)]
    other = "enabled" if dialect.switch == "disabled" else "disabled"
    key = other if other in entry and dialect.switch not in entry else dialect.switch
    return [Edit("set", (*path, key), key == "disabled")]


def steps_to_enable(
    entry: Mapping[str, Any], rules: Mapping[str, Any], key: str, path: KeyPath, server: str
) -> list[Edit]:
    """The steps that switch an entry on, in itself and in the rules under a key of the file."""
    steps: list[Edit] = []
    if entry.get("enabled") is False:
        steps.append(Edit("set", (*path, "enabled"), value=True))
    if entry.get("disabled") is True:
        steps.append(Edit("set", (*path, "disabled"), value=False))
    excluded: list[Any] = rules["excluded"] if isinstance(rules.get("excluded"), list) else []
    places = [place for place, name in enumerate(excluded) if name == server]
    steps += [Edit("remove", (key, "excluded", place)) for place in reversed(places)]
    if isinstance(rules.get("allowed"), list) and server not in rules["allowed"]:
        steps.append(Edit("append", (key, "allowed"), server))
    return steps


def _at(document: Any, path: KeyPath) -> Any:
    for key in path:
        document = document[key]
    return document


def _apply(document: Any, step: Edit) -> None:
    """Apply the edit to the object that the text stands for."""
    *way, last = step.path
    for key in way:
        inner = as_object(document)
        document = document[key] if inner is None else inner.setdefault(str(key), {})
    match step.verb:
        case "set":
            document[last] = step.value
        case "append":
            document.setdefault(last, []).append(step.value)
        case "remove":
            del document[last]

"""Extensions of the protocol: their identifiers, and what is known of those that have a standard. Pure.

Each side of a connection declares the extensions that it speaks, by identifier, with the settings of each. One that is
not in the table passes as it is, as all of them do between one client and its server. The table says what a gateway has
to know of an extension when it speaks for several servers or to several clients.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

from mcp_nursery.actors.records import frozen

from .json_depth import TOO_DEEP, nested_too_deep

APPS: Final = "io.modelcontextprotocol/ui"
SKILLS: Final = "io.modelcontextprotocol/skills"
TASKS: Final = "io.modelcontextprotocol/tasks"

_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_IDENTIFIER: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""The identifiers that the SDK takes; a test compares them."""

Settings = Mapping[str, Any]
"""The settings of one extension."""


@frozen
class Extension:
    """One extension of the protocol, as far as its standard is known."""

    identifier: str
    """The name in `capabilities.extensions`."""
    requests: Mapping[str, str | None]
    """The requests of its clients, each with the parameter that says what it is about: `"uri"` or `"taskId"`; None: it
    is a list."""
    needs: Mapping[str, str]
    """The settings that servers declare, set to True, if they take a request, by the request; others are taken by all
    servers with the extension. A gateway declares such a setting if one of its servers does."""
    offered: Settings | None = None
    """The settings with which a gateway declares it to servers of the handshake era for all its clients; None: it does
    not, because what a server makes for a client that has not declared the extension would be lost."""


EXTENSIONS: Final[Mapping[str, Extension]] = {
    extension.identifier: extension
    for extension in (
        Extension(APPS, requests={}, needs={}, offered={"mimeTypes": ["text/html;profile=mcp-app"]}),
        Extension(
            SKILLS,
            requests={"skills/list": None, "skills/get": "uri", "resources/directory/read": "uri"},
            needs={"resources/directory/read": "directoryRead"},
            offered={},
        ),
        Extension(TASKS, requests=dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"), needs={}),
    )
}
"""The extensions that have a standard, by identifier."""

OFFERED: Final[Mapping[str, Settings]] = {
    each.identifier: each.offered for each in EXTENSIONS.values() if each.offered is not None
}
"""The settings of the extensions that a gateway declares for all its clients, by identifier."""

TASK_REQUESTS: Final = EXTENSIONS[TASKS].requests.keys()
"""The requests of clients that are about a task."""
TASK_CHANGED: Final = "notifications/tasks"
"""The notification of the status of a task, for those who listen to the task."""

EXTENSION_OF: Final[Mapping[str, Extension]] = {
    method: extension for extension in EXTENSIONS.values() for method in extension.requests
}
"""The extensions that have a standard, by the requests of their clients."""


def is_identifier(value: object) -> bool:
    """True if the value can be the identifier of an extension: a prefix in reverse DNS notation, `/` and a name."""
    return isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None


def checked_extensions(extensions: object) -> dict[str, Settings]:
    """A copy of the settings of extensions, by identifier.

    Raises:
        ValueError: They are no mapping, an identifier is none, or the settings of an extension are no JSON object.
    """
    if not isinstance(extensions, Mapping):
        raise ValueError("must be the settings of extensions by their identifiers")  # noqa: TRY004
    for identifier, settings in cast("Mapping[object, object]", extensions).items():
        if not is_identifier(identifier):
            raise ValueError(f"{identifier!r:.80} identifies no extension: write it as in 'com.example/name'")
        if not isinstance(settings, Mapping):
            raise ValueError(f"the settings of {identifier} must be an object, such as {{}}")  # noqa: TRY004
    try:
        checked = json.loads(json.dumps(extensions, allow_nan=False, default=dict))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("the settings of extensions must be JSON") from None
    if nested_too_deep(checked):
        raise ValueError(f"the settings of extensions are {TOO_DEEP}")
    return cast("dict[str, Settings]", checked)


def declared_by(capabilities: Mapping[str, Any] | None) -> Mapping[str, Settings]:
    """The settings of the extensions that these capabilities of a client or server declare, by identifier. One without
    a valid identifier, or whose settings are no object, is not declared."""
    declared: object = (capabilities or {}).get("extensions")
    said = cast("Mapping[str, object]", declared if isinstance(declared, Mapping) else {})
    return {
        name: cast("Settings", each) for name, each in said.items() if isinstance(each, Mapping) and is_identifier(name)
    }


def settings_of(capabilities: Mapping[str, Any] | None, identifier: str) -> Settings | None:
    """The settings with which the capabilities of a client or server declare an extension; None: they do not."""
    return declared_by(capabilities).get(identifier)


def declares(capabilities: Mapping[str, Any] | None, identifier: str) -> bool:
    """True if these capabilities of a client or server declare the extension."""
    if not capabilities or "extensions" not in capabilities:  # most do not, and each call asks
        return False
    return settings_of(capabilities, identifier) is not None


def takes(capabilities: Mapping[str, Any] | None, method: str) -> bool:
    """True if a server with these capabilities takes this request of an extension. One that is in no table may be of
    any extension that is not in it either."""
    known = EXTENSION_OF.get(method)
    if known is None:
        return not declared_by(capabilities).keys() <= EXTENSIONS.keys()
    settings = settings_of(capabilities, known.identifier)
    return settings is not None and (method not in known.needs or settings.get(known.needs[method]) is True)


def united(servers: Sequence[Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """The extensions of servers with these capabilities as a gateway declares them: each with the settings that all of
    these servers have, but for those that one is enough for."""
    union: dict[str, dict[str, Any]] = {}
    for identifier in dict.fromkeys(chain.from_iterable(map(declared_by, servers))):
        said = [each for each in (settings_of(one, identifier) for one in servers) if each is not None]
        if not said:
            continue
        union[identifier] = {
            name: value for name, value in said[0].items() if all(name in one and one[name] == value for one in said)
        }
        known = EXTENSIONS.get(identifier)
        for name in () if known is None else known.needs.values():
            if any(one.get(name) is True for one in said):
                union[identifier][name] = True
    return union


def with_extensions(capabilities: Mapping[str, Any], extensions: Mapping[str, Settings]) -> dict[str, Any]:
    """The capabilities with these extensions in place of their own."""
    others = {name: value for name, value in capabilities.items() if name != "extensions"}
    return others | ({"extensions": dict(extensions)} if extensions else {})

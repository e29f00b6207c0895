"""Variables in the text of a configuration. Pure: their values are an argument, and are not searched for variables."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from mcp_nursery.actors.records import field, frozen

_VARIABLE = re.compile(r"\$\{((?:[^{}]|\$\{[^{}]*\})*)\}")
_REFERENCE = re.compile(r"(?:env:)?[A-Za-z_][A-Za-z0-9_]*|input:[A-Za-z0-9_.-]+|/")
_INPUT = "input:"
_SHOWN = re.compile(r"[A-Za-z0-9_.:-]{1,80}")

PLACE_VARIABLES: tuple[str, ...] = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")
"""Variables that are no secret: the places of folders, and the form of paths."""

_COMMAND = "!"
"""The prefix of a value of `env` or `headers` that is a command's output."""


_UNEXPANDED = {
    re.compile(r"(?:^|=)~/"): "~/ stays as it stands: ${userHome}/ is the home folder",
    re.compile(r"(?:^|[=:/ ])\$[A-Z_][A-Z0-9_]+(?![A-Za-z0-9_])"): "$NAME stays as it stands: ${NAME} is a variable",
    re.compile(r"%[A-Za-z_][A-Za-z0-9_]{2,}%"): "%NAME% stays as it stands: ${NAME} is a variable",
    re.compile(r"\{\{ ?[A-Z_][A-Z0-9_]* ?\}\}"): "{{NAME}} stays as it stands: ${NAME} is a variable",
}
"""The forms that other hosts and shells expand, and the advice about each."""


class UnresolvedVariable(Exception):
    """The error of a variable that has no value, or is invalid. Its text shows the name only."""


Find = Callable[[str], str | None]
"""A function that returns the value of a variable by its name, `NAME`, `env:NAME` or `input:ID`; None if it is not
set."""


@frozen
class Surroundings:
    """The values for variables outside of headers."""

    own: Mapping[str, str] = field(repr=lambda own: f"<{len(own)} variables>")
    """The server's own `env` block, resolved, and the host's inputs, each as `input:ID`."""
    environ: Mapping[str, str] = field(repr=lambda environ: f"<{len(environ)} variables>")
    """The host's environment."""
    workspace: str
    """The value of `${workspaceFolder}`."""
    home: str
    """The value of `${userHome}`."""

    def find(self, name: str) -> str | None:
        """The value of a variable: `${env:NAME}` means the host's environment alone."""
        if name.startswith("env:"):
            return self.environ.get(name.removeprefix("env:"))
        values = (self.workspace, os.path.basename(self.workspace), self.home, os.sep, os.sep)
        places = dict(zip(PLACE_VARIABLES, values, strict=True))
        return next((known[name] for known in (places, self.own, self.environ) if name in known), None)


def expand(text: str, find: Find) -> str:
    """The text with every `${NAME}`, `${NAME:-default}` and `${env:NAME}` replaced; the values themselves are left
    alone.

    A default replaces a variable that is not set or empty.

    Raises:
        UnresolvedVariable: A variable has neither a value nor a default.
    """

    def replace(match: re.Match[str]) -> str:
        value = _value(match[1], find)
        if value is None:
            raise UnresolvedVariable(_why_not(match[1]))
        return value

    return _VARIABLE.sub(replace, text)


def expand_header(text: str, own: Mapping[str, str]) -> str:
    """A header's value: variables are looked up in the server's own `env` block alone; the others are empty."""
    return _VARIABLE.sub(lambda match: _value(match[1], own.get) or "", text)


def unresolved_in_header(text: str, own: Mapping[str, str]) -> list[str]:
    """The variables of a header's value that its server's `env` block does not name, and that have no default."""
    return [_show(match[1]) for match in _VARIABLE.finditer(text) if _value(match[1], own.get) is None]


def how_to_pass_on(variable: str) -> str | None:
    """The words of an entry that pass a variable of the host's environment to a header; None if there is no way."""
    found = re.fullmatch(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}", variable)
    return f'"env": {{"{found[1]}": "${{env:{found[1]}}}"}} passes it on to ${{{found[1]}}}' if found else None


def unexpanded_in(text: str) -> str | None:
    """The advice about what other hosts and shells would expand in a text, and what stays as it stands here; None if
    there is nothing. Nothing of the text is shown: it may be a secret."""
    return next((advice for form, advice in _UNEXPANDED.items() if form.search(text)), None)


def has_variables(text: str) -> bool:
    """True if the text has variables to replace."""
    return _VARIABLE.search(text) is not None


def variables_in(text: str) -> list[str]:
    """The text between the braces, for each variable in the text."""
    return [match[1] for match in _VARIABLE.finditer(text)]


def inputs_in(value: object) -> list[str]:
    """The ids of the host's inputs, `${input:ID}`, that the texts in a JSON value ask for."""
    names = (match[1].partition(":-")[0] for text in texts_of(value) for match in _VARIABLE.finditer(text))
    return [name.removeprefix(_INPUT) for name in names if is_input(name)]


def texts_of(value: object) -> Iterator[str]:
    """Every text in a JSON value, keys excepted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        parts = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
        for part in parts:
            yield from texts_of(part)


def is_input(name: str) -> bool:
    """True if a variable of this name is one of the host's inputs."""
    return name.startswith(_INPUT)


def as_variables(inputs: Mapping[str, str]) -> dict[str, str]:
    """The host's inputs, by the names of the variables for them."""
    return {f"{_INPUT}{key}": value for key, value in inputs.items()}


def command_of(text: str) -> str | None:
    """The shell command whose output a value of `env` or `headers` stands for; None if it is no command."""
    return text.removeprefix(_COMMAND) if text.startswith(_COMMAND) else None


def _value(inner: str, find: Find) -> str | None:
    name, given, default = inner.partition(":-")
    if not _REFERENCE.fullmatch(name) or "${" in default:
        return None
    value = find(name)
    return default if given and not value else value


def _why_not(inner: str) -> str:
    name, _, default = inner.partition(":-")
    if "${" in default:
        return f"{_show(inner)}: a default cannot hold a variable"
    known = _REFERENCE.fullmatch(name) is not None
    return f"variable {_show(inner)} is not set" if known else f"{_show(inner)} is not a variable known here"


def _show(inner: str) -> str:
    """The variable as an error may show it: without its default, which may be a secret."""
    name = inner.partition(":-")[0]
    return f"${{{name}}}" if _SHOWN.fullmatch(name) else "${…}"

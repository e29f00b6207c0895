"""Transports of a configuration whose text still has to be resolved, at each connect anew. Shows no value."""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from mcp_nursery.supervisor.security.secret_values import secrets_in
from mcp_nursery.supervisor.transports import names_only

from .variables import as_variables, command_of, has_variables, inputs_in

if TYPE_CHECKING:
    from mcp_nursery.actors.server import Connector

TEXTS = ("command", "image", "cwd", "url")
"""Fields of transports that hold one text."""

SEQUENCES = ("args",)
"""Fields of transports that hold texts in order."""

MAPPINGS = ("env", "headers")
"""Fields of transports that hold texts by name; a value may be a command's output."""


@frozen
class Origin:
    """Where an entry stands."""

    file: str
    trusted: bool = True
    """Whether its user named the file, or it is the user's own."""
    workspace: str | None = None
    """`${workspaceFolder}`: the folder of a project's file; None for the host's working directory."""
    root: str = "mcpServers"
    """The file's key under which the entry stands."""


@frozen
class Unresolved:
    """A transport with variables or commands in its text. Nothing that they are replaced by is ever stored."""

    transport: Any
    """As written: any transport with some of the fields above."""
    env: Mapping[str, str] = field(repr=names_only)
    """The entry's `env` block as written, also where the transport has none: headers look there."""
    workspace: str | None
    server: str = field(eq=False)
    file: str = field(eq=False)
    env_file: str | None = None
    """A file with more variables for `env`, as written."""
    inputs: Mapping[str, str] = field(factory=dict[str, str], repr=names_only)
    """What the host gave for `${input:ID}`, by ID; no more than this server asks for."""

    @property
    def inputs_as_variables(self) -> dict[str, str]:
        """The inputs by the names that the text has for them."""
        return as_variables(self.inputs)

    @property
    def kind(self) -> Any:
        """The transport's."""
        return self.transport.kind

    @property
    def literals(self) -> set[str]:
        """What is secret of that which stands there to the letter: what a variable or a command stands for is not
        known before it connects."""
        return secrets_in(
            env=_to_the_letter(self.env),
            headers=_to_the_letter(getattr(self.transport, "headers", {})),
            args=["" if has_variables(arg) else arg for arg in getattr(self.transport, "args", ())],
            url="" if has_variables(url := getattr(self.transport, "url", "")) else url,
        )

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation reaches it: what it stands for is found out when it connects."""
        from .deferred import ResolvingConnector

        return ResolvingConnector(self, close_grace=close_grace)


def _to_the_letter(values: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in values.items() if not has_variables(text) and command_of(text) is None}


def unresolved(
    transport: Any,
    *,
    env: Mapping[str, str],
    server: str,
    origin: Origin,
    env_file: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> Any:
    """The transport as it is if its text says all; otherwise one that is resolved at each connect."""
    texts = [*_all_texts(transport, env), env_file or ""]
    commands = (value for values in (env, *_mappings(transport)) for value in values.values())
    if env_file is None and not any(map(has_variables, texts)) and all(command_of(text) is None for text in commands):
        return in_workspace(transport, origin.workspace)
    used = {name: inputs[name] for text in texts for name in inputs_in(text) if inputs}
    return Unresolved(transport, env, origin.workspace, server=server, file=origin.file, env_file=env_file, inputs=used)


def in_workspace(transport: Any, workspace: str | None) -> Any:
    """The transport, resolved, with a relative working directory of a project's entry made one of that project."""
    cwd = getattr(transport, "cwd", None)
    return transport if cwd is None or workspace is None else evolve(transport, cwd=os.path.join(workspace, cwd))


def _all_texts(transport: Any, env: Mapping[str, str]) -> Iterable[str]:
    yield from (str(text) for name in TEXTS if (text := getattr(transport, name, None)) is not None)
    yield from (text for name in SEQUENCES for text in getattr(transport, name, ()))
    yield from (text for values in (env, *_mappings(transport)) for text in values.values())


def _mappings(transport: Any) -> Iterable[Mapping[str, str]]:
    return [values for name in MAPPINGS if (values := getattr(transport, name, None))]

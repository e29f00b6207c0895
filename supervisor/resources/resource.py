"""Resources and templates for them, as the host sees them. Pure."""

import re
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from mcp_nursery.actors.session.recalled import as_sdk_type

from .declared import Declared

if TYPE_CHECKING:
    from mcp_types import Annotations
    from mcp_types import Resource as Definition
    from mcp_types import ResourceTemplate as TemplateDefinition


@frozen
class Resource(Declared):
    """One resource that a server lists. A value: what it says was true when the catalogue was made."""

    server: str
    """The server's name."""
    uri: str
    """As the server writes it. Two servers may list the same."""
    declared: "Definition" = field(repr=False, alias="definition")
    """As the server declared it: all that `definition` has, before the SDK is loaded too."""
    available: bool
    """Whether its server was connected."""

    @property
    def definition(self) -> "Definition":
        """As the server declared it: the SDK's type."""
        return as_sdk_type(self.declared)

    @property
    def name(self) -> str:
        """What the server calls it."""
        return self.declared.name

    @property
    def mime_type(self) -> str | None:
        """Its MIME type, if the server says it."""
        return self.declared.mime_type

    @property
    def size(self) -> int | None:
        """Bytes of it, before any encoding, if the server says it."""
        return self.declared.size

    @property
    def annotations(self) -> "Annotations | None":
        """For whom it is, how important, when changed: as the server declares it."""
        return self.declared.annotations


@frozen
class ResourceTemplate(Declared):
    """One template of URIs that a server can read. A value, as `Resource` is."""

    server: str
    """The server's name."""
    uri_template: str
    """By RFC 6570, as the server writes it."""
    declared: "TemplateDefinition" = field(repr=False, alias="definition")
    """As the server declared it: all that `definition` has, before the SDK is loaded too."""
    available: bool
    """Whether its server was connected."""

    @property
    def definition(self) -> "TemplateDefinition":
        """As the server declared it: the SDK's type."""
        return as_sdk_type(self.declared)

    @property
    def name(self) -> str:
        """What the server calls it."""
        return self.declared.name

    @property
    def mime_type(self) -> str | None:
        """The MIME type of all that it stands for, if it is the same."""
        return self.declared.mime_type

    @property
    def annotations(self) -> "Annotations | None":
        """For whom it is, how important: as the server declares it."""
        return self.declared.annotations

    def matches(self, uri: str) -> bool:
        """Whether the URI may be one of those that it stands for."""
        return matches(self.uri_template, uri)


_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")


def matches(template: str, uri: str) -> bool:
    """Whether a URI may be an expansion of a template.

    A plain `{name}` stands for some characters without `/`, `?` and `#`; an expression with an operator, such as
    `{+path}` or `{?page}`, for any, also none. Whatever is between two expressions is looked for from the left, once:
    a server's template must not take long with a long URI.
    """
    head, *rest = _EXPRESSION.split(template)
    if not rest:
        return template == uri
    if not uri.startswith(head):
        return False
    at, last = len(head), len(rest) - 2
    for index in range(0, len(rest), 2):
        expression, literal = rest[index], rest[index + 1]
        plain = expression[:1].isalnum() or expression[:1] in ("_", "%")
        start = at + plain  # a plain one stands for something
        if index == last:
            end = len(uri) - len(literal)
            found = end if end >= start and uri.endswith(literal) else -1
        else:
            found = uri.find(literal, start)
        if found < start or (plain and any(mark in uri[at:found] for mark in "/?#")):
            return False
        at = found + len(literal)
    return True

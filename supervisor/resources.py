"""Resources, templates for them, and prompts, as the host sees them: definitions with their server, and the results of
requests for them. Pure."""

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from mcp_nursery.actors.errors import InvalidResult
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import field, frozen
from mcp_nursery.actors.session.lazy_definitions import as_sdk_type

from .security.injection import scan, scan_in_pieces
from .security.untrusted_marks import truncate, wrap
from .tools.tool_result import NO_OUTPUT, render

if TYPE_CHECKING:
    from mcp_types import Annotations, PromptArgument
    from mcp_types import Prompt as PromptDefinition
    from mcp_types import Resource as ResourceDefinition
    from mcp_types import ResourceTemplate as TemplateDefinition

    AnyDefinition = ResourceDefinition | TemplateDefinition | PromptDefinition

__all__ = ["Completion", "Prompt", "PromptResult", "Resource", "ResourceResult", "ResourceTemplate"]

D_co = TypeVar("D_co", bound="AnyDefinition", covariant=True)


class _Defined(Protocol[D_co]):
    @property
    def declared(self) -> D_co: ...


class Declared:
    """The fields that every definition has."""

    __slots__ = ()

    @property
    def definition(self: _Defined[D_co]) -> D_co:
        """The declared definition, in the SDK's type."""
        return as_sdk_type(self.declared)

    @property
    def title(self: "_Defined[AnyDefinition]") -> str | None:
        """The name for people."""
        return self.declared.title

    @property
    def description(self: "_Defined[AnyDefinition]") -> str | None:
        """The description, in the server's words."""
        return self.declared.description

    @property
    def meta(self: "_Defined[AnyDefinition]") -> dict[str, Any] | None:
        """The definition's `_meta`."""
        return None if self.declared.meta is None else dict(self.declared.meta)


class _Readable(Declared):
    """The fields that a resource and a template share."""

    __slots__ = ()

    @property
    def name(self: "_Defined[ResourceDefinition | TemplateDefinition]") -> str:
        """The server's name for it."""
        return self.declared.name

    @property
    def mime_type(self: "_Defined[ResourceDefinition | TemplateDefinition]") -> str | None:
        """The MIME type, if the server states it; for a template, the one that all its resources share, if they do."""
        return self.declared.mime_type

    @property
    def annotations(self: "_Defined[ResourceDefinition | TemplateDefinition]") -> "Annotations | None":
        """The audience, the importance and the last change, as the server declares them."""
        return self.declared.annotations


@frozen
class Resource(_Readable):
    """One resource that a server lists. A value, true when the catalogue was made."""

    server: str
    """The server's name."""
    uri: str
    """The URI as the server writes it. Two servers may list the same one."""
    declared: "ResourceDefinition" = field(repr=False, alias="definition")
    """The declared definition: all that `definition` has, also before the SDK is loaded."""
    available: bool
    """True if its server was connected."""

    @property
    def size(self) -> int | None:
        """Bytes of its contents before any encoding, if the server states it."""
        return self.declared.size


_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")
_NOT_PLAIN: Final = re.compile(r"[/?#]")
"""The characters that a plain expression does not stand for."""
_LONGEST_URI: Final = 8192
"""Characters of a URI that is held against templates: as many as a listed one may have."""


@frozen(slots=False)
class ResourceTemplate(_Readable):
    """One template of URIs that a server can read. A value, as `Resource` is."""

    server: str
    """The server's name."""
    uri_template: str
    """The template by RFC 6570, as the server writes it."""
    declared: "TemplateDefinition" = field(repr=False, alias="definition")
    """The declared definition: all that `definition` has, also before the SDK is loaded."""
    available: bool
    """True if its server was connected."""

    def matches(self, uri: str) -> bool:
        """True if the URI may be an expansion of the template. A URI of more than 8,192 characters is none.

        A plain `{name}` stands for one or more characters without `/`, `?` and `#`; an expression with an operator,
        such as `{+path}` or `{?page}`, for any characters or none. The text between two expressions is searched for
        from the left, once: a server's template must not take long with a long URI.
        """
        head, plain, behind = self._parsed
        if not behind or len(uri) > _LONGEST_URI or not uri.startswith(head):
            return uri == self.uri_template
        at, last = len(head), len(behind) - 1
        for place, text in enumerate(behind):
            if place < last:
                found = uri.find(text, at + plain[place])
            else:
                found = len(uri) - len(text) if uri.endswith(text) else -1
            if found < at + plain[place] or (plain[place] and _NOT_PLAIN.search(uri, at, found)):
                return False
            at = found + len(text)
        return True

    @cached_property
    def _parsed(self) -> tuple[str, tuple[bool, ...], tuple[str, ...]]:
        """The text before the first expression, whether each expression is plain, and the text behind each."""
        head, *rest = _EXPRESSION.split(self.uri_template)
        return head, tuple(each[:1].isalnum() or each[:1] in ("_", "%") for each in rest[::2]), tuple(rest[1::2])


@frozen
class Prompt(Declared):
    """One prompt of the catalogue. A value, true when the catalogue was made."""

    name: str
    """The public name, made like that of a tool. A tool may have the same name: they are called in different ways."""
    server: str
    """The server's name."""
    prompt: str
    """The server's own name of the prompt."""
    declared: "PromptDefinition" = field(repr=False, alias="definition")
    """The declared definition: all that `definition` has, also before the SDK is loaded."""
    available: bool
    """True if its server was connected."""

    @property
    def arguments(self) -> "Sequence[PromptArgument]":
        """The arguments that it takes: `name`, `description` and `required` of each."""
        return tuple(self.declared.arguments or ())


def first_match(templates: Iterable[ResourceTemplate], uri: str) -> Steps[ResourceTemplate | None]:
    """The first template that matches the URI. A step is one template: a server may have thousands."""
    for template in templates:
        if template.matches(uri):
            return template
        yield
    return None


# -- the answers to a read, to the request for a prompt, and to that for a completion ---------------------------------

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, GetPromptResult, PromptMessage, ReadResourceResult, TextResourceContents

    Contents = TextResourceContents | BlobResourceContents

READ = "resources/read"
"""The method, which the marks around a resource show in place of a tool."""


@frozen(slots=False)
class ResourceResult:
    """The contents of a resource: several for a folder, for example."""

    full_text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """The contents as text, whole and without marks, one after the other; binary contents are described. For people and
    programs, never for a model."""
    contents: "Sequence[Contents]" = field(repr=False)
    """The contents, whole: each with `uri`, `mime_type`, and `text` or `blob` (base64)."""
    uri: str
    """The resource that was read."""
    server: str
    """The server's name."""
    duration: float
    """Seconds from the request to the answer, waiting for the server included."""
    incarnation: int
    """The incarnation of the server that answered, from 1."""
    max_result_chars: int = field(repr=False)
    """Characters of the text that a model is shown."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in the whole text: it may try to instruct the model."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""
    fresh_for: float = 0.0
    """Seconds from the answer for which the contents stay true, by the server's `ttlMs`; 0: the server states none, or
    asked a question before it answered."""
    cache_scope: Literal["public", "private"] = "private"
    """The server's `cacheScope`: the contents may be given to others as well, or only to those authorised as this host
    is."""

    @property
    def truncated(self) -> bool:
        """True if `text` is cut."""
        return len(self.full_text) > self.max_result_chars

    @cached_property
    def text(self) -> str:
        """The text for a model: the contents, cut at the server's `max_result_chars`, between marks that say whose
        words these are and that they are untrusted."""
        return wrap(truncate(self.full_text, self.max_result_chars) or NO_OUTPUT, server=self.server, tool=READ)


def resource_result(
    result: "ReadResourceResult",
    *,
    uri: str,
    server: str,
    duration: float,
    incarnation: int,
    max_chars: int,
    asked: bool = False,
    small: bool = False,
) -> Steps[ResourceResult]:
    """The caller's result of a validated read; `asked`: it depends on the host's answers to questions, and is not to be
    kept; `small`: its message is handled in one go."""
    rendered = "\n".join(_show(contents) for contents in result.contents)
    signals = scan(rendered) if small else (yield from scan_in_pieces(rendered))
    return ResourceResult(
        full_text=rendered,
        contents=result.contents,
        uri=uri,
        server=server,
        duration=duration,
        incarnation=incarnation,
        max_result_chars=max_chars,
        signals=signals,
        meta=None if result.meta is None else dict(result.meta),
        fresh_for=0.0 if asked else result.ttl_ms / 1000,
        cache_scope=result.cache_scope,
    )


def _show(contents: "Contents") -> str:
    text: object = getattr(contents, "text", None)
    if isinstance(text, str):
        return text
    blob: object = getattr(contents, "blob", "")
    kind = contents.mime_type or "binary"
    return f"<{contents.uri}: {kind}, {len(blob) if isinstance(blob, str) else 0} characters of base64>"


def only_content(result: ResourceResult) -> bytes:
    """The one content of a resource that was read, unchanged.

    Raises:
        InvalidResult: It has no content or several, its base64 is broken, or its text is not Unicode.
    """
    problem = f"it has {len(result.contents)} contents, and not one"
    if len(result.contents) == 1:
        text: str | None = getattr(result.contents[0], "text", None)
        try:
            return b64decode(getattr(result.contents[0], "blob", ""), validate=True) if text is None else text.encode()
        except ValueError:
            problem = "not base64" if text is None else "not Unicode text"
    raise InvalidResult(problem, server=result.server, tool=result.uri, incarnation=result.incarnation)


@frozen
class PromptResult:
    """A prompt, filled in."""

    messages: "Sequence[PromptMessage]" = field(repr=False)
    """The messages for a model, in this order: each with `role` and `content`. The server's words: show them to the
    user, who chose the prompt, before a model gets them."""
    description: str | None
    """The purpose of the prompt, in the server's words."""
    server: str
    """The server's name."""
    prompt: str
    """The server's own name of the prompt."""
    duration: float
    """Seconds from the request to the answer, waiting for the server included."""
    incarnation: int
    """The incarnation of the server that answered, from 1."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in the texts of its messages."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""


def prompt_result(
    result: "GetPromptResult", *, server: str, prompt: str, duration: float, incarnation: int, small: bool = False
) -> Steps[PromptResult]:
    """The caller's result of a validated prompt; `small`: its message is handled in one go."""
    said = yield from render([message.content for message in result.messages], None, small=small)
    return PromptResult(
        messages=result.messages,
        description=result.description,
        server=server,
        prompt=prompt,
        duration=duration,
        incarnation=incarnation,
        signals=scan(said) if small else (yield from scan_in_pieces(said)),
        meta=None if result.meta is None else dict(result.meta),
    )


@frozen
class Completion:
    """The completions of an argument's value."""

    values: tuple[str, ...]
    """Whole values, the likeliest first; a server sends at most 100."""
    total: int | None
    """The number of all completions, if the server states it."""
    has_more: bool
    """True if there are more than these."""
    server: str
    """The server's name."""

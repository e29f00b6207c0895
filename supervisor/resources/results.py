"""What servers answer to a read, for a prompt, and to the question how something goes on. Pure."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from mcp_nursery.actors.pieces import Steps

from ..security.injection import scan, scan_in_pieces
from ..security.untrusted_marks import truncate, wrap
from ..tools.results import NO_OUTPUT, render

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, GetPromptResult, PromptMessage, ReadResourceResult, TextResourceContents

    Contents = TextResourceContents | BlobResourceContents

READ = "resources/read"
"""What the marks around a resource name in a tool's place."""


@frozen(slots=False)
class ResourceResult:
    """What a resource holds. It may be several contents: those of a folder, say."""

    full_text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """The contents as text, whole and without marks, one after the other; what is binary is described. For people and
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
    """Which connection of the server answered, from 1."""
    max_result_chars: int = field(repr=False)
    """Characters of it that a model is shown."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in the whole text: it may try to instruct the model."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""
    fresh_for: float = 0.0
    """Seconds from the answer on for which the server says that it stays true (`ttlMs`); 0: it does not say so."""
    cache_scope: Literal["public", "private"] = "private"
    """Whether the server says that others may be given it as well (`cacheScope`), or only who was authorised as this
    host is."""

    @property
    def truncated(self) -> bool:
        """Whether `text` is cut."""
        return len(self.full_text) > self.max_result_chars

    @cached_property
    def text(self) -> str:
        """What a model may see: the contents as text, cut at the server's `max_result_chars`, between marks that say
        whose words these are and that they are untrusted."""
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
    """What the caller gets of a validated result; `asked`: it depends on what the host was asked meanwhile, and is not
    to be kept; `small`: it came in a message that is seen to in one go."""
    rendered = "\n".join(_shown(contents) for contents in result.contents)
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


def _shown(contents: "Contents") -> str:
    text: object = getattr(contents, "text", None)
    if isinstance(text, str):
        return text
    blob: object = getattr(contents, "blob", "")
    kind = contents.mime_type or "binary"
    return f"<{contents.uri}: {kind}, {len(blob) if isinstance(blob, str) else 0} characters of base64>"


@frozen
class PromptResult:
    """A prompt, filled in."""

    messages: "Sequence[PromptMessage]" = field(repr=False)
    """What is to be put before a model, in this order: each with `role` and `content`. The server's words: show them to
    the user, who chose the prompt, before a model gets them."""
    description: str | None
    """What it is for."""
    server: str
    """The server's name."""
    prompt: str
    """The server's own name of it."""
    duration: float
    """Seconds from the request to the answer, waiting for the server included."""
    incarnation: int
    """Which connection of the server answered, from 1."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in the texts of its messages."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""


def prompt_result(
    result: "GetPromptResult", *, server: str, prompt: str, duration: float, incarnation: int, small: bool = False
) -> Steps[PromptResult]:
    """What the caller gets of a validated result; `small`: it came in a message that is seen to in one go."""
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
    """How the value of an argument may go on."""

    values: tuple[str, ...]
    """Whole values, the likeliest first; a server sends at most 100."""
    total: int | None
    """How many there are, if the server says it."""
    has_more: bool
    """Whether there are more than these."""
    server: str
    """The server's name."""

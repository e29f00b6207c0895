"""Requests that are made for somebody else, a client of the host's: any method, raw in both directions."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final

from attrs import define, field, frozen

from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import NotApproved, NurseryError, UnknownTool
from mcp_nursery.actors.json_depth import levels_of, texts_in
from mcp_nursery.actors.messages import CALL_TOOL, LISTED
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.protocol import NAME_BEARING_METHODS
from mcp_nursery.actors.reply import Ask, IdleLimit, NoticeCallback, Relay, ReplySlot

from ..security.injection import scan_in_pieces
from .others import OtherCall, Place

__all__ = ["RelayedResult"]

_REPEATABLE: Final = frozenset(
    [*LISTED, "completion/complete", "ping", "prompts/get", "resources/read", "server/discover"]
)
"""Methods that only read."""
_FOR_MODELS: Final = frozenset([CALL_TOOL, "prompts/get", "resources/read"])
"""Methods whose results reach models."""


@frozen
class RelayedResult:
    """The result of a relayed request."""

    result: dict[str, Any] = field(repr=False)
    """As it came: of any kind, also one that asks for input first."""
    protocol_version: str
    """Of the protocol that it is written in."""
    incarnation: int
    """Of the server that gave it."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in what a model may see of it: it may try to instruct the model."""


def name_in(method: str, params: Mapping[str, Any]) -> str:
    """What a request is about: a tool, a prompt or a URI; empty if none of these."""
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    return name if isinstance(name, str) else ""


@define(eq=False, repr=False)
class RelayedCall(OtherCall[RelayedResult]):
    """One relayed request under way."""

    answers_questions: ClassVar[bool] = False
    relays: ClassVar[bool] = True
    lists: ClassVar[Collection[ListKind]] = frozenset([ListKind.TOOLS])

    method: str
    given_params: Mapping[str, Any]
    on_notice: NoticeCallback | None = None
    on_question: Ask | None = None
    principal: Hashable = None
    on_unclear: Callable[[], None] | None = None

    @property
    def repeatable(self) -> bool:
        """Whether it only reads, or the hints of its tool are trusted and say so."""
        if self.method != CALL_TOOL:
            return self.method in _REPEATABLE
        tool = self.servers.catalogue.value.find(self.name, self.server_name)
        return tool is not None and tool.hints.repeatable

    def find(self) -> Place | None:
        """Its server knows whether it has what is wanted; nobody gets what filters and pins hold back."""
        server, name = self.asked.server, self.asked.name
        assert server is not None  # a relayed request names it
        if self.method == CALL_TOOL and server in self.servers.snapshots and not self.servers.offers(server, name):
            return None
        return self.place(server, name)

    def listers(self) -> Sequence[str]:
        """The server that was named, if its user may want such a tool."""
        server, name = self.asked.server, self.asked.name
        assert server is not None  # a relayed request names it
        wanted = self.method == CALL_TOOL and self.servers.snapshot(server).value.spec.offers(name)
        return [server] if wanted else []

    def check_allowed(self) -> None:
        """See `ActiveCall`."""
        held = self.servers.catalogue.value.held_back(self.asked.name, self.asked.server)
        if held is not None and self.method == CALL_TOOL:
            raise NotApproved(held.server, held.tool, held.why)

    def former_owner(self) -> str | None:
        """See `ActiveCall`."""
        return self.asked.server

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """Of a tool that its user does not want."""
        return UnknownTool(self.asked.name, server=self.asked.server, down=down)

    def own_meta(self) -> dict[str, Any]:
        """As it was given: null is a value."""
        return dict(self.asked.meta or {})

    def encode(self) -> bytes:
        """See `encoded`."""
        return self.as_json({key: value for key, value in self.given_params.items() if key != "_meta"})

    def params(self) -> bytes:
        """As they were given."""
        return self.encoded

    def new_slot(self, idle: IdleLimit | None, *, attentive: bool) -> ReplySlot:
        """See `ActiveCall`."""
        wanted = attentive or "progressToken" in (self.asked.meta or {})
        return ReplySlot(wants_progress=wanted, idle=idle, relay=self._relay)

    @property
    def _relay(self) -> Relay:
        return Relay(self.principal, self.on_question, self.on_unclear)

    @property
    def on_said(self) -> NoticeCallback | None:
        """See `ActiveCall`."""
        return self.on_notice

    def given(self, result: tuple[dict[str, Any], str], incarnation: int, *, small: bool) -> Steps[RelayedResult]:
        """As it came, scanned."""
        del small
        raw, version = result
        signals = () if self.method not in _FOR_MODELS else (yield from _scan(raw))
        yield
        return RelayedResult(raw, version, incarnation, signals)

    def signals(self, given: RelayedResult) -> tuple[str, ...]:
        """See `ActiveCall`."""
        return given.signals


def _scan(raw: dict[str, Any]) -> Steps[tuple[str, ...]]:
    """The signals in all texts."""
    texts: list[str] = []
    for level in levels_of(raw):
        texts.extend(texts_in(level))
        yield
    return (yield from scan_in_pieces("\n".join(texts)))

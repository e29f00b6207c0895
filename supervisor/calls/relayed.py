"""Requests that are made on behalf of a client of the host: any method, raw in both directions. They are sent and
awaited like all calls: see `attempts.deliver`."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

from mcp_nursery.actors.callbacks import told_of_tasks
from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import NotApproved, NurseryError, UnknownTool
from mcp_nursery.actors.json_depth import levels_of, texts_in
from mcp_nursery.actors.messages import CALL_TOOL, LISTED, LISTEN
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.protocol import CLIENT_CAPABILITIES_META_KEY, NAME_BEARING_METHODS
from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.actors.reply import AskPeer, NoticeCallback, Relay

from ..decisions.task_states import TaskState
from ..security.injection import scan, scan_in_pieces
from .approvals import check_agreed, check_transport
from .call import ActiveCall
from .destination import Destination, DestinationCall

__all__ = ["RelayedResult"]

_REPEATABLE: Final = frozenset(
    [
        *(*LISTED, "completion/complete", "ping", "prompts/get", "resources/read", "server/discover"),
        *("skills/list", "skills/get", "resources/directory/read", "tasks/get"),
    ]
)
"""Methods that only read."""
_FOR_MODELS: Final = frozenset([CALL_TOOL, "prompts/get", "resources/read"])
"""Methods whose results reach models."""


@frozen
class RelayedResult:
    """The result of a relayed request."""

    result: dict[str, Any] = field(repr=False)
    """The result as it came, of any kind, also one that asks for input first."""
    protocol_version: str
    """The version of the protocol that it is written in."""
    incarnation: int
    """The incarnation that gave it."""
    signals: tuple[str, ...] = ()
    """Names of the injection signals found in what a model may see of it: it may try to instruct the model."""


def name_in(method: str, params: Mapping[str, Any]) -> str:
    """The object of a request: a tool, a prompt or a URI; empty if it is none of these."""
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    return name if isinstance(name, str) else ""


@define(eq=False, repr=False)
class RelayedCall(DestinationCall[RelayedResult]):
    """One relayed request under way."""

    answers_questions: ClassVar[bool] = False
    lists: ClassVar[Collection[ListKind]] = frozenset([ListKind.TOOLS])

    method: str
    given_params: Mapping[str, Any]
    on_notice: NoticeCallback | None = None
    on_question: AskPeer | None = None
    principal: Hashable = None
    on_unclear: Callable[[], None] | None = None
    for_models: bool = False
    follow_tasks: bool | None = None
    on_given_up: Callable[[ActiveCall[Any, Any], TaskState], bool] | None = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        listens = self.method == LISTEN
        follows = self.follow_tasks
        if follows is None:  # for itself, and not for a client that says what it can do
            follows = CLIENT_CAPABILITIES_META_KEY not in (self.asked.meta or {})
        follows = follows and "task" not in self.given_params
        named = self.given_params.get("taskId") if self.method == "tasks/result" else None
        task = named if isinstance(named, str) else None
        self.relay: Relay | None = Relay(self.principal, self.on_question, self.on_unclear, listens, follows, task)
        self.on_said: NoticeCallback | None = self.on_notice

    @property
    def repeatable(self) -> bool:
        """True if it only reads, or the hints of its tool, as it was found, are trusted and allow it."""
        if self.method != CALL_TOOL:
            return self.method in _REPEATABLE
        listed = None if self.found is None else self.found.tools
        tool = None if listed is None else listed.find(self.name)
        return tool is not None and tool.hints.repeatable

    def find(self) -> Destination | None:
        """The destination: its server knows whether it has the object; only filters, pins, the agreement and the
        callers of a tool are applied here.

        Raises:
            NotApproved: The tool is not the one that was agreed to, or its server is reached in another way.
        """
        server, name = self.asked.server, self.asked.name
        assert server is not None  # a relayed request names it
        servers = self.servers
        if (
            self.method == CALL_TOOL
            and server in servers.snapshots
            and (not servers.offers(server, name) or (self.for_models and not servers.for_models(server, name)))
        ):
            return None
        found = self.place(server, name)
        if self.agreed is None:
            return found
        if found is None or not found.available:
            check_transport(self.agreed, self.servers)
        else:
            check_agreed(self.agreed, None if found.tools is None else found.tools.find(name), self.servers)
        return found

    def listers(self) -> Sequence[str]:
        """The server that was named, if its user may want such a tool."""
        server, name = self.asked.server, self.asked.name
        assert server is not None  # a relayed request names it
        wanted = self.method == CALL_TOOL and self.servers.snapshot(server).value.spec.offers(name)
        return [server] if wanted else []

    @override
    def check_allowed(self) -> None:
        held = self.servers.catalogue.value.held_back(self.asked.name, self.asked.server)
        if held is not None and self.method == CALL_TOOL:
            raise NotApproved(held.server, held.tool, held.why)

    @override
    def former_owner(self) -> str | None:
        return self.asked.server

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """The error for a tool that its user does not want."""
        return UnknownTool(self.asked.name, server=self.asked.server, down=down)

    @override
    def hand_over(self, task: TaskState) -> bool:
        return self.on_given_up is not None and self.on_given_up(self, task)

    def own_meta(self) -> dict[str, Any]:
        """The `_meta` as it was given: null is a value. With `follow_tasks`, the server is told of the extension."""
        meta = dict(self.asked.meta or {})
        told = meta.get(CLIENT_CAPABILITIES_META_KEY)
        if self.follow_tasks and isinstance(told, Mapping):
            meta[CLIENT_CAPABILITIES_META_KEY] = told_of_tasks(cast("Mapping[str, Any]", told))
        return meta

    @override
    def encode(self) -> bytes:
        return self.as_json({key: value for key, value in self.given_params.items() if key != "_meta"})

    def params(self) -> bytes:
        """The parameters as they were given."""
        return self.encoded

    def given(self, result: tuple[dict[str, Any], str], incarnation: int, *, small: bool) -> Steps[RelayedResult]:
        """The result as it came, scanned."""
        raw, version = result
        signals = () if self.method not in _FOR_MODELS else (yield from _scan(raw, small=small))
        return RelayedResult(raw, version, incarnation, signals)


def _scan(raw: dict[str, Any], *, small: bool) -> Steps[tuple[str, ...]]:
    """The signals in all texts; those of a `small` message are looked for in one go."""
    texts: list[str] = []
    for level in levels_of(raw):
        texts.extend(texts_in(level))
        if not small:
            yield
    text = "\n".join(texts)
    return scan(text) if small else (yield from scan_in_pieces(text))

"""The failures of a conversation with a server, and its notifications of changes."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ..enums import ListKind
from ..protocol import JsonRpcError

if TYPE_CHECKING:
    from mcp_types import InputRequiredResult

    from ..enums import Remembered
    from ..outcomes import Loss


ACKNOWLEDGED_WITHIN: Final = 10.0
"""Seconds a server may take to acknowledge a subscription."""

Kinds = Collection[ListKind]

CHANGED: Final[Mapping[str, Kinds]] = {
    "notifications/tools/list_changed": frozenset([ListKind.TOOLS]),
    "notifications/resources/list_changed": frozenset([ListKind.RESOURCES, ListKind.TEMPLATES]),
    "notifications/prompts/list_changed": frozenset([ListKind.PROMPTS]),
}
"""The lists that a notification is about."""


class ListChanges(Protocol):
    """A receiver of notifications of changes."""

    def lists_changed(self, kinds: Kinds) -> None:
        """Handle a change of these lists."""
        ...

    def resource_updated(self, uri: str) -> None:
        """Handle a change of this resource, or of one that is part of it."""
        ...


class HandshakeFailed(Exception):
    """The connection was opened, and the handshake failed."""

    def __init__(
        self, loss: "Loss", *, era: "Remembered | None" = None, probe_refused: bool = False, lost: bool = False
    ) -> None:
        self.loss = loss
        self.era = era
        """The era, if it was found, or the version of which the server says that it speaks it."""
        self.probe_refused = probe_refused
        """True if the server read the era probe and ended: open again with `initialize`."""
        self.lost = lost
        """True if the connection is gone, which `lost()` already reports."""
        super().__init__(loss.message)


class NotValid(ValueError):
    """An answer that is not valid MCP."""

    def __init__(self, described: str, problem: str) -> None:
        self.problem = problem
        """The first fault in it, in a few words."""
        super().__init__(described)


BAD_ANSWER: Final = (JsonRpcError, ValueError, RuntimeError)
"""The errors that a session raises for a refusal, for an answer that it cannot read (`NotValid` is a `ValueError`; too
deep nesting is another, or a `RecursionError`), and for a version that it does not share."""


PARTS_AT_ONCE: Final = 250
"""Parts of a result that are validated in a row."""


class BadResult(Exception):
    """The server answered with something the protocol or the tool's own schema does not allow."""


class InputWanted(Exception):
    """No result yet: the server asks for input first."""

    def __init__(self, wanted: "InputRequiredResult") -> None:
        self.wanted = wanted
        super().__init__("the server asks for input")

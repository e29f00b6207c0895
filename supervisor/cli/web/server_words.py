"""The words of a server, as visitors who may only look can see them."""

from attrs import frozen

from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.security.redaction import CUT_MARGIN
from mcp_nursery.supervisor.security.untrusted_marks import visible

from ..output import safe_text
from .layout import LONGEST_PHRASE, pretty, short


@frozen
class ServerWords:
    """The words of one server, made fit for a page: without its secrets, and of a long text only the beginning."""

    supervisor: Supervisor
    server: str

    def line(self, text: str, longest: int = LONGEST_PHRASE) -> str:
        """A text on one line."""
        return short(self.supervisor.redact(self.server, text, longest=longest + 1), longest)

    def json(self, value: object, longest: int) -> str:
        """A JSON value on several lines."""
        whole = pretty(value, longest + CUT_MARGIN + 1)
        return safe_text(self.supervisor.redact(self.server, whole, longest=longest))

    def whole(self, value: object, longest: int) -> str | None:
        """A JSON value on several lines, with all characters visible; None if it is longer, or holds a secret."""
        text = pretty(value, longest + 1)
        return "\n".join(map(visible, text.split("\n"))) if len(text) <= longest and self.keeps(text) else None

    def keeps(self, text: str) -> bool:
        """True if there is no secret in a text."""
        return self.supervisor.redact(self.server, text, longest=len(text)) == text

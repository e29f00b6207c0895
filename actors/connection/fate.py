"""What is seen of a driven connection: when its server was heard of, what failures mean, and how it was lost."""

from collections.abc import Callable

import trio
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, PARSE_ERROR, REQUEST_TIMEOUT
from pydantic import ValidationError

from ..errors import StartFailed, folded, leaves
from ..failures import Evidence, Phase, Reason, loss_of, sort
from ..messages import Dropped, Loss, Outcome, Rejected
from ..nesting import TOO_DEEP, nested_too_deep
from .exchange import Exchange

CLOSED = Loss("the connection was closed")


class Fate:
    """A `Witness` that judges. What ends the connection ends it at once: `lose` is called, and in turn calls `seal`."""

    def __init__(self, transport: str, lose: Callable[[Loss], None]) -> None:
        self.phase = Phase.OPENING
        """What is under way."""
        self.is_open = False
        """See `Witness`."""
        self.heard_at = trio.current_time()
        """When the server was last heard of, on Trio's clock."""
        self.lost = trio.Event()
        """Set once the connection counts as lost."""
        self.loss = CLOSED
        """How it was lost."""
        self._transport = transport
        self._lose = lose
        self._in_session = False
        self._evidence: Evidence | None = None

    @property
    def is_lost(self) -> bool:
        """See `Witness`."""
        return self.lost.is_set()

    def seal(self, loss: Loss) -> None:
        """It is lost, and this is how."""
        self.loss = loss
        self.lost.set()

    # -- what the HTTP client tells -------------------------------------------------------------------------------

    def hear(self) -> None:
        """See `Witness`."""
        self.heard_at = trio.current_time()

    def in_session(self) -> None:
        """See `Witness`."""
        self._in_session = True

    def see(self, evidence: Evidence, *, stream: bool = False) -> None:
        """See `Witness`."""
        self._evidence = evidence
        verdict = sort(self._transport, Phase.STREAM if stream else self.phase, evidence)
        if verdict.ends:
            self._lose(loss_of(verdict, evidence.told))

    # -- what it means --------------------------------------------------------------------------------------------

    def judge(self, exchange: Exchange, error: MCPError | None) -> Outcome:
        """What a call's caller gets that failed with this error, or was given up for what HTTP saw of it."""
        evidence = exchange.evidence or self._evidence_in(error)
        verdict = sort(self._transport, Phase.CALL, evidence)
        if verdict.ends:
            self._lose(loss_of(verdict, evidence.told))
            return self.loss
        if verdict.reason is Reason.UNKNOWN_OUTCOME:
            return Dropped(evidence.told, status=evidence.status, again=verdict.again)
        if error is None or (evidence.status is not None and evidence.code is None):
            return Rejected(evidence.code or evidence.status or INTERNAL_ERROR, evidence.told)
        data = TOO_DEEP if nested_too_deep(error.data) else error.data
        return Rejected(error.code, _words_of(error), data)

    def why(self, exchange: Exchange, error: Exception | None, failed: str) -> Loss:
        """How the connection stands after a request that is no call has `failed`; its loss, if it is lost."""
        if self.is_lost:
            return self.loss
        evidence = exchange.evidence or self._evidence_in(error)
        return loss_of(sort(self._transport, self.phase, evidence), f"{failed}: {evidence.told}")

    def end(self, error: BaseException) -> None:
        """The session ended by raising this, or a server object tried to end its process: the connection is lost."""
        self._lose(self._end_of(error))

    def _end_of(self, error: BaseException) -> Loss:
        first = next(leaves(error))
        if isinstance(first, StartFailed):
            return Loss(str(first), unusable=not first.retriable)
        if self._evidence is not None:
            return loss_of(sort(self._transport, self.phase, self._evidence), self._evidence.told)
        told = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
        what = "server object" if self._transport == "in-process" else "connection"
        return Loss(f"the {what} ended: {folded(told)}")

    def _evidence_in(self, error: Exception | None) -> Evidence:
        """What an answer shows that came without a fault of HTTP."""
        if isinstance(error, MCPError):
            return Evidence(folded(_words_of(error)), code=error.code, in_session=self._in_session)
        if isinstance(error, ValidationError):
            return Evidence(f"an answer that is none of the protocol: {error.errors()[0]['msg']}")
        return Evidence(folded(error) if error is not None else "no answer")


def _words_of(error: MCPError) -> str:
    """The server's; the SDK's own about what it could not parse are replaced, since they quote pieces of it."""
    quotes = error.code == PARSE_ERROR and "validation error" in error.message
    return "an answer that is none of the protocol" if quotes else error.message


def is_of_the_server(error: BaseException) -> bool:
    """Whatever a server object of the host's raises is that server's end; cancellation and Ctrl-C are not."""
    return all(isinstance(leaf, (Exception, SystemExit)) for leaf in leaves(error))


def is_refusal(error: BaseException | None) -> bool:
    """Whether the server itself has answered, although not with what was asked for."""
    if isinstance(error, MCPError):
        return error.code < 0 and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
    return isinstance(error, ValueError)  # an answer that nobody can read

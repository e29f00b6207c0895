"""The meaning of a failure over HTTP: start again, ask a person, or fail one call. Pure: values in, values out."""

from enum import StrEnum
from http import HTTPStatus

from mcp_nursery.actors.records import frozen

from ..outcomes import Challenge, Loss

_CONNECTION_CLOSED_CODE = -32000
"""JSON-RPC's code for a closed connection, and some servers' code for anything."""
_SESSION_CODES = (-32600, -32001)
"""JSON-RPC codes with which servers refuse a session. Both have other meanings too."""
_SIGNS_OF_AN_END = ("connection closed", "stream ended", "stream failed")
"""Messages of the SDK and of servers where `_CONNECTION_CLOSED_CODE` has its own meaning."""
REDIRECT_STATUSES = range(300, 400)
_GATEWAY_FAILED = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE)
_PASSING_STATUSES = (404, 408, 409, 425, 429)
"""Statuses of the 400s that may pass by themselves; some proxies answer 404 while a server restarts."""


class Phase(StrEnum):
    """The phase of an exchange."""

    OPENING = "opening"
    """The conversation was being opened."""
    CALL = "call"
    """A request or a notification, on an open conversation."""
    STREAM = "stream"
    """The stream for the server's own messages, on an open conversation: an extra that it need not offer."""


class Fault(StrEnum):
    """The reason why there was no answer at all."""

    UNREACHED = "unreached"
    """No connection: refused, no route, no such name. Nothing was sent."""
    UNTRUSTED = "untrusted"
    """The server's certificate is not trusted. Nothing was sent."""
    UNUSABLE = "unusable"
    """A setting of this side allows no request: a variable of the environment, or a header. Nothing was sent."""
    BROKEN = "broken"
    """The connection broke, or was closed too early."""
    MUTE = "mute"
    """No answer within the time limit of the exchange."""
    OVERSIZED = "oversized"
    """The answer was over the limit."""
    ENDED = "ended"
    """The server closed the stream."""


_HOPELESS_FAULTS = (Fault.UNTRUSTED, Fault.UNUSABLE)
"""Reasons that another start would meet again."""


@frozen
class Evidence:
    """The facts about a failure. Holds no secret."""

    problem: str
    """One line for people."""
    fault: Fault | None = None
    """The reason why there was no answer; None if there was one."""
    status: int | None = None
    """The HTTP status of the answer, where it is known."""
    code: int | None = None
    """The JSON-RPC error code in the answer, if there was one."""
    in_session: bool = False
    """True if the request carried our session id."""
    challenge: Challenge | None = None
    """The server's challenge about missing authorisation."""
    moved: bool = False
    """True if the server redirects within its origin: later frames go there."""
    retry_in: float | None = None
    """Seconds for which the server wants to be asked nothing; None if it did not say."""

    @property
    def wants_scope(self) -> bool:
        """True if the token is valid, but lacks a scope."""
        return self.status == 403 and self.challenge is not None and self.challenge.error == "insufficient_scope"  # noqa: PLR2004

    @property
    def unsent(self) -> bool:
        """True if certainly nothing was sent."""
        return self.fault in (Fault.UNREACHED, *_HOPELESS_FAULTS)


class Reason(StrEnum):
    """The meaning of a failure."""

    RETRIABLE = "retriable"
    """The server is not there now; another start may help."""
    NEEDS_AUTH = "needs_auth"
    """Authorisation is missing."""
    SESSION_EXPIRED = "session_expired"
    """The server has forgotten our session; a new one helps."""
    NOT_WORTH_RETRYING = "not_worth_retrying"
    """Another start would fail in the same way."""
    UNKNOWN_OUTCOME = "unknown_outcome"
    """A failure after which nobody knows whether the server acted on this request."""
    ANSWERED = "answered"
    """The server's answer, and nothing more."""


@frozen
class Failure:
    """A failure, classified."""

    reason: Reason
    ends: bool = False
    """True if the connection is over, not only the request."""
    again: bool = False
    """True if a request that may be carried out twice may be sent again."""


_CONNECTION_GONE = Failure(Reason.RETRIABLE, ends=True, again=True)
_EXPIRED = Failure(Reason.SESSION_EXPIRED, ends=True, again=True)
_NEEDS_AUTH = Failure(Reason.NEEDS_AUTH, ends=True)
_HOPELESS = Failure(Reason.NOT_WORTH_RETRYING)
_POSTPONED = Failure(Reason.RETRIABLE, ends=True)
_RETRIABLE = Failure(Reason.RETRIABLE)
_DROPPED = Failure(Reason.UNKNOWN_OUTCOME, again=True)
_TIMED_OUT = Failure(Reason.UNKNOWN_OUTCOME)
_ANSWERED = Failure(Reason.ANSWERED)


def classify(phase: Phase, evidence: Evidence) -> Failure:
    """The meaning of a failure in this phase of its exchange."""
    if evidence.unsent:
        hopeless = evidence.fault in _HOPELESS_FAULTS and phase is Phase.OPENING
        return Failure(Reason.NOT_WORTH_RETRYING, ends=True) if hopeless else _CONNECTION_GONE
    if phase is Phase.STREAM:
        return _ANSWERED
    if evidence.status == HTTPStatus.UNAUTHORIZED or (phase is Phase.OPENING and evidence.wants_scope):
        return _NEEDS_AUTH
    if _is_expiry(evidence):
        return _EXPIRED
    if phase is Phase.OPENING and (evidence.status == HTTPStatus.TOO_MANY_REQUESTS or evidence.retry_in is not None):
        return _POSTPONED  # another question about the era would be one request too many
    return _classify_opening(evidence) if phase is Phase.OPENING else _classify_call(evidence)


def loss_of(failure: Failure, evidence: Evidence, problem: str = "") -> Loss:
    """The loss of a connection that ended with this failure; `problem`, if given, says more than the evidence does."""
    return Loss(
        problem or evidence.problem,
        needs_auth=failure.reason is Reason.NEEDS_AUTH,
        unusable=failure.reason is Reason.NOT_WORTH_RETRYING,
        challenge=evidence.challenge if failure.reason is Reason.NEEDS_AUTH else None,
        retry_in=evidence.retry_in,
    )


def _classify_opening(evidence: Evidence) -> Failure:
    """Classify a failed opening. The connection goes on: a server may refuse the era's probe and accept
    `initialize`."""
    status = evidence.status
    if status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING_STATUSES:
        return _RETRIABLE
    return _RETRIABLE if evidence.code is not None else _HOPELESS


def _classify_call(evidence: Evidence) -> Failure:
    if evidence.fault is Fault.MUTE or evidence.status == HTTPStatus.GATEWAY_TIMEOUT:
        return _TIMED_OUT
    if evidence.fault is Fault.OVERSIZED:
        return _ANSWERED
    if evidence.status in REDIRECT_STATUSES:  # a server that redirects may have acted before
        return _DROPPED if evidence.moved else _TIMED_OUT
    closed = evidence.code == _CONNECTION_CLOSED_CODE and any(
        sign in evidence.problem.lower() for sign in _SIGNS_OF_AN_END
    )
    if evidence.fault is not None or closed or evidence.status in _GATEWAY_FAILED:
        return _DROPPED
    return _ANSWERED


def _is_expiry(evidence: Evidence) -> bool:
    """True if the session expired: only requests with our session id can show that."""
    if not evidence.in_session:
        return False
    if evidence.status == HTTPStatus.NOT_FOUND:
        return True
    refused = evidence.status in (None, 200, 400) and evidence.code in _SESSION_CODES
    # The second form is that of the TypeScript SDK.
    refused = refused or (evidence.status == HTTPStatus.BAD_REQUEST and evidence.code == _CONNECTION_CLOSED_CODE)
    return refused and "session" in evidence.problem.lower()

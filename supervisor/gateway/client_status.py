"""The clients of a gateway over HTTP, as values for a person who watches it. Ids of sessions, which are credentials,
are not among them. Pure."""

from collections.abc import Mapping

from mcp_nursery.actors.records import frozen

__all__ = ["ClientStatus", "ClientsStatus", "HeldCallStatus", "SessionStatus"]


@frozen
class SessionStatus:
    """A session of the handshake era. Times are seconds."""

    key: str
    """The name of the session for `HttpApplication.end_session`; its client does not know this name."""
    client: str | None
    """The name of its principal; None if that is not authenticated."""
    program: str | None
    """The name and version of the client, in its own words: the first 100 characters of each."""
    protocol_version: str
    """The version that was agreed on; empty before that."""
    server: str | None
    """The server of the session; None: all of them."""
    age: float
    """The time since the session began here, or has gone on here."""
    requests: int
    """Requests and streams under way."""
    subscriptions: int
    """Resources that its client subscribes to."""
    waiting: int
    """Notifications that wait for its client."""


@frozen
class HeldCallStatus:
    """A call that waits for its client to come back with answers."""

    client: str | None
    """The name of its principal; None if that is not authenticated."""
    server: str
    """The server that it is for."""
    method: str
    """The method of the request."""
    name: str | None
    """The tool or prompt, by the name that its client uses; None for other requests."""
    questions: int
    """Questions that wait for an answer."""
    expires_in: float
    """Seconds until it is given up."""


@frozen
class ClientStatus:
    """A principal with requests under way."""

    name: str | None
    """The name; None for all that are not authenticated, together."""
    requests: int
    """Requests and streams under way."""
    kept: int
    """Bytes of its requests, and of answers that it has not read."""


@frozen
class ClientsStatus:
    """All clients at one moment."""

    sessions: tuple[SessionStatus, ...]
    """The sessions, the oldest first."""
    held: tuple[HeldCallStatus, ...]
    """The calls that wait for their clients."""
    clients: tuple[ClientStatus, ...]
    """The principals with requests under way."""
    kept: Mapping[str, int]
    """Bytes that are kept for all clients, by kind: `answers`, `news`, `questions`, `requests`."""
    most_kept: int
    """Bytes that may be kept for all clients together."""
    most_kept_of_client: int
    """Bytes that may be kept for one client that is authenticated."""
    most_sessions: int
    """Sessions that may be open."""
    most_requests: int
    """Requests that may be under way."""

"""The identity of a client, and the part of the servers that it may use. Pure."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.records import field, frozen

from ...tools.naming import fits_any, matches

RETRY_AFTER: Final = {"retry-after": "1"}
"""Headers of a refusal before anything was done: a balancer, or the client itself, may make the request again."""
METRICS: Final = "/metrics"
"""The grant to read figures and use nothing else."""
PAGE_GRANT: Final = "/ui"
"""The grant to look at the page and use nothing else."""
ACT_GRANT: Final = "/ui/act"
"""The grant to look at the page, and to do all that can be done there."""


def _check_globs(patterns: Iterable[str] | None) -> tuple[str, ...] | None:
    allowed = None if patterns is None else tuple(patterns)
    for pattern in allowed or ():
        if "/" not in pattern:
            raise ValueError(f"must be globs such as 'server/tool' or 'server/*', not {pattern!r}")
    return allowed


@frozen
class Access:
    """The grant of a client: everything, or the tools that a glob matches.

    A client that may use a tool of a server may use its prompts and resources, too. A server of which a client may use
    nothing does not exist for that client.
    """

    allow: Sequence[str] | None = field(default=None, converter=_check_globs)
    """Globs on `server/tool`; None: everything."""

    def has_tool(self, server: str, tool: str) -> bool:
        """True if this tool may be called; `tool`: the server's own name of it."""
        return self.allow is None or fits_any(self._tools_of(server))(tool) is not None

    def has_server(self, server: str) -> bool:
        """True if anything of this server may be used."""
        return self.allow is None or bool(self._tools_of(server))

    def has_all_of(self, server: str) -> bool:
        """True if all of this server may be used."""
        return self.allow is None or "*" in self._tools_of(server)

    @property
    def has_metrics(self) -> bool:
        """True if figures of all servers may be read."""
        return self.allow is None or METRICS in self.allow

    @property
    def has_page(self) -> bool:
        """True if the page may be looked at, which shows all servers and clients."""
        return self.allow is None or PAGE_GRANT in self.allow or ACT_GRANT in self.allow

    @property
    def has_acts(self) -> bool:
        """True if all that can be done on the page may be done."""
        return self.allow is None or ACT_GRANT in self.allow

    def _tools_of(self, server: str) -> tuple[str, ...]:
        return _globs_of(tuple(self.allow or ()), server)


@lru_cache(maxsize=4096)
def _globs_of(allow: tuple[str, ...], server: str) -> tuple[str, ...]:
    """The globs for tools of this server, without its name; cached, since there may be thousands of tools to check."""
    parts = (pattern.partition("/") for pattern in allow)
    return tuple(glob for of, _, glob in parts if matches(server, [of]))


EVERYTHING: Final = Access()


@frozen
class Principal:
    """The identity of a client. Clients with equal principals share sessions and limits."""

    name: str
    """The name in logs."""
    access: Access = EVERYTHING
    """The grant."""
    key: str = field(default="", repr=False)
    """The difference from an earlier principal of the same name, such as the digest of its token."""
    expires: float | None = field(default=None, eq=False)
    """The Unix time until which it is valid: streams end then. None: it does not expire."""


def principal_name(client: object) -> str | None:
    """The name of a client for a person; None if it is not authenticated."""
    return client.name if isinstance(client, Principal) else None


class Refused(NurseryError):
    """The refusal of a client that cannot be identified, or that may not do what it wants to.

    Args:
        status: The status of the HTTP response: 401 if the client may come back with credentials.
        reason: The reason for the client.
        headers: Headers of the response, such as `WWW-Authenticate`.
    """

    def __init__(self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        """The status of the HTTP response."""
        self.reason = reason
        """The reason for the client."""
        self.headers: dict[str, str] = dict(headers or {})
        """Headers of the response."""
        super().__init__(reason)


Authenticate = Callable[[MutableMapping[str, Any]], Awaitable[Principal | None]]
"""`async (scope) -> Principal`, by the ASGI scope of a request; None: the client is not authenticated. It raises
`Refused`."""


def path_of(scope: Mapping[str, Any]) -> str:
    """The path of a request, relative to the path at which the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if path == root or path.startswith(root + "/") else path


def bearer_of(scope: Mapping[str, Any]) -> str | None:
    """The bearer token of a request; None if it has none, or several."""
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    scheme, _, token = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None

"""The orders that a person gives a host, in one table: the control socket with the command line behind it, the keys of
the full screen and the buttons of the page give each order by its name.
"""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.records import frozen

from .events import DefinitionChange, Reloaded
from .status import ServerStatus

if TYPE_CHECKING:
    from .supervisor import Supervisor

OrderParams: TypeAlias = Mapping[str, object]
"""The parameters of an order, by name, as they came: not checked."""


class InvalidOrder(NurseryError):
    """The error of an order with a parameter that is missing or has another type."""


class OrderRefused(NurseryError):
    """The error of an order about something that has changed or ended meanwhile. The fact is a whole sentence."""


@frozen
class OrderHost:
    """The host that carries out orders."""

    supervisor: "Supervisor"
    """The supervisor of the servers."""
    end_session: Callable[[str], Awaitable[bool]] | None = None
    """The function that ends a client's session with the gateway in front, see `HttpApplication.end_session`; None:
    there is no gateway."""


def text_of(given: OrderParams, name: str) -> str:
    """Return a parameter that is a text.

    Raises:
        InvalidOrder: It is missing, or no text.
    """
    text = given.get(name)
    if not isinstance(text, str):
        raise InvalidOrder(f"{name!r} must be a text")
    return text


def flag_of(given: OrderParams, name: str) -> bool:
    """Return a parameter that is true or false; a missing one is false.

    Raises:
        InvalidOrder: It is neither.
    """
    flag = given.get(name, False)
    if not isinstance(flag, bool):
        raise InvalidOrder(f"{name!r} must be true or false")
    return flag


def digest_of(change: DefinitionChange) -> str:
    """Return the digest of a definition as it is now, by which the one that a person was shown is accepted, and no
    later one."""
    return sha256(change.after.encode(errors="surrogatepass")).hexdigest()


async def _reconnect(host: OrderHost, given: OrderParams) -> None:
    await host.supervisor.reconnect(text_of(given, "server"))


async def _start(host: OrderHost, given: OrderParams) -> ServerStatus | None:
    server, wait = text_of(given, "server"), flag_of(given, "wait")
    await host.supervisor.start_server(server)
    return await host.supervisor.wait_connected(server) if wait else None


async def _stop(host: OrderHost, given: OrderParams) -> None:
    await host.supervisor.stop_server(text_of(given, "server"))


async def _reload(host: OrderHost, given: OrderParams) -> Reloaded:
    return await host.supervisor.reload(restart=flag_of(given, "restart"))


async def _accept(host: OrderHost, given: OrderParams) -> None:
    server, tool, digest = (text_of(given, name) for name in ("server", "tool", "digest"))
    changes = [each for each in host.supervisor.definition_changes if (each.server, each.tool) == (server, tool)]
    for change in changes:
        if digest_of(change) == digest:
            await host.supervisor.accept_change(change)
            return
    now = "has changed again: look at it as it is now" if changes else "does not differ any more"
    raise OrderRefused(f"{tool} {now}.")


async def _end_session(host: OrderHost, given: OrderParams) -> None:
    session = text_of(given, "session")
    if host.end_session is None or not await host.end_session(session):
        raise OrderRefused("This session has ended already.")


ORDERS: Final[Mapping[str, Callable[[OrderHost, OrderParams], Awaitable[Reloaded | ServerStatus | None]]]] = {
    "reconnect": _reconnect,
    "start": _start,
    "stop": _stop,
    "reload": _reload,
    "accept": _accept,
    "end_session": _end_session,
}
"""The orders, by name: the functions that carry them out and return the outcome, if there is one.

`reconnect`, `start` and `stop` have the parameter `server`: `reconnect` returns once the server is connected, `start`
in `connecting`, or with `wait` once it is connected, with its status, and `stop` once it has ended. `reload` has
`restart`, `accept` has `server`, `tool` (or the URI of a skill) and `digest`, and `end_session` has `session`.

They raise `InvalidOrder`, `OrderRefused`, and the errors of the methods of `Supervisor`."""

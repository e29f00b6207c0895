"""Who wants to hear of changes of which resources."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from attrs import define, field

from ..events import ResourceUpdated, ResourceUpdates


@define(eq=False)
class Subscriptions:
    """The open subscriptions of all servers. They outlast connections: what a server is subscribed to follows them."""

    _subscribe: Callable[[str, frozenset[str]], None]
    """Called with a server and the URIs that are subscribed now, whenever these change."""
    _open: dict[str, dict[str, set[ResourceUpdates]]] = field(
        factory=dict[str, dict[str, set[ResourceUpdates]]], init=False
    )
    """By server and URI."""

    @contextmanager
    def open(self, server: str, uri: str) -> Generator[ResourceUpdates, None, None]:
        """A subscription that lasts as long as the block."""
        updates, of_server = ResourceUpdates(), self._open.setdefault(server, {})
        of_server.setdefault(uri, set()).add(updates)
        if len(of_server[uri]) == 1:
            self._subscribe(server, frozenset(of_server))
        try:
            yield updates
        finally:
            of_server[uri].discard(updates)
            if not of_server[uri]:
                del of_server[uri]
                if self._open.get(server) is of_server:
                    self._subscribe(server, frozenset(of_server))

    def deliver(self, update: ResourceUpdated) -> None:
        """Report an update of a resource to its subscribers."""
        for updates in self._open.get(update.server, {}).get(update.uri, ()):
            updates.add(update)

    def end(self, server: str) -> None:
        """The server is gone: no more updates come."""
        for subscribed in self._open.pop(server, {}).values():
            for updates in subscribed:
                updates.finish()

    def end_all(self) -> None:
        """Everything is over."""
        for server in list(self._open):
            self.end(server)

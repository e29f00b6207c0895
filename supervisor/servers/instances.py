"""One more instance of a server: kept like any other, and counted with it."""

from collections.abc import Iterable
from typing import Final

import trio

from mcp_nursery.actors.callbacks import Callbacks, CurrentRoots
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import evolve

from ..decisions.state_machine import SHUT
from ..spec import ServerSpec
from ..status import server_down
from ..tools.tool import Invoke
from .servers import Servers
from .settings import KeeperSettings


class InstanceServers(Servers):
    """The keeper of one more instance of a server, with the settings, the store and the figures of the keeper of the
    first, and with other callbacks, if any are given.

    Raises:
        UnknownServer: No server of that name.
        ServerDown: A person has stopped or disabled it, or has yet to trust it.
        SupervisorClosed: The block was left.
    """

    def __init__(
        self, first: Servers, server: str, callbacks: Callbacks | None, nursery: trio.Nursery, invoke: Invoke
    ) -> None:
        snapshot = first.snapshot(server).value
        if snapshot.state in SHUT:
            raise server_down(snapshot, now=trio.current_time())
        super().__init__(first.settings, nursery, invoke, first)
        self._of: Final = first
        self._callbacks = callbacks
        self._spec: Final[ServerSpec] = evolve(snapshot.spec, enabled=True)  # a person may have started one that is not
        self._pins = first.pins_of(self._spec)

    def begin(self) -> None:
        """Start the instance, or have a lazy instance wait for its first call."""
        self._of.dependents.add(self)
        self._of.registry.figures.instances.setdefault(self._spec.name, []).append(self.registry)
        self.start([self._spec])

    @override
    def _settings_of(self, specs: Iterable[ServerSpec]) -> dict[str, KeeperSettings]:
        settings = {name: evolve(one, pins=self._pins) for name, one in super()._settings_of(specs).items()}
        asked = self._callbacks
        if asked is None:
            return settings
        own = self._spec.roots is not None or asked.roots is not None
        return {
            name: evolve(one, callbacks=asked, roots=one.roots if own else CurrentRoots())
            for name, one in settings.items()
        }

    @override
    async def close(self, drain: float) -> None:
        try:
            await super().close(drain)
        finally:
            self._of.dependents.discard(self)
            self._of.registry.figures.instances[self._spec.name].remove(self.registry)

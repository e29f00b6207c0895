"""Where one call goes: the tool or whatever else it names, and the wait until the server of that can take it."""

from collections.abc import Sequence
from typing import Any

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ServerDown

from ..state_machine import CALLS_WAIT, Snapshot
from ..status import server_down
from .call import ActiveCall, Found


class Target:
    """What one call has found so far, and what it has seen of its server."""

    def __init__(self, call: ActiveCall[Any, Any]) -> None:
        self._call = call
        self._asked = call.asked
        self._servers = call.servers
        self._owner = call.asked.server
        """Whose tool it is, if that is known."""
        self._unsure: Sequence[str] = ()
        """Connected servers whose lists may be old, and would have it."""
        self._listed_again = False
        """Whether these were fetched again for this call."""
        self._lost_incarnation = 0
        self._started: int | None = None
        """The incarnation that had ended when this call had the next one started."""
        self._took_part = False
        """Whether it has waited for an attempt since it was sent last: it has no other begun before its time."""

    # -- which tool -----------------------------------------------------------------------------------------------

    async def find(self) -> Found:
        """What the call goes to; what nobody knows yet waits until every first attempt is settled, and until lists that
        may be old were fetched again.

        Raises:
            NurseryError: See `look`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while (found := self.look()) is None:
            if self._unsure:
                servers, self._unsure, self._listed_again = self._unsure, (), True
                await self._servers.refresh_old(servers, self._call.lists)
            elif self._owner is None:
                await self._servers.awaited_tools.wait(self._call.awaited or self._asked.name)
            else:
                await self._servers.snapshot(self._owner).changed()
        return found

    def look(self) -> Found | None:
        """What the call goes to, as it is known now; None if it may yet come.

        Raises:
            UnknownTool: No server has it, every first attempt is settled, and no list may be old. Or
                `UnknownResource`, `UnknownPrompt`.
            NotApproved: It is held back.
            ServerDown: Its server is not connected, and the call does not wait for that.
            UnknownServer: There is no server of the name that was given.
            SupervisorClosed: The block is being left.
        """
        self._servers.check_open()
        call, asked = self._call, self._asked
        found: Found | None = call.find()
        if found is not None:
            return found
        call.check_allowed()
        self._owner = owner = asked.server or call.former_owner()
        if owner is None and self._may_come():
            return None
        snapshots = self._servers.snapshots
        down = [] if owner else [name for name, one in snapshots.items() if not _connected(one.value)]
        self._owner = owner = owner or self._never_heard_of(down)
        known = None if owner is None else self._servers.snapshot(owner).value
        if known is not None and not self._is_connected(known, self._waits(patient=False)):
            return None
        self._unsure = [] if self._listed_again else self._may_have_it_now(owner)
        if self._unsure:
            return None
        raise call.unknown(down)

    def _never_heard_of(self, down: Sequence[str]) -> str | None:
        """The server that never told what it has, if what has this name can be no other's."""
        parts = self._servers.catalogue.value.parts
        blank = {server for server in down if parts[server].is_blank}
        owners = self._call.possible_owners() if blank else ()
        return owners[0] if len(owners) == 1 and owners[0] in blank else None

    def _may_have_it_now(self, owner: str | None) -> Sequence[str]:
        """The connected servers that may have gained it, and tell nobody of that."""
        now, snapshots = trio.current_time(), self._servers.snapshots
        servers = self._call.listers() if self._call.lists and self._call.timeout > 0 else ()
        known = [snapshots[name].value for name in servers if name in snapshots and owner in (None, name)]
        return [one.spec.name for one in known if _connected(one) and one.definitions.old_from <= now]

    def _may_come(self) -> bool:
        """Whether a first attempt is under way, or was now begun, that may bring what nobody knows yet."""
        for server in self._servers.awaited_tools.unlisted():
            self._servers.wake(server)
        return self._servers.awaited_tools.expected

    # -- its server -----------------------------------------------------------------------------------------------

    async def ready(self, *, patient: bool) -> Found:
        """Wait until another incarnation than the one that was left is connected; what it has then.

        Args:
            patient: Whether to wait through the pause before a restart as well.

        Raises:
            NurseryError: See `look`.
        """
        waits = self._waits(patient=patient)

        def connected_anew(snapshot: Snapshot) -> bool | None:
            self._servers.check_open()
            connected = self._is_connected(snapshot, waits)
            return True if connected and snapshot.incarnation != self._lost_incarnation else None

        await self._servers.snapshot(self._call.server_name).wait(connected_anew)
        return await self.find()

    def leave(self, incarnation: int | None) -> None:
        """The call is done with this incarnation: only another can take it."""
        self._lost_incarnation, self._took_part = incarnation or 0, False

    async def noticed(self, lost: int | None) -> None:
        """Wait until the keeper knows of a loss too: a caller that knows must not see the server as connected."""
        observable = self._servers.snapshots.get(self._call.server_name)
        if observable is not None:
            await observable.wait(
                lambda now: self._servers.closed or now.incarnation != lost or not _connected(now) or None
            )

    def _is_connected(self, snapshot: Snapshot, waits: frozenset[ServerState]) -> bool:
        """Whether it is; False if it is not and the call waits for it, which starts one that calls start.

        Raises:
            ServerDown: It is not, and the call does not wait in this state.
        """
        if _connected(snapshot):
            return True
        self._servers.want(snapshot.spec.name)
        if waits and self._starts(snapshot):
            return False
        if snapshot.state not in waits or snapshot.abandoned:
            raise self._down(snapshot)
        return False

    def _starts(self, snapshot: Snapshot) -> bool:
        """Whether this call has the server started, and that start has not begun yet. A call does so once."""
        self._took_part = self._took_part or snapshot.state is ServerState.CONNECTING
        is_due = snapshot.state is ServerState.WAITING and self._asked.when_down == "reconnect" and not self._took_part
        if not (is_due or snapshot.revives_on_call):
            return False
        if self._started is None:
            self._started = snapshot.incarnation
            start = self._servers.hasten if is_due else self._servers.revive
            start(snapshot.spec.name)
        return self._started == snapshot.incarnation

    def _waits(self, *, patient: bool) -> frozenset[ServerState]:
        """The states in which this call waits for its server."""
        if self._asked.when_down == "fail":
            return frozenset()
        if self._asked.when_down == "wait":
            return CALLS_WAIT | {ServerState.WAITING, ServerState.FAILED}
        if patient:
            return CALLS_WAIT | {ServerState.WAITING}
        return CALLS_WAIT

    def _down(self, snapshot: Snapshot) -> ServerDown:
        return server_down(snapshot, now=trio.current_time(), tool=self._call.name)


def _connected(snapshot: Snapshot) -> bool:
    return snapshot.state is ServerState.CONNECTED

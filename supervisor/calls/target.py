"""Where one call goes: the tool that it names, and the wait until that tool's server can take it."""

from collections.abc import Sequence

import trio

from mcp_nursery.actors.errors import NotApproved, ServerDown, UnknownTool
from mcp_nursery.actors.states import ServerState

from ..catalogue.catalogue import Catalogue
from ..lifecycle import CALLS_WAIT
from ..servers.servers import Fleet
from ..status import Snapshot, server_down
from ..tools.tool import Tool
from .request import Request


class Destination:
    """What one call has found so far, and what it has seen of its server."""

    def __init__(self, request: Request, fleet: Fleet) -> None:
        self._request = request
        self._fleet = fleet
        self._tool: Tool | None = None
        """As it is known since it was found."""
        self._owner = request.server
        """Whose tool it is, if that is known."""
        self._lost_incarnation = 0
        self._revived: int | None = None
        """The incarnation that had failed when this call had the server started afresh."""

    # -- which tool -----------------------------------------------------------------------------------------------

    async def find(self) -> Tool:
        """The tool; a name nobody knows yet waits until every first attempt is settled.

        Raises:
            NurseryError: See `find_in`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while (tool := self.find_in(self._fleet.catalogue.value)) is None:
            if self._owner is None:
                await self._fleet.arrivals.wait(self._request.name)
            else:
                await self._fleet.cell(self._owner).changed()
        return tool

    def find_in(self, catalogue: Catalogue) -> Tool | None:
        """The tool as it is known now; None if it may yet come.

        Raises:
            UnknownTool: Nobody has it, now that every first attempt is settled.
            NotApproved: It is held back.
            ServerDown: Its server is not connected, and the call does not wait for that.
            UnknownServer: The server that was named is none.
            SupervisorClosed: The block is being left.
        """
        self._fleet.check_open()
        request = self._request
        tool = catalogue.find(request.key)
        if tool is not None:
            self._tool = tool
            return tool
        if held := catalogue.held_back(request.key):
            raise NotApproved(held.server, held.tool, held.why)
        self._owner = owner = request.server or catalogue.departed_from(request.key)
        if owner is None and self._tools_may_come():
            return None
        down = [] if owner else [name for name, cell in self._fleet.cells.items() if not _connected(cell.value)]
        self._owner = owner = owner or self._never_heard_of(catalogue, down)
        if owner is not None and not self._is_connected(self._fleet.cell(owner).value, self._waits(patient=False)):
            return None
        near = catalogue.near(request.name, request.server)
        raise UnknownTool(request.name, server=request.server, near=near, down=down)

    def _never_heard_of(self, catalogue: Catalogue, down: Sequence[str]) -> str | None:
        """The server that never told what it has, if the tool of this name can be no other's."""
        blank = {server for server in down if catalogue.parts[server].is_blank}
        owners = self._fleet.owners_of(self._request.name, self._fleet.cells) if blank else ()
        return owners[0] if len(owners) == 1 and owners[0] in blank else None

    def _tools_may_come(self) -> bool:
        """Whether a first attempt is under way, or was now begun, that may bring tools nobody knows yet."""
        for server in self._fleet.arrivals.sleepers():
            self._fleet.wake(server)
        return self._fleet.arrivals.expected

    # -- its server -----------------------------------------------------------------------------------------------

    async def ready(self, tool: Tool, *, patient: bool) -> Tool:
        """Wait until another incarnation than the one that was left is connected; the tool as it is known then.

        Args:
            tool: As it was known before.
            patient: Whether to wait through the pause before a restart as well.

        Raises:
            NurseryError: See `find_in`.
        """
        self._tool = tool
        waits = self._waits(patient=patient)

        def connected_anew(snapshot: Snapshot) -> bool | None:
            self._fleet.check_open()
            connected = self._is_connected(snapshot, waits)
            return True if connected and snapshot.incarnation != self._lost_incarnation else None

        await self._fleet.cell(tool.server).wait(connected_anew)
        return await self.find()

    def leave(self, incarnation: int | None) -> None:
        """The call is done with this incarnation: only another can take it."""
        self._lost_incarnation = incarnation or 0

    async def noticed(self, server: str, lost: int | None) -> None:
        """Wait until the keeper knows of a loss too: who was told of it must not see the server as connected."""
        cell = self._fleet.cells.get(server)
        if cell is not None:
            await cell.wait(lambda snapshot: snapshot.incarnation != lost or not _connected(snapshot) or None)

    def _is_connected(self, snapshot: Snapshot, waits: frozenset[ServerState]) -> bool:
        """Whether it is; False if it is not and the call waits for it, which starts one that calls start.

        Raises:
            ServerDown: It is not, and the call does not wait in this state.
        """
        if _connected(snapshot):
            return True
        self._fleet.wake(snapshot.spec.name)
        if waits and self._revives(snapshot):
            return False
        if snapshot.state not in waits or snapshot.abandoned:
            raise self._down(snapshot)
        return False

    def _revives(self, snapshot: Snapshot) -> bool:
        """Whether this call has a failed server started, and that start has not begun yet. A call does so once."""
        if not snapshot.revives_on_call:
            return False
        if self._revived is None:
            self._revived = snapshot.incarnation
            self._fleet.revive(snapshot.spec.name)
        return self._revived == snapshot.incarnation

    def _waits(self, *, patient: bool) -> frozenset[ServerState]:
        """The states in which this call waits for its server."""
        if self._request.when_down == "fail":
            return frozenset()
        if self._request.when_down == "wait":
            return CALLS_WAIT | {ServerState.WAITING, ServerState.FAILED}
        if patient:
            return CALLS_WAIT | {ServerState.WAITING}
        return CALLS_WAIT

    def _down(self, snapshot: Snapshot) -> ServerDown:
        tool = self._request.name if self._tool is None else self._tool.tool
        return server_down(snapshot, now=trio.current_time(), tool=tool)


def _connected(snapshot: Snapshot) -> bool:
    return snapshot.state is ServerState.CONNECTED

"""Which log messages servers of the handshake era are asked for: such a server keeps one level for a connection."""

from collections.abc import Callable
from contextlib import suppress

import trio
from attrs import define, field

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import NurseryError, ServerError

from ..supervisor import Supervisor
from .catalogues import status_of
from .eras import is_modern


@define(eq=False)
class LogLevel:
    """The level of one instance of a server. Each of its incarnations is told anew."""

    _supervisor: Supervisor
    _server: str
    _wanted: Callable[[bool], str | None]
    """The least severe messages that a client wants, None if none has said so. Given whether the server has logs."""
    _told: tuple[int, str] | None = field(default=None, init=False)
    """The last incarnation that was told a level, and that."""
    _turn: trio.StrictFIFOLock = field(factory=trio.StrictFIFOLock, init=False)
    _waits: bool = field(default=False, init=False)
    """Whether a review waits for its turn, which will see all that was wanted until then."""

    async def tell(self) -> None:
        """Have it told, if it is connected and does not know.

        Raises:
            NurseryError: It could not be told, or does not agree.
        """
        async with self._turn:
            await self._tell()

    async def _tell(self) -> None:
        due = self._due()
        if due is None:
            return
        try:
            await self._supervisor.request(
                self._server, "logging/setLevel", {"level": due[1]}, when_down="fail", resend="never"
            )
        except ServerError:
            self._told = due
            raise
        self._told = due

    def review(self, nursery: trio.Nursery) -> None:
        """Have it told in this nursery, if it is to be. One that fails is told when it is connected again."""
        if not self._waits and self._due() is not None:
            self._waits = True
            nursery.start_soon(self._try)

    async def _try(self) -> None:
        with suppress(NurseryError):
            async with self._turn:
                self._waits = False
                await self._tell()

    def _due(self) -> tuple[int, str] | None:
        """Which incarnation is to be told what."""
        status = status_of(self._supervisor, self._server)
        if status is None or status.state is not ServerState.CONNECTED or is_modern(status.protocol_version):
            return None
        try:
            hello = self._supervisor.hello(self._server) or {}
            level = self._wanted("logging" in (hello.get("capabilities") or {}))
        except NurseryError:  # it is just ending, or its server was removed
            return None
        due = None if level is None else (status.incarnation, level)
        return None if due == self._told else due

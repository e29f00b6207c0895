"""Words between the processes of an assault."""

from multiprocessing.connection import Connection
from typing import Any

import trio


class Channel:
    """One end of a pipe, in a process that runs Trio."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def hear(self) -> Any:
        await trio.lowlevel.wait_readable(self._connection.fileno())
        return self._connection.recv()

    async def tell(self, said: Any) -> None:
        await trio.to_thread.run_sync(self._connection.send, said)

    async def ask(self, said: Any) -> Any:
        await self.tell(said)
        return await self.hear()

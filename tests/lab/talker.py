"""The other end of a wire within this process."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import trio

from mcp_nursery.actors.outcomes import Loss


class Talker:
    """A `FrameStream` whose peer takes each message when it is written, says frames when it likes, and never ends."""

    pid = None
    unfinished = False

    def __init__(self) -> None:
        self._said: deque[bytes] = deque()
        self._news = trio.lowlevel.ParkingLot()

    def take(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    def say(self, *frames: bytes) -> None:
        self._said += frames
        self._news.unpark_all()

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        for frame in frames:
            self.take(json.loads(frame))
        return len(frames)

    async def taken(self) -> None:
        await trio.lowlevel.checkpoint()

    async def writable(self) -> None:
        await trio.sleep_forever()

    async def read(self) -> list[bytes]:
        while not self._said:
            await self._news.park()
        batch = list(self._said)
        self._said.clear()
        return batch

    async def loss(self) -> Loss:
        await trio.lowlevel.checkpoint()
        return Loss("gone")

"""Connections as the servers of the sweep hold them: read to the byte, cut at the byte."""

import os
import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress

import trio


class Ended(Exception):
    """The client's side has ended."""


class Link(ABC):
    """One connection. What was read and not taken stays for later."""

    def __init__(self) -> None:
        self._read = bytearray()
        self.taken = 0
        """Bytes that `take` and `take_through` gave so far."""
        self.closed = False
        self._sending = trio.Lock()

    async def reads(self, count: int) -> None:
        """Have so many bytes here, and read no more than these.

        Raises:
            Ended: The client has ended first.
        """
        while len(self._read) < count:
            await self._some(count - len(self._read))

    async def take(self, count: int) -> bytes:
        await self.reads(count)
        return self._cut(count)

    async def take_through(self, mark: bytes) -> bytes:
        """Everything up to the mark, which is the last of it."""
        while (place := self._read.find(mark)) < 0:
            await self._some(65536)
        return self._cut(place + len(mark))

    async def send(self, data: bytes) -> None:
        """Write it, after what others are writing.

        Raises:
            Ended: The client has ended first.
        """
        async with self._sending:
            await self.write(data)

    @abstractmethod
    async def write(self, data: bytes) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """End it as a program does that has nothing more to say."""

    @abstractmethod
    def reset(self) -> None:
        """End it as a program does that was killed."""

    @abstractmethod
    async def receive(self, most: int) -> bytes: ...

    async def _some(self, most: int) -> None:
        if self.closed:
            raise Ended
        try:
            data = await self.receive(most)
        except (OSError, trio.ClosedResourceError):
            data = b""
        if not data:
            raise Ended
        self._read += data

    def _cut(self, count: int) -> bytes:
        data = bytes(self._read[:count])
        del self._read[:count]
        self.taken += count
        return data


class SocketLink(Link):
    """A connection of TCP."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        super().__init__()
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def receive(self, most: int) -> bytes:
        return await self._socket.recv(most)

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise Ended
        try:
            while data:
                data = data[await self._socket.send(data) :]
        except (OSError, trio.ClosedResourceError):
            raise Ended from None

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def reset(self) -> None:
        if not self.closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class PipeLink(Link):
    """The standard streams of a process, which handed them to us and waits for word how to exit."""

    def __init__(self, stdin: int, stdout: int, process: trio.socket.SocketType) -> None:
        super().__init__()
        os.set_blocking(stdin, False)
        self._stdin, self._stdout = trio.lowlevel.FdStream(stdin), trio.lowlevel.FdStream(stdout)
        self._process = process

    async def receive(self, most: int) -> bytes:
        return await self._stdin.receive_some(most)

    async def write(self, data: bytes) -> None:
        try:
            await self._stdout.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Ended from None

    def close(self) -> None:
        """The process exits with 0."""
        self._end(b"x")

    def reset(self) -> None:
        """The process kills itself."""
        self._end(b"k")

    def mute(self) -> None:
        """Its output ends, and the process lives on."""
        self._stdout.close()

    def _end(self, word: bytes) -> None:
        if self.closed:
            return
        self.closed = True
        self._stdin.close()
        self._stdout.close()
        with self._process, suppress(OSError):  # it may be gone
            os.write(self._process.fileno(), word)

"""The streams of a client on standard input and output: its lines as they are read, and the messages that wait for a
client that does not read."""

import os
import select
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import trio

from mcp_nursery.actors.account import ANSWERS
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.carrier import Hub
from mcp_nursery.actors.jsonrpc.large_messages import is_batch, members, split
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.limits import MOST_VALUES, size_text
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.pieces import SMALL
from mcp_nursery.actors.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    as_request_id,
)
from mcp_nursery.actors.transports.stdio import LineStream

from ..bridge import as_object
from ..client_request import ANSWERED as WAS_ANSWERED

LINE_LIMIT: Final = 16 << 20
"""Bytes of one line that a client may send; a longer one is refused."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs write before the first line."""
BATCHING: Final = "2025-03-26"
"""The only version of the protocol that has batches."""
NO_BATCH: Final = codec.refusal(None, INVALID_REQUEST, f"an empty batch, or one in another version than {BATCHING}")
"""The answer to a batch that is refused."""
_HANDSHAKES: Final = frozenset(["initialize", "ping"])
"""Methods that only eras with a handshake have; a client may ping before it begins."""


def encode_refusal(line: bytes) -> bytes:
    """The answer to a line that is no message. It has the id of a request if one can be found."""
    said = members(line)
    request_id = as_request_id(said.get("id")) if "method" in said else None
    code = PARSE_ERROR if request_id is None and _method(line) is None else INVALID_REQUEST
    return codec.refusal(request_id, code, f"not a JSON-RPC message of at most {size_text(LINE_LIMIT)}")


def opens_with_handshake(line: bytes) -> bool | None:
    """True if a client whose first line this is opens with a handshake; None: the line does not show it."""
    method = _method(line)
    return method in _HANDSHAKES if isinstance(method, str) else None


def capabilities_in(line: bytes) -> Mapping[str, Any] | None:
    """The capabilities of a client whose first line this is; None: the line does not show them."""
    message = codec.message(line) if len(line) <= SMALL else {}  # no server could be told of what is nested too deep
    params = as_object(message.get("params"))
    said = params if _method(line) == "initialize" else as_object(params.get("_meta"))
    name = "capabilities" if said is params else CLIENT_CAPABILITIES_META_KEY
    return as_object(said[name]) if name in said else None


def _method(line: bytes) -> object:
    """The method of a message; None if it is not JSON, and False if it has no method."""
    if len(line) > SMALL:
        return members(line).get("method")
    try:
        message = codec.decode(line)
    except ValueError:
        return None
    return cast("dict[str, object]", message).get("method", False) if type(message) is dict else False


MOST_ANSWERS: Final = 512 << 20
"""Bytes of answers that may wait for a client to read; beyond that an answer is replaced by an error."""
_UNREAD: Final = f"the answer is lost: {size_text(MOST_ANSWERS)} of answers wait to be read"
LAST_ANSWERS: Final = 60.0
"""Seconds for requests that are under way when the client closes its end, as a shell's pipe does, and still reads what
it is sent."""
_CLIENT_CLOSED: Final = Loss("closed its end")
_LOOK_FIRST, _LOOK_MOST = 0.005, 0.1
"""Seconds between two checks whether all is answered, or the client has stopped reading."""


class ClientStreams(LineStream):
    """The streams of a client, made by `open_client_streams`."""

    def __init__(self, reading: int, writing: int) -> None:
        super().__init__(frame_limit=LINE_LIMIT, cut=True, never_waits=_never_waits(reading))
        self._first: list[bytes] = []
        self._begins = True
        self._fds = reading, writing
        self.capabilities: Mapping[str, Any] | None = None
        """The capabilities of the client, by its first message; None if that is not known."""
        self.closed: bool = False
        """True if the client has closed its end."""
        self.waits: Callable[[], bool] = bool
        """A test of whether the client still waits for an answer."""

    async def opens_with_handshake(self) -> bool:
        """Wait for the first message, which is kept for `read`, and return whether it is of a handshake. Lines before
        it that are no message are refused."""
        while True:
            self._first = self._first or await self._next()
            if not self._first:
                return False
            while self._first:
                opens = opens_with_handshake(self._first[0])
                if opens is not None:
                    self.capabilities = capabilities_in(self._first[0])
                    return opens
                with suppress(trio.BrokenResourceError):
                    self.write_nowait([encode_refusal(self._first.pop(0))])

    async def read(self) -> list[bytes]:
        """The next lines. A last line without a newline counts: a pipe may end in one."""
        first, self._first = self._first, []
        return first or await self._next()

    async def _next(self) -> list[bytes]:
        lines = await super().read() or self._lines.split(b"\n")
        if self._begins and lines:
            lines[0], self._begins = lines[0].removeprefix(BYTE_ORDER_MARK), False
        return lines

    def _read_fd(self) -> int:
        return self._fds[0]

    def _write_fd(self) -> int:
        return self._fds[1]

    def _refused(self) -> None:
        self._ended = self._ending = True
        trio.lowlevel.notify_closing(self._read_fd())

    async def taken(self) -> None:
        """Return at once: nothing shows what the client has read."""
        await trio.lowlevel.checkpoint()

    async def loss(self) -> Loss:
        """The loss of a client that has closed its end. Waits until it has all answers."""
        self.closed = True
        with trio.move_on_after(LAST_ANSWERS):
            await self.answered()
        await trio.lowlevel.checkpoint()
        return _CLIENT_CLOSED

    async def answered(self) -> None:
        """Wait until the client has all answers, or has stopped reading."""
        pause = _LOOK_FIRST
        while self.waits() and self._has_reader():
            await trio.sleep(pause)  # no event announces that a reader has gone
            pause = min(2 * pause, _LOOK_MOST)

    def _has_reader(self) -> bool:
        end = select.poll()
        end.register(self._write_fd(), 0)
        return not (self._deaf or end.poll(0))


def _never_waits(fd: int) -> bool:
    """True if the descriptor can always be read, like a file: the system refuses to wait for such ones."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(fd))


@contextmanager
def open_client_streams() -> Generator[ClientStreams, None, None]:
    """Standard input and output for a client alone, while the block lasts; afterwards they are as they were.

    Meanwhile standard input is empty, and standard output goes to standard error, for anything else that uses them.
    """
    own = [os.dup(fd) for fd in (0, 1)]
    blocking = [os.get_blocking(fd) for fd in own]
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        for fd in own:
            os.set_blocking(fd, False)
        yield ClientStreams(own[0], own[1])
    finally:
        for fd, was, target in zip(own, blocking, (0, 1), strict=True):
            os.set_blocking(fd, was)
            os.dup2(fd, target)
            os.close(fd)


class ClientCarrier(StreamCarrier):
    """The carrier of a client's frames, which answers lines that are no message.

    The messages that wait for a client that does not read are bounded: answers stand in a queue, in the order in which
    they become ready, and notifications that may be lost are lost.
    """

    def __init__(self, streams: ClientStreams) -> None:
        super().__init__(streams)
        self._streams = streams
        self._turn = trio.StrictFIFOLock()
        """Held by the first task that waits for the client to read."""
        self.takes_batches: bool = False
        """True if the client may write several messages as one."""

    def has_gone(self) -> bool:
        """True if the client has closed its end."""
        return self._streams.closed

    async def _take_in(self, hub: Hub) -> bool:
        """Read the next messages. A client that has closed its end still receives answers, and can send none."""
        lines = await self._stream.read()
        if not lines:
            hub.hear_no_more(_CLIENT_CLOSED)
            return False
        hub.hear()
        if not any(map(is_batch, lines)):
            await hub.take_in(lines, self)
            return True
        for line in lines:
            await hub.take_in(await self._messages(line), self)
        return True

    async def _messages(self, line: bytes) -> list[bytes]:
        """The messages of a line; none if it is a batch that is refused."""
        if not is_batch(line):
            return [line]
        try:
            messages = await by_turns(split(line, most=MOST_VALUES))
        except ValueError:
            return [line]
        if self.takes_batches and messages:
            return messages
        self._refuse(NO_BATCH)
        return []

    @property
    def has_room(self) -> bool:
        """True if a message can be sent without a long wait, and overtakes no task that waits for room."""
        return self.outbox.has_room and not self._turn.locked()

    async def room(self) -> None:
        """Wait until there is room. The caller sends its message at once, without another wait in between."""
        if not self.has_room:
            async with self._turn:
                await self.outbox.room()

    async def answer(self, frame: bytes) -> None:
        """Send an answer, or an error if too many bytes of answers wait."""
        if not self.has_room:
            assert self._hub is not None  # which has read what is answered
            account = self._hub.account
            if account.of(ANSWERS) - self.outbox.owed_bytes + len(frame) > MOST_ANSWERS:
                request_id = as_request_id(members(frame).get("id"))
                frame = codec.error(request_id, INTERNAL_ERROR, _UNREAD, WAS_ANSWERED)
            account.charge(ANSWERS, len(frame))
            try:
                await self.room()
            finally:
                account.give_back(ANSWERS, len(frame))
        self.respond(frame)

    async def heeded(self) -> None:
        """Return at once: the client is read in any case, since it may cancel requests or close its end."""

    def garbled(self, frame: bytes) -> None:
        """Refuse the line, if the client still reads."""
        self._refuse(encode_refusal(frame))

    def _refuse(self, frame: bytes) -> None:
        if self.has_room:
            self.respond(frame)

"""The other end of a wire, under the test's control: it takes as many frames as told, and says what it is told."""

import json
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.messages import Request
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.reply import ReplySlot

GONE = Loss("gone", exit_code=7, stderr_tail="oh no")


class Peer:
    """A `FrameStream` whose far side is the test. Frames cross at once; only `writable` and `read` wait.

    Nobody can guess the ids of requests, so the test knows each by its number, 1 for the first that was begun.
    """

    pid = 4711

    def __init__(self, *, room: float = math.inf) -> None:
        self.room = room
        """How many more frames it takes."""
        self.frames: list[bytes] = []
        """Every frame that was begun, in order."""
        self.writes: list[int] = []
        """How many frames each write began."""
        self.unfinished = False
        self.torn = False
        """Tear the last frame of the next write."""
        self.broken = False
        self.loss_takes = 0.0
        self.on_message: Callable[[Any], None] | None = None
        """Called for each frame as it is begun."""
        self.reads = trio.Event()
        """Set: it reads what it takes at once."""
        self.reads.set()
        self._loss = GONE
        self._takes_more = trio.Event()
        self._batches: deque[list[bytes]] = deque()
        self._news = trio.lowlevel.ParkingLot()
        self._ended = False
        self._ids: list[int] = []
        self._numbered = 0
        """Frames in which ids were looked for."""

    # the stream

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        if self.broken:
            raise trio.BrokenResourceError
        begun = 0 if self.unfinished else int(min(len(frames), self.room))
        self.room -= begun
        self.writes.append(begun)
        if begun and self.torn:
            self.unfinished, self.torn = True, False
        self.frames += frames[:begun]
        if self.on_message is not None:
            for frame in frames[:begun]:
                self.on_message(self._understood(frame))
        return begun

    async def writable(self) -> None:
        while not (self.broken or (self.room and not self.unfinished)):
            await self._takes_more.wait()
        await trio.lowlevel.checkpoint()
        if self.broken:
            raise trio.BrokenResourceError

    async def taken(self) -> None:
        await self.reads.wait()

    async def read(self) -> list[bytes]:
        while not self._batches and not self._ended:
            await self._news.park()
        return self._batches.popleft() if self._batches else []

    async def loss(self) -> Loss:
        await trio.sleep(self.loss_takes)
        return self._loss

    # the test's side

    @property
    def heard(self) -> list[Any]:
        """All that was begun, as messages."""
        return [self._understood(frame) for frame in self.frames]

    def heard_of(self, method: str) -> list[Any]:
        return [message for message in self.heard if message.get("method") == method]

    def take(self, room: float = math.inf) -> None:
        """Finish what was begun, and take more."""
        self.room, self.unfinished = room, False
        self._wake()

    def close_its_ears(self) -> None:
        """Writes fail from now on; it may still speak."""
        self.broken = True
        self._wake()

    def say(self, *messages: Any) -> None:
        """One read: dicts are messages, lists are batches, bytes are frames as they are."""
        if not messages:
            return  # an empty read would be the end
        self._batches.append([m if isinstance(m, bytes) else json.dumps(self._written(m)).encode() for m in messages])
        self._news.unpark_all()

    def id_of(self, number: Any) -> Any:
        """The id of a request; what is no number of one is as it is."""
        self._number()
        is_number = str(number).isdecimal() and 0 < int(number) <= len(self._ids)
        return type(number)(self._ids[int(number) - 1]) if is_number else number

    def end(self, loss: Loss = GONE) -> None:
        self._loss, self._ended = loss, True
        self._news.unpark_all()

    def _understood(self, frame: bytes) -> Any:
        self._number()
        return _with_ids(json.loads(frame), self._number_of, asked=True)

    def _written(self, said: Any) -> Any:
        if isinstance(said, list):
            return [self._written(message) for message in said]
        return _with_ids(said, self.id_of, asked=False)

    def _number_of(self, request_id: Any) -> Any:
        return self._ids.index(request_id) + 1 if request_id in self._ids else request_id

    def _number(self) -> None:
        """Number the requests among the frames that were begun since."""
        messages = [json.loads(frame) for frame in self.frames[self._numbered :]]
        self._ids += [m["id"] for m in messages if "method" in m and isinstance(m.get("id"), int)]
        self._numbered = len(self.frames)

    def _wake(self) -> None:
        event, self._takes_more = self._takes_more, trio.Event()
        event.set()


def _with_ids(message: dict[str, Any], replace: Callable[[Any], Any], *, asked: bool) -> dict[str, Any]:
    """A message with the id that names a request of ours replaced; `asked`: it comes from where they do."""
    if "id" in message and ("method" in message) is asked:
        message = message | {"id": replace(message["id"])}
    key = "requestId" if asked else "progressToken"
    params = message.get("params")
    if isinstance(params, dict):
        if message.get("method") in ("notifications/cancelled", "notifications/progress") and key in params:
            message = message | {"params": params | {key: replace(params[key])}}
        elif asked and "progressToken" in params.get("_meta", {}):
            meta = params["_meta"] | {"progressToken": replace(params["_meta"]["progressToken"])}
            message = message | {"params": params | {"_meta": meta}}
    return message


def result(request_id: Any, value: object = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": {} if value is None else value}


def error(request_id: Any, code: int, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, **more}}


def notice(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def request(request_id: Any, method: str, params: Any = None) -> dict[str, Any]:
    return notice(method, params) | {"id": request_id}


class PlainCodec:
    """Writes the parameters that it was made with, and nothing of an era."""

    def __init__(self, params: dict[str, Any], method: str = "tools/call") -> None:
        self.params, self.method = params, method

    def frame(self, request_id: int, params: bytes, meta: object, *, wants_progress: bool = False) -> bytes:
        stamp = {"_meta": {"progressToken": request_id}} if wants_progress else {}
        return codec.request(request_id, self.method, self.params | stamp)

    def headers(self, params: bytes) -> dict[str, str]:
        return {}

    def made_task(self, raw: dict[str, Any]) -> None:
        """It follows no tasks."""


def post(slot: ReplySlot | None = None, method: str = "tools/call", **params: Any) -> Request:
    """A call for `Endpoint.post`."""
    plain: Any = PlainCodec(params, method)  # its results are not read
    return Request("lab", method, "", b"{}", {}, slot or ReplySlot(), codec=plain)


async def no_request(_context: object, method: str, _params: object) -> Any:
    raise AssertionError(f"the peer asked {method}")


async def no_notice(_context: object, method: str, _params: object) -> None:
    raise AssertionError(f"the peer told {method}")


async def no_progress(_progress: object, _total: object, _message: object) -> None:
    raise AssertionError("nobody reported progress")


@asynccontextmanager
async def running(
    peer: Peer, on_request: Any = no_request, on_notify: Any = no_notice, intercept: Any = None
) -> AsyncGenerator[Endpoint, None]:
    """An endpoint that runs, without a session above it."""
    endpoint = Endpoint(StreamCarrier(peer))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, on_request, on_notify, intercept)
        yield endpoint
        nursery.cancel_scope.cancel()


class Passes:
    """Another task, and how often it got its turn."""

    count = 0

    async def run(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1

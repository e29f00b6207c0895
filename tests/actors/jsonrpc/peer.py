"""The other end of a wire, under the test's control: it takes as many frames as told, and says what it is told."""

import json
import math
from collections import deque
from contextlib import asynccontextmanager

import trio

from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.dispatcher import Endpoint
from mcp_nursery.actors.jsonrpc.pending import Post
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.reply import ReplySlot

GONE = Loss("gone", exit_code=7, stderr_tail="oh no")


class Peer:
    """A `FrameStream` whose far side is the test. Frames cross at once; only `writable` and `read` wait.

    Nobody can guess the ids of requests, so the test knows each by its number, 1 for the first that was begun.
    """

    pid = 4711

    def __init__(self, *, room=math.inf):
        self.room = room
        """How many more frames it takes."""
        self.frames = []
        """Every frame that was begun, in order."""
        self.writes = []
        """How many frames each write began."""
        self.unfinished = False
        self.torn = False
        """Tear the last frame of the next write."""
        self.broken = False
        self.loss_takes = 0.0
        self.on_message = None
        """Called for each frame as it is begun."""
        self.reads = trio.Event()
        """Set: it reads what it takes at once."""
        self.reads.set()
        self._loss = GONE
        self._takes_more = trio.Event()
        self._batches = deque()
        self._news = trio.lowlevel.ParkingLot()
        self._ended = False
        self._ids = []
        self._numbered = 0
        """Frames in which ids were looked for."""

    # the stream

    def write_nowait(self, frames):
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

    async def writable(self):
        while not (self.broken or (self.room and not self.unfinished)):
            await self._takes_more.wait()
        await trio.lowlevel.checkpoint()
        if self.broken:
            raise trio.BrokenResourceError

    async def taken(self):
        await self.reads.wait()

    async def read(self):
        while not self._batches and not self._ended:
            await self._news.park()
        return self._batches.popleft() if self._batches else []

    async def loss(self):
        await trio.sleep(self.loss_takes)
        return self._loss

    # the test's side

    @property
    def heard(self):
        """All that was begun, as messages."""
        return [self._understood(frame) for frame in self.frames]

    def heard_of(self, method):
        return [message for message in self.heard if message.get("method") == method]

    def take(self, room=math.inf):
        """Finish what was begun, and take more."""
        self.room, self.unfinished = room, False
        self._wake()

    def close_its_ears(self):
        """Writes fail from now on; it may still speak."""
        self.broken = True
        self._wake()

    def say(self, *messages):
        """One read: dicts are messages, lists are batches, bytes are frames as they are."""
        if not messages:
            return  # an empty read would be the end
        self._batches.append([m if isinstance(m, bytes) else json.dumps(self._written(m)).encode() for m in messages])
        self._news.unpark_all()

    def id_of(self, number):
        """The id of a request; what is no number of one is as it is."""
        self._number()
        is_number = str(number).isdecimal() and 0 < int(number) <= len(self._ids)
        return type(number)(self._ids[int(number) - 1]) if is_number else number

    def end(self, loss=GONE):
        self._loss, self._ended = loss, True
        self._news.unpark_all()

    def _understood(self, frame):
        self._number()
        return _with_ids(json.loads(frame), self._number_of, asked=True)

    def _written(self, said):
        if isinstance(said, list):
            return [self._written(message) for message in said]
        return _with_ids(said, self.id_of, asked=False)

    def _number_of(self, request_id):
        return self._ids.index(request_id) + 1 if request_id in self._ids else request_id

    def _number(self):
        """Number the requests among the frames that were begun since."""
        messages = [json.loads(frame) for frame in self.frames[self._numbered :]]
        self._ids += [m["id"] for m in messages if "method" in m and isinstance(m.get("id"), int)]
        self._numbered = len(self.frames)

    def _wake(self):
        event, self._takes_more = self._takes_more, trio.Event()
        event.set()


def _with_ids(message, replace, *, asked):
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


def result(request_id, value=None):
    return {"jsonrpc": "2.0", "id": request_id, "result": {} if value is None else value}


def error(request_id, code, message="no", **more):
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, **more}}


def notice(method, params=None):
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def request(request_id, method, params=None):
    return notice(method, params) | {"id": request_id}


def post(slot=None, method="tools/call", **params):
    """A call for `Endpoint.post`."""
    return Post(slot or ReplySlot(), lambda request_id: codec.request(request_id, method, params))


async def no_request(_context, method, _params):
    raise AssertionError(f"the peer asked {method}")


async def no_notice(_context, method, _params):
    raise AssertionError(f"the peer told {method}")


async def no_progress(_progress, _total, _message):
    raise AssertionError("nobody reported progress")


@asynccontextmanager
async def running(peer, on_request=no_request, on_notify=no_notice, intercept=None):
    """An endpoint that runs, without a session above it."""
    endpoint = Endpoint(StreamCarrier(peer))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run, on_request, on_notify, intercept)
        yield endpoint
        nursery.cancel_scope.cancel()


class Passes:
    """Another task, and how often it got its turn."""

    count = 0

    async def run(self):
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1

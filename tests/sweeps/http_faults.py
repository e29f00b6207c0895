"""What only HTTP can do in the place of an answer: statuses, redirects, bodies of other kinds."""

from collections.abc import Callable

from .faults import Fault, come_back, on_http, streams, wait, whole
from .http_peers import STREAM, HttpPeer, chunk, event, response
from .peers import Exchange, Peer, Script, dumps

STATUSES = [202, 204, 206, 400, 401, 403, 404, 405, 409, 410, 413, 415, 421, 429, 500, 501, 502, 503, 504, 599]
NOT_AUTHORISED = 401
"""It says that nothing was done: a server that did it all the same would be lying, which no delivery survives."""


Making = Callable[[Exchange], bytes]
"""The response to an exchange."""
Target = Callable[[HttpPeer], str | None]
"""Where a redirect points."""


def responding(make: Making, *, executed: bool, held: bool = False, shut: bool = False) -> Script:
    """A response of HTTP in the place of an answer, before or after the call is executed."""

    async def script(exchange: Exchange) -> None:
        await exchange.hear()
        if executed:
            exchange.execute()
        said = make(exchange)
        if held:
            await wait(exchange)
        if shut:
            exchange.peer.refuse()
            exchange.peer.nursery.start_soon(come_back, exchange.peer)
        await exchange.link.send(said)
        exchange.reached.set()
        if b"connection: close" in said:
            exchange.link.close()

    return script


def _status(status: int, *, told: bool) -> Making:
    def make(exchange: Exchange) -> bytes:
        assert exchange.asked is not None
        error = {"jsonrpc": "2.0", "id": exchange.asked.message["id"], "error": {"code": -32000, "message": "no"}}
        return response(status, dumps(error) if told and status not in (202, 204) else b"")

    return make


def _redirect(
    status: int, where: Callable[[HttpPeer], str | None], *, last: bool = False
) -> Callable[[Exchange], bytes]:
    def make(exchange: Exchange) -> bytes:
        peer = exchange.peer
        assert isinstance(peer, HttpPeer)
        location = where(peer)
        return response(status, more=b"" if location is None else b"location: %s\r\n" % location.encode(), last=last)

    return make


TARGETS: dict[str, Target] = {
    "within the origin": lambda peer: "/moved",
    "round and round": lambda peer: "/loop",
    "to another origin": lambda peer: f"http://127.0.0.1:{peer.other_port}/moved",
    "to nobody": lambda peer: "http://127.0.0.1:1/moved",
    "to nowhere": lambda peer: None,
    "to nonsense": lambda peer: "http://[",
}


def _http() -> list[Fault]:
    rows = []
    for executed in (True, False):
        done = "executed" if executed else "not executed"
        for status in STATUSES:
            if executed and status == NOT_AUTHORISED:
                continue
            for told in (True, False):
                # A 202 to a post of SSE promises an answer on the stream.
                applies = _in_bodies if status < 300 else on_http
                name = f"{status} {'with' if told else 'without'} a word, {done}"
                rows.append(
                    whole(name, responding(_status(status, told=told), executed=executed), ends=True, applies=applies)
                )
        for status in (300, 301, 302, 303, 304, 307, 308):
            for target, where in TARGETS.items():
                for held in (False, True):
                    name = f"{status} {target}, {done}{', when it is over' if held else ''}"
                    script = responding(_redirect(status, where), executed=executed, held=held)
                    rows.append(whole(name, script, ends=not held, applies=on_http))
            script = responding(
                _redirect(status, TARGETS["within the origin"], last=True), executed=executed, shut=True
            )
            rows.append(whole(f"{status} and refused, {done}", script, ends=True, applies=on_http))
    return rows


def _resumable(exchange: Exchange) -> bytes:
    return STREAM % b"" + chunk(b"id: 1\nretry: 10\ndata: \n\n") + b"0\r\n\r\n"


def _others(exchange: Exchange) -> bytes:
    return STREAM % b"" + chunk(b": a comment\n\n") + chunk(event(b"{}", b"other")) + b"0\r\n\r\n"


def _in_bodies(peer: Peer) -> bool:
    return peer.bodies_end


def _body(name: str, said: bytes, *, ends: bool = True, only_streams: bool = False) -> Fault:
    script = responding(lambda _: said, executed=True)
    return whole(name, script, ends=ends, applies=streams if only_streams else _in_bodies)


_EMPTY_EVENT = chunk(b"id: 1\nretry: 10\ndata: \n\n")
_OTHERS = chunk(b": a comment\n\n") + chunk(event(b"{}", b"other"))

HTTP = [
    *_http(),
    _body("a stream to be resumed", STREAM % b"" + _EMPTY_EVENT + b"0\r\n\r\n", only_streams=True),
    _body("events that are no messages", STREAM % b"" + _OTHERS + b"0\r\n\r\n", only_streams=True),
    _body("a page", response(200, b"<p>", b"text/html")),
    _body("a body of no kind", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
    _body("no HTTP", b"SSH-2.0-x\r\n\r\n"),
    _body("only 1xx", b"HTTP/1.1 100 Go on\r\n\r\n" * 3, ends=False),
]

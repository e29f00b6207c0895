"""What a peer of the fuzzer says: pieces of bytes, most of them nearly right, for each kind of wire.

A piece may hold `$ANSWER`, the message that would be right, and `$ID`, the request's id. Both are filled in when the
request is there.
"""

import gzip
from functools import cache

from hypothesis import strategies as st

from ..lab.hostile import mutated, mutations
from ..lab.hostile_words import BROKEN, UNASKED, WORST, dumps
from ..sweeps.http_peers import STREAM, chunk, event, response
from ..sweeps.stream_peers import frame

ANSWER, ID = b"$ANSWER", b"$ID"

Pieces = st.SearchStrategy[bytes]


@cache
def bomb(size: int) -> bytes:
    """So many zeros, packed."""
    return gzip.compress(bytes(size))


def _bytes(value: object) -> bytes:
    return dumps(value).encode("utf-8", "surrogatepass")


_unasked = st.builds(
    mutated, st.sampled_from([{"jsonrpc": "2.0", **one} for one in UNASKED]), st.lists(mutations, max_size=2)
)
_result = {"content": [{"type": "text", "text": "x"}], "resultType": "complete"}
_nearly = st.builds(
    mutated, st.just({"jsonrpc": "2.0", "id": "$ID", "result": _result}), st.lists(mutations, min_size=1, max_size=3)
)
messages: Pieces = st.one_of(
    st.just(ANSWER),
    st.just(ANSWER),
    _nearly.map(lambda one: _bytes(one).replace(b'"$ID"', ID)),
    _unasked.map(_bytes),
    st.sampled_from(WORST).map(_bytes),
    st.sampled_from(BROKEN),
    st.binary(max_size=40),
)
"""What may be a message."""


def cut(pieces: Pieces) -> Pieces:
    """One of them, whole or not."""

    @st.composite
    def some(draw: st.DrawFn) -> bytes:
        piece = draw(pieces)
        how = draw(st.sampled_from(["whole"] * 6 + ["begun", "ended", "changed"]))
        place = draw(st.integers(0, 400)) % (len(piece) + 1)
        if how == "begun":
            return piece[:place]
        if how == "ended":
            return piece[place:]
        return piece[:place] + draw(st.binary(max_size=3)) + piece[place + 1 :] if how == "changed" else piece

    return some()


# -- standard streams -------------------------------------------------------------------------------------------------

ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\n\n\n", b"", b"\x00\n", b"\x85", b" " * 100_000 + b"\n"])
lines: Pieces = cut(st.builds(lambda message, end: message + end, messages, ends))

# -- WebSockets -------------------------------------------------------------------------------------------------------

kinds = st.sampled_from([1, 1, 1, 1, 2, 0, 8, 9, 10, *range(3, 8), *range(11, 16)])
bits = st.sampled_from([128, 128, 128, 0, 0, 0x40, 0xA0, 0xF0])
closings = st.sampled_from([b"", b"\x03", b"\x03\xe8", b"\x03\xed", b"\xff\xff", b"\x03\xe8\xff\xfe", b"\x00\x00bye"])
heads = st.sampled_from([b"\x81\x7f", b"\x81\xff", b"\x01\x7e", b"\x88\x7f"])
frames: Pieces = cut(
    st.one_of(
        messages.map(frame),
        st.builds(lambda data, kind, first: frame(data[:60_000], kind, first), messages, kinds, bits),
        st.builds(frame, closings, st.sampled_from([8, 9, 10])),
        st.builds(bytes.__add__, heads, st.binary(max_size=8)),
        st.integers(1, 3000).map(lambda count: frame(b"", 1, 0) + frame(b"", 0, 0) * count),
        st.integers(1, 3000).map(lambda count: frame(b"x", 9) * count),
    )
)  # fmt: skip

# -- HTTP -------------------------------------------------------------------------------------------------------------

statuses = st.sampled_from([200, 200, 200, 200, 202, 204, 206, 304, 400, 401, 403, 404, 409, 429, 500, 502, 503, 999])
types = st.sampled_from(
    [
        *(b"application/json", b"application/json", b"application/json; charset=utf-16", b"text/event-stream"),
        *(b"text/html", b"", b"application/json\r\ncontent-type: text/event-stream", b"\xff", b"APPLICATION/JSON"),
    ]
)
headers = st.sampled_from(
    [
        *(b"", b"", b"", b"connection: close\r\n", b"content-length: 5\r\n", b"content-length: -1\r\n"),
        *(b"content-length: " + b"9" * 400 + b"\r\n", b"transfer-encoding: chunked\r\n", b"content-encoding: gzip\r\n"),
        *(
            b"transfer-encoding: gzip, chunked\r\n",
            b"content-encoding: br, zstd, nonsense\r\n",
            b": x\r\n",
            b"a b: c\r\n",
        ),
        *(
            b"mcp-session-id: \x7f\r\n",
            b"mcp-session-id: a\r\nmcp-session-id: b\r\n",
            b"location: /moved\r\n",
            b"location: \r\n",
        ),
        *(
            b'www-authenticate: Bearer resource_metadata="http://["\r\n',
            b"x: " + b"y" * 200_000 + b"\r\n",
            b" folded\r\n",
        ),
        *(b"retry-after: " + b"9" * 30 + b"\r\n", b"set-cookie: a=b; domain=\xff\r\n", b"x: y\r\n" * 2000),
    ]
)
bodies = st.one_of(
    messages,
    messages.map(gzip.compress),
    st.lists(messages, max_size=3).map(b"".join),
    st.sampled_from([b"\xef\xbb\xbf" + ANSWER, ANSWER + b"\n" * 50_000, b"[" + ANSWER + b"]"]),
)
redirects = st.builds(
    lambda status, where: response(status, more=b"location: " + where + b"\r\n"),
    st.sampled_from([300, 301, 302, 303, 307, 308]),
    st.sampled_from(
        [b"/moved", b"/loop", b"//127.0.0.1:1/", b"http://[", b"\xff", b"ftp://x/", b"", b"?" + b"a" * 9000]
    ),
)


def _with_length(status: int, kind: bytes, more: bytes, body: bytes, lie: int) -> bytes:
    size = b"content-length: %d\r\n" % max(0, len(body) + lie)
    return b"HTTP/1.1 %d Said\r\ncontent-type: %s\r\n%s%s\r\n%s" % (status, kind, size, more, body)


def _to_the_end(status: int, kind: bytes, more: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Said\r\ncontent-type: %s\r\n%s\r\n%s" % (status, kind, more, body)


packed = st.sampled_from([1000, 30_000_000]).map(
    lambda size: _with_length(200, b"application/json", b"content-encoding: gzip\r\n", bomb(size), 0)
)
status_lines = st.sampled_from(
    [b"HTTP/1.1 200\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 100 Go on\r\n\r\n", b"\r\n\r\n"]
)
documents: Pieces = cut(
    st.one_of(
        bodies.map(lambda body: response(200, body)),
        st.builds(_with_length, statuses, types, headers, bodies, st.sampled_from([0, 0, 0, 0, 1, -1, 1000])),
        st.builds(_to_the_end, statuses, types, headers, bodies),
        redirects,
        status_lines,
        packed,
        st.binary(max_size=60),
    )
)

# -- events -----------------------------------------------------------------------------------------------------------

fields = st.one_of(
    messages.map(lambda data: b"data: " + data),
    st.sampled_from(
        [
            *(b"id: 1", b"id: \x00", b"id", b"event: message", b"event: endpoint", b"event: error", b"retry: 10"),
            *(
                b"retry: " + b"9" * 5000,
                b"retry: x",
                b": a comment",
                b"data",
                b"data:",
                b"\xef\xbb\xbfdata: {}",
                b"\xff",
            ),
            *(b"data: /messages", b"data: http://127.0.0.1:1/", b"x" * 100_000, b"data: " + b"[" * 20_000),
        ]
    ),
)
line_ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\r"])
loose_events = st.builds(
    lambda several, end: b"".join(one + end for one in several) + end, st.lists(fields, max_size=4), line_ends
)
events: Pieces = cut(st.one_of(messages.map(event), loose_events, st.binary(max_size=30)))
sizes = st.sampled_from([b"0", b"-1", b"g", b"7fffffffffffffff", b"5;x=y", b"", b" 5"])
chunks: Pieces = st.one_of(
    events.map(chunk),
    events.map(chunk),
    st.just(b"0\r\n\r\n"),
    st.builds(lambda size, data: size + b"\r\n" + data + b"\r\n", sizes, events),
)
streams: Pieces = st.one_of(
    st.lists(chunks, max_size=4).map(lambda several: STREAM % b"" + b"".join(several)),
    st.lists(chunks, max_size=4).map(lambda several: STREAM % b"" + b"".join(several) + b"0\r\n\r\n"),
    st.builds(lambda data: _to_the_end(200, b"text/event-stream", b"connection: close\r\n", data), events),
    documents,
)
posted: Pieces = st.one_of(st.just(response(202)), documents)
"""What a post is acknowledged with, where the answer comes on a stream."""

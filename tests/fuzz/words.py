"""What a peer of the fuzzer says: pieces of bytes, most of them nearly right, for each kind of wire.

A piece may hold `$ANSWER`, the message that would be right, `$ID`, the request's id, `$SECRET`, what a header of the
client holds, and `$ORIGIN`, where an issuer listens. They are filled in when the request is there.
"""

import gzip
import zlib
from functools import cache

from hypothesis import strategies as st

from ..lab.hostile import mutated, mutations
from ..lab.hostile_words import BROKEN, UNASKED, WORST, dumps
from ..sweeps.http_peers import STREAM, chunk, event, response
from ..sweeps.stream_peers import frame

ANSWER, ID, SECRET, ORIGIN = b"$ANSWER", b"$ID", b"$SECRET", b"$ORIGIN"

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
numbers = st.sampled_from(
    [
        b"0",
        b"1",
        b"60",
        b"-5",
        b"1e3",
        b"1e400",
        b"9" * 30,
        b"1.5",
        b'"60"',
        b"null",
        b"true",
        b"[]",
        b"-0.0",
        b"1e-320",
    ]
)
"""What stands in the place of seconds or milliseconds in JSON."""
times = st.sampled_from(
    [
        *(b"0", b"1", b"60", b"-5", b"1e3", b"1e400", b"9" * 5000, b"nan", b"inf", b"soon", b"", b"1.5", b"60, 90"),
        *(b"Thu, 26 Nov 2026 10:00:00 GMT", b"Fri, 31 Dec 9999 23:59:59 GMT", b"Thu, 01 Jan 1970 00:00:00 -9999"),
        *(b"Thu, 26 Nov 99999 10:00:00 GMT", b"Thu, 32 Foo 2026 99:99:99 GMT", b"\xd9\xa6\xd9\xa0", b",,,", b'"60"'),
    ]
)
"""What stands in their place in a header, or an event."""
_timed = numbers.map(
    lambda number: (
        b'{"jsonrpc":"2.0","id":$ID,"result":{"tools":[],"content":[],"resultType":"complete","ttlMs":%s}}' % number
    )
)
_quoting = st.sampled_from(
    [
        *(b"your key $SECRET has expired", b'{"error":"no $SECRET"}', b'{"error":{"message":"bad key: $SECRET"}}'),
        *(
            b'{"jsonrpc":"2.0","id":$ID,"error":{"code":-32000,"message":"$SECRET","data":"$SECRET"}}',
            b"<p>$SECRET</p>",
        ),
        *(b'{"detail":["a\\nb\\u202e$SECRET"]}', b"x" * 9990 + b"$SECRET", b'"$SECRET"', b'{"error_description":7}'),
    ]
)
messages: Pieces = st.one_of(
    st.just(ANSWER),
    st.just(ANSWER),
    _timed,
    _quoting,
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

statuses = st.sampled_from(
    [
        *(200, 200, 200, 200, 201, 202, 204, 206, 226, 304, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 413),
        *(418, 421, 425, 426, 429, 431, 451, 500, 501, 502, 503, 504, 505, 511, 599, 600, 999, 0),
    ]
)
_type = st.sampled_from(
    [
        *(b"application/json", b"application/json", b"application/json; charset=utf-16", b"text/event-stream"),
        *(b"text/html", b"", b"application/json\r\ncontent-type: text/event-stream", b"\xff", b"APPLICATION/JSON"),
    ]
)
types = st.one_of(_type, _type, st.builds(lambda one, two: one + b"\r\ncontent-type: " + two, _type, _type))
_header = st.one_of(
    times.map(lambda said: b"retry-after: " + said + b"\r\n"),
    st.builds(lambda one, two: b"retry-after: " + one + b"\r\ndate: " + two + b"\r\n", times, times),
    st.sampled_from(
        [b"gzip", b"deflate", b"br", b"zstd", b"identity", b"x-gzip", b"gzip, gzip", b"", b"*", b"\xff", b"utf-16"]
    ).map(lambda said: b"content-encoding: " + said + b"\r\n"),
    st.sampled_from(
        [
            *(b"content-length: 5\r\ncontent-length: 6\r\n", b"content-length: 0x10\r\n", b"content-length: 5, 5\r\n"),
            *(
                b"content-length: +5\r\n",
                b"content-length: \r\n",
                b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
            ),
            *(b"", b"", b"", b"connection: close\r\n", b"content-length: 5\r\n", b"content-length: -1\r\n"),
            *(
                b"content-length: " + b"9" * 400 + b"\r\n",
                b"transfer-encoding: chunked\r\n",
                b"content-encoding: gzip\r\n",
            ),
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
            *(
                b"set-cookie: a=b; domain=\xff\r\n",
                b"x: y\r\n" * 2000,
                b"www-authenticate: Basic\r\n",
                b"upgrade: h2c\r\n",
            ),
            *(b'www-authenticate: Bearer error="insufficient_scope", scope="\xff"\r\n', b"keep-alive: timeout=-1\r\n"),
        ]
    ),
)
headers = st.lists(_header, max_size=2).map(b"".join)
bodies = st.one_of(
    messages,
    messages.map(gzip.compress),
    messages.map(zlib.compress),
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


def documents_of(bodies: Pieces) -> Pieces:
    """Answers over HTTP with these bodies, and some without."""
    return cut(
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


documents: Pieces = documents_of(bodies)

# -- events -----------------------------------------------------------------------------------------------------------

fields = st.one_of(
    messages.map(lambda data: b"data: " + data),
    times.map(lambda said: b"retry: " + said),
    st.sampled_from(
        [
            *(b"id: 1", b"id: \x00", b"id", b"event: message", b"event: endpoint", b"event: error", b"retry: 10"),
            *(
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

# -- issuers of tokens ------------------------------------------------------------------------------------------------

_at = "$ORIGIN"
_RIGHT: dict[str, dict[str, object]] = {
    "/.well-known/oauth-protected-resource/mcp": {"resource": f"{_at}/mcp", "authorization_servers": [_at]},
    "/.well-known/oauth-authorization-server": {
        "issuer": _at,
        "authorization_endpoint": f"{_at}/authorize",
        "token_endpoint": f"{_at}/token",
        "registration_endpoint": f"{_at}/register",
        "jwks_uri": f"{_at}/keys",
        "code_challenge_methods_supported": ["S256"],
    },
    "/register": {"client_id": "me", "client_secret": "client-5ecret", "redirect_uris": ["http://127.0.0.1/"]},
    "/token": {
        "access_token": "access-5ecret",
        "refresh_token": "refresh-5ecret",
        "token_type": "Bearer",
        "expires_in": 3600,
    },
    "/keys": {"keys": [{"kty": "RSA", "kid": "rsa", "use": "sig", "n": "AQAB", "e": "AQAB"}]},
}
_lifetimes = numbers.map(
    lambda number: b'{"access_token":"access-5ecret","token_type":"Bearer","expires_in":%s}' % number
)
_refusals = st.sampled_from(
    [
        *(
            b'{"error":"invalid_client"}',
            b'{"error":"invalid_grant","error_description":"client-5ecret"}',
            b"<p>no</p>",
        ),
        *(b'{"error":"slow_down"}', b'{"error":"\\u001b[2J code-5ecret"}', b'{"error":{"a":1}}', b'["access-5ecret"]'),
    ]
)


def _said_at(place: str) -> Pieces:
    right = _RIGHT[place]
    nearly = st.lists(mutations, max_size=2).map(lambda changes: _bytes(mutated(right, changes)))
    return documents_of(st.one_of(nearly, nearly, _lifetimes, _refusals, bodies))


_challenges = st.sampled_from(
    [
        *(b"Bearer", b"Basic", b"", b"Bearer error=invalid_token", b'Bearer resource_metadata="$ORIGIN/elsewhere"'),
        *(b'Bearer resource_metadata="http://["', b'Bearer scope="' + b"a " * 5000 + b'"', b'Bearer scope="\xff"'),
        *(b'Bearer error="insufficient_scope", scope="admin"', b"Bearer ,,,=", b'Bearer realm="\\', b"DPoP, Bearer"),
    ]
)
issuers: st.SearchStrategy[dict[str, bytes]] = st.fixed_dictionaries(
    {},
    optional={
        **{place: _said_at(place) for place in _RIGHT},
        "/mcp": st.one_of(
            st.builds(
                lambda status, challenge: response(status, more=b"www-authenticate: %s\r\n" % challenge),
                st.sampled_from([401, 401, 403]),
                _challenges,
            ),
            documents,
        ),
    },
)
"""What an issuer, and the server that wants its tokens, say at each place."""

# -- the environment --------------------------------------------------------------------------------------------------

_schemes = st.sampled_from(
    ["http://", "http://", "https://", "socks5://", "socks5h://", "socks4://", "", "HTTP://", "ftp://", "://", "http:/"]
)
_users = st.sampled_from(["", "", "user:5ecret@", "5ecret@", ":5ecret@", "u%40x:5ecret%2F@", "a:5ecret@b:5ecret@", "@"])
_hosts = st.sampled_from(
    [
        *("127.0.0.1", "127.0.0.1", "127.0.0.1", "localhost", "[::1]", "[::1", "::1", "", "proxy.invalid", "0x7f.1"),
        *(
            "a" * 300,
            "a..b",
            "b\u00fccher.invalid",
            "xn--a.invalid",
            "127.0.0.1%00",
            "a b",
            "[v1.x]",
            "\udcff",
            "-",
            "*",
        ),
    ]
)
_ports = st.sampled_from(
    [":$PORT", ":$PORT", ":1", ":0", ":99999", ":", ":port", ":-1", ":\u0661", "", "/5ecret", ":80/x?y#z"]
)
_proxies = st.one_of(
    st.builds(lambda *parts: "".join(parts), _schemes, _users, _hosts, _ports),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12),
)
_exceptions = st.lists(
    st.sampled_from(
        [
            *("<-loopback>", "*", "far.test", ".far.test", "*.test", "far.test:443", "127.0.0.0/8", "127.0.0.1", "::1"),
            *(
                "[::1]:80",
                "10.0.0.0/99",
                "/",
                ":",
                " ",
                "https://far.test",
                "\u00fc",
                "far.test:99999999999",
                "all://",
                "0/0",
            ),
        ]
    ),
    max_size=4,
).map(",".join)
_authorities = st.sampled_from(
    ["absent", "empty", "text", "der", "pipe", ".", "good", "absent:.", "a\nb", "x" * 5000, ":"]
)
_either_case = [str.lower, str.upper]
variables: st.SearchStrategy[dict[str, str]] = st.fixed_dictionaries(
    {},
    optional={
        **{case(f"{name}_proxy"): _proxies for name in ("http", "https", "all") for case in _either_case},
        **{case("no_proxy"): _exceptions for case in _either_case},
        **{f"SSL_CERT_{name}": _authorities.map("$FOLDER/{}".format) for name in ("FILE", "DIR")},
        "REQUEST_METHOD": st.just("GET"),
    },
)
"""Variables, in which `$PORT` is where a proxy of the test listens, and `$FOLDER` has files of several kinds."""

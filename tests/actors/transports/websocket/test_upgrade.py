"""What is shown of a URL, and what a server's answer to the request for a WebSocket means."""

import pytest

from mcp_nursery.actors.secrets import shown_url
from mcp_nursery.actors.transports.websocket.upgrade import HEAD_LIMIT, is_decidable, refusal_of


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://host/mcp", "ws://host/mcp"),
        ("wss://user:hunter2@host:8443/a/b?token=hunter2#hunter2", "wss://host:8443/a/b"),
        ("ws://user@[::1]:80/", "ws://[::1]:80/"),
        ("ws://host:hunter2/", "<malformed>"),
        ("ws://[hunter2/", "<malformed>"),
        ("hunter2", "<malformed>"),
        ("hunter2:hunter2@host/", "<malformed>"),
        ("", "<malformed>"),
    ],
)
def test_no_secret_of_a_url_is_shown(url, shown):
    assert shown_url(url) == shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("head", "decidable"),
    [
        (b"", False),
        (b"HT", False),
        (b"HTTP/1.1 401 No", False),
        (b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\n", False),
        (b"HTTP/1.1 401 No\r\n\r\n", True),
        (b"HTTP/1.1 401 No\n\n", True),
        (b"HX", True),
        (b"\x15\x03\x01", True),
        (b"HTTP/2 400", True),
        (b"HTTP/1.1 " + b"x" * HEAD_LIMIT, True),
    ],
)
def test_when_enough_is_known(head, decidable):
    assert is_decidable(head) == decidable


def answer(status, *headers):
    return "\r\n".join([f"HTTP/1.1 {status}", "Server: x", *headers, "", "body"]).encode()


@pytest.mark.parametrize(
    ("head", "problem", "retriable", "status"),
    [
        (answer("401 Whatever"), "answered 401 Unauthorized and opened no WebSocket", False, 401),
        (answer("403"), "answered 403 Forbidden and opened no WebSocket", False, 403),
        (answer("404"), "answered 404 Not Found and opened no WebSocket", True, 404),
        (answer("429"), "answered 429 Too Many Requests and opened no WebSocket", True, 429),
        (answer("500"), "answered 500 Internal Server Error and opened no WebSocket", True, 500),
        (answer("503"), "answered 503 Service Unavailable and opened no WebSocket", True, 503),
        (answer("599"), "answered 599 and opened no WebSocket", True, 599),
        (answer("200"), "answered 200 OK and opened no WebSocket", False, 200),
        (answer("103"), "answered 103 Early Hints and opened no WebSocket", False, 103),
        (answer("302"), "answered 302 Found and opened no WebSocket", False, 302),
        (
            answer("307", "LOCATION:  https://me:hunter2@other/x?key=hunter2 "),
            "redirects (307) to 'https://other/x', which is not followed: configure that url",
            False,
            307,
        ),
        (
            answer("301", "location: /login?key=hunter2"),
            "redirects (301) to '/login', which is not followed: configure that url",
            False,
            301,
        ),
        (
            answer("101", "Sec-WebSocket-Protocol: chat"),
            "chose the subprotocol 'chat', and only 'mcp' was offered",
            False,
            None,
        ),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP", False, None),
        (
            b"HTTP/1.1 101 Yes\r\n" + b"x" * HEAD_LIMIT,
            "sent more than 64 KiB without an end of its headers",
            False,
            None,
        ),
    ],
)
def test_what_speaks_against_a_websocket(head, problem, retriable, status):
    refusal = refusal_of(head)
    assert (refusal.problem, refusal.retriable, refusal.status) == (problem, retriable, status)
    failure = refusal.failure("ws://host/")
    assert (str(failure), failure.retriable, failure.needs_auth) == (
        f"url 'ws://host/' {problem}",
        retriable,
        status == 401,
    )


@pytest.mark.parametrize("headers", [[], ["Sec-WebSocket-Protocol: mcp"], ["sec-websocket-protocol:mcp "]])
def test_the_offered_subprotocol_or_none_is_taken(headers):
    assert refusal_of(answer("101 Switching Protocols", *headers)) is None


def test_what_follows_the_head_is_not_looked_at():
    assert refusal_of(answer("101") + b"\r\nSec-WebSocket-Protocol: chat\r\n") is None

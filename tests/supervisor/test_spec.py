"""What a spec of a remote server shows, refuses and equals."""

import pytest

from mcp_nursery.supervisor import (
    ConfigError,
    DockerTransport,
    HttpTransport,
    ServerSpec,
    SseTransport,
    StdioTransport,
    WebSocketTransport,
)

REMOTE = [(HttpTransport, "https", "http"), (SseTransport, "https", "sse"), (WebSocketTransport, "wss", "ws")]


@pytest.mark.parametrize(("make", "scheme", "kind"), REMOTE)
def test_a_remote_transport_shows_no_secret(make, scheme, kind):
    """L17: names of headers, and the URL without user, password, query and fragment."""
    transport = make(
        f"{scheme}://me:5ecret@far.example:8443/mcp?key=5ecret#5ecret", headers={"Authorization": "5ecret"}
    )
    assert transport.kind == kind
    shown = repr(ServerSpec("far", transport))
    assert "5ecret" not in shown
    assert f"url='{scheme}://far.example:8443/mcp', headers={{Authorization=…}}" in shown


@pytest.mark.parametrize(("make", "scheme", "kind"), REMOTE)
@pytest.mark.parametrize("url", ["ftp://x", "x", "{}://", "{}://x:99999", "{}://x y", "{}://[x", "${{"])
def test_a_url_that_is_none(make, scheme, kind, url):
    """K2: refused at once, in one line that does not show it."""
    with pytest.raises(ConfigError, match=rf"field 'url': must be a URL that begins with .*{scheme}://") as caught:
        make(url.format(scheme))
    assert "99999" not in str(caught.value)
    assert "x y" not in str(caught.value)


def _some():
    return {"A": "b"}


def _others():
    return {"A": "b"}


@pytest.mark.parametrize(("make", "scheme", "kind"), REMOTE)
def test_remote_transports_are_compared_by_value(make, scheme, kind):
    """L18: a reload restarts what differs; headers given as a function are the same if it is the same."""
    url = f"{scheme}://x/"
    headers = {"A": "b"}
    assert make(url, headers=headers) == make(url, headers={"A": "b"})
    assert make(url, headers=headers) != make(url, headers={"A": "c"})
    assert make(url, headers=_some) == make(url, headers=_some) != make(url, headers=_others)
    one = make(url, headers=headers)
    headers["A"] = "changed"
    assert one.headers == {"A": "b"}


def test_a_url_to_be_expanded_is_shown_as_far_as_it_can_be():
    assert "https://${HOST}/mcp" in repr(HttpTransport("https://${HOST}/mcp?key=${KEY}"))
    assert "https://${HOST}:${PORT}/mcp" in repr(HttpTransport("https://${HOST}:${PORT}/mcp"))
    assert "<malformed>" in repr(HttpTransport("https://[${HOST}/mcp"))


@pytest.mark.parametrize("image", ["", " ", "-v/:/host", "--privileged", "a b", "a\nb", "/a", "é", "a;b", "-v/:/${"])
def test_an_image_that_is_none(image):
    """K2: what could be read as an option of the client is refused, and not shown."""
    with pytest.raises(ConfigError, match="field 'image': ") as caught:
        DockerTransport(image)
    assert not image.strip() or image not in str(caught.value)


def test_a_container_shows_no_secret():
    """L17."""
    transport = DockerTransport("mcp/time", ["5ecret"], {"TOKEN": "5ecret"})
    assert repr(transport) == ("DockerTransport(image='mcp/time', args=<1 arguments>, env={TOKEN=…}, command='docker')")
    assert "5ecret" not in repr(transport.connector(close_grace=1))


@pytest.mark.parametrize("field", ["max_in_flight", "mailbox_size", "max_result_chars"])
def test_what_is_counted_is_at_least_one(field):
    """R10: a server that may be given nothing is a mistake."""
    with pytest.raises(ConfigError, match=f"server 'lab': field '{field}': must be at least 1, not 0"):
        ServerSpec("lab", StdioTransport("x"), **{field: 0})


def test_a_server_has_a_name():
    """K3: everything that is told of a server names it."""
    with pytest.raises(ConfigError, match="a server needs a name"):
        ServerSpec("", StdioTransport("x"))


@pytest.mark.parametrize("wrong", [{"allow": "read_*"}, {"deny": "*_file"}, {"disabled_tools": "remove"}])
def test_one_glob_is_no_list_of_globs(wrong):
    """T5: its letters would be, and `*` is every tool."""
    with pytest.raises(ConfigError, match="put it in brackets"):
        ServerSpec("lab", StdioTransport("x"), **wrong)


def test_one_argument_is_no_list_of_arguments():
    with pytest.raises(ConfigError, match="put it in brackets"):
        StdioTransport("x", args="--secret=hunter22")  # type: ignore[arg-type]

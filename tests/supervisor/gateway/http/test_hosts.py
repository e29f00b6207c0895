"""Which `Host` and `Origin` a gateway over HTTP serves."""

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.cli.serve_http import HttpFront
from mcp_nursery.supervisor.gateway import open_gateway, open_http

SERVED = 405
"""What a request gets that is let in and has a method that nobody has."""


async def statuses(requests, **names):
    """What requests with these headers get."""
    found = []

    async def send(message):
        if message["type"] == "http.response.start":
            found.append(message["status"])

    async with (
        open_supervisor([]) as supervisor,
        open_gateway(supervisor) as gateway,
        open_http(gateway, **names) as application,
    ):
        for lines in requests:
            headers = [(name.encode(), value.encode()) for name, value in lines]
            await application({"type": "http", "method": "PUT", "path": "/mcp", "headers": headers}, None, send)
    return found


async def test_a_host_is_one_name_with_or_without_a_port(autojump_clock):
    wanted = {
        "localhost": SERVED,
        "LocalHost:80": SERVED,
        "localhost:": SERVED,
        "[::1]:8000": SERVED,
        "gw.example.com:8443": SERVED,
        "localhost:80:evil": 421,
        "localhost:evil": 421,
        "[::1]evil": 421,
        "[::1": 421,
        "evil@localhost": 421,
        "localhost/": 421,
        "evil.example": 421,
        "": 421,
    }
    found = await statuses([[("host", each)] for each in wanted], hosts=["localhost", "[::1]", "GW.example.com"])
    assert dict(zip(wanted, found, strict=True)) == wanted
    assert await statuses([[]]) == [421]
    assert await statuses([[("host", "any.example")], [("host", "a:b:c")], []], hosts=None) == [SERVED, 421, SERVED]


async def test_an_origin_is_one_that_is_served(autojump_clock):
    wanted = {
        "http://localhost:3000": SERVED,
        "https://app.example.com": SERVED,
        "https://app.example.com:8443": 403,
        "http://localhost:80:evil": 403,
        "http://localhost/": 403,
        "http://evil@localhost": 403,
        "https://app.example.com, http://localhost": 403,
        "localhost": 403,
        "null": 403,
        "": 403,
    }
    given = [[("host", "localhost"), ("origin", each)] for each in wanted]
    found = await statuses(given, origins=["https://APP.example.com"])
    assert dict(zip(wanted, found, strict=True)) == wanted


async def test_what_is_there_twice_is_refused(autojump_clock):
    host, origin = ("host", "localhost"), ("origin", "http://localhost")
    given = [[("host", "evil.example"), host], [host, host], [host, ("origin", "http://evil.example"), origin]]
    assert await statuses(given) == [400] * 3
    assert await statuses([[host, origin, ("accept", "a"), ("accept", "b")]]) == [SERVED]


HOSTS = ["gw.example.com:8443", "https://gw.example.com", "gw.example.com/", "*.example.com", "::1", "", "gü.example"]
ORIGINS = [
    "https://app.example.com/",
    "https://app.example.com:443",
    "http://app.example.com:80",
    "app.example.com",
    "https://*.example.com",
    "null",
    "*",
]


@pytest.mark.parametrize(
    ("option", "given"),
    [*(("hosts", each) for each in HOSTS), *(("origins", each) for each in ORIGINS)],
)
async def test_a_name_that_no_browser_sends_is_refused(option, given, autojump_clock):
    with pytest.raises(ValueError, match=f"{option} must be .*, such as .*, not "):
        await statuses([], **{option: [given]})
    with pytest.raises(ConfigError, match=f"field '--allowed-{option[:-1]}': must be .*, such as .*, not "):
        HttpFront("127.0.0.1:0", **{f"allowed_{option[:-1]}": [given]})

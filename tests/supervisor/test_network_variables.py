"""The host's variables about the network: which server gets them, and what of them is shown."""

import logging
import os
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from mcp_nursery.actors.process.command import NETWORK, is_about_network
from mcp_nursery.supervisor import DockerTransport, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.config import discovery
from mcp_nursery.supervisor.config.deferred import defer
from mcp_nursery.supervisor.security.redaction import Redactor
from mcp_nursery.supervisor.spec import DockerGatewayTransport

NAMES = [
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY", "PIP_PROXY"),
    *("NPM_CONFIG_PROXY", "NPM_CONFIG_HTTPS_PROXY", "NPM_CONFIG_NOPROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "NPM_CONFIG_CAFILE", "DENO_CERT", "DENO_TLS_CA_STORE"),
    *("PIP_CERT", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"),
    *("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INSECURE_HOST"),
    *("NPM_CONFIG_REGISTRY", "BUN_CONFIG_REGISTRY"),
]
"""Spelled out, so that none comes or goes unnoticed."""

PASSWORD = "hunter2-hunter2"
PROXY = f"http://me:{PASSWORD}@proxy.example:3128"


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    for name in [name for name in os.environ if is_about_network(name)]:
        monkeypatch.delenv(name)


def given(**settings):
    """What a server gets of the host's variables and its own, about the network."""
    environment = StdioTransport("x", **settings).connector(close_grace=1).env
    return {name: value for name, value in environment.items() if is_about_network(name)}


def test_the_list_of_variables():
    """K6: those of the page, too."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "servers.md").read_text()
    (listed,) = re.findall(r"^(HTTP_PROXY\n(?:[A-Z_ \n]+))```$", page.replace(" ", "\n"), re.MULTILINE)
    assert list(NETWORK) == NAMES == listed.split()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("spell", [str.upper, str.lower])
@pytest.mark.parametrize("name", NAMES)
def test_a_server_gets_each_in_both_cases(monkeypatch, name, spell, whole):
    """K6: unless its own `env` has it, in either case: programs prefer one or the other."""
    monkeypatch.setenv(spell(name), "the host's")
    assert given(inherit_env=whole) == {spell(name): "the host's"}
    for own in (name.upper(), name.lower()):
        for value in ("its own", ""):
            assert given(env={own: value}, inherit_env=whole) == {own: value}


def test_a_client_of_a_program_of_cgi_chooses_no_proxy(monkeypatch):
    """K6: a header `Proxy` is `HTTP_PROXY` there."""
    monkeypatch.setenv("HTTP_PROXY", "http://evil.example")
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("REQUEST_METHOD", "GET")
    assert given() == {"https_proxy": PROXY}


@pytest.mark.parametrize("kind", [partial(DockerTransport, "image"), DockerGatewayTransport])
def test_a_container_gets_none(monkeypatch, kind):
    """K2, K6: some clients of its kind pass on proxies on the host's loopback, and the host's files are not in it."""
    for name in NAMES:
        monkeypatch.setenv(name, "the host's")
    connector = kind(env={"A": "1"}).connector(close_grace=1)
    assert connector.client.env == {"A": "1"}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HTTPS_PROXY", PROXY, "http://me:[REDACTED:password]@proxy.example:3128"),
        ("all_proxy", f"me:{PASSWORD}@proxy.example:3128", "me:[REDACTED:config]@proxy.example:3128"),
        ("NPM_CONFIG_REGISTRY", f"https://{PASSWORD}@npm.example/", "https://[REDACTED:config]@npm.example/"),
        (
            "PIP_EXTRA_INDEX_URL",
            f"https://a.example/simple https://me:{PASSWORD}@b.example/simple",
            "https://a.example/simple https://me:[REDACTED:password]@b.example/simple",
        ),
        ("UV_INDEX", f"b=https://b.example/?key={PASSWORD}", "b=https://b.example/?key=[REDACTED:config]"),
        ("NODE_EXTRA_CA_CERTS", "/x1Y2/a3B4c5/d6E7/ca.pem", "/x1Y2/a3B4c5/d6E7/ca.pem"),
        ("NO_PROXY", "localhost,*.corp.example,10.0.0.0/8", "localhost,*.corp.example,10.0.0.0/8"),
    ],
)
def test_what_is_shown_of_a_value(monkeypatch, name, value, shown):
    """T9: all of it but the user and the query of a URL."""
    monkeypatch.setenv(name, value)
    for whole in (False, True):
        redactor = Redactor().also_of(StdioTransport("x", inherit_env=whole))
        assert redactor.text(value) == shown
        assert PASSWORD not in redactor.text(f"it said {PASSWORD}" if PASSWORD in value else value)


def test_an_own_value_is_hidden_as_before(monkeypatch):
    """T9: an entry may have the secret in the path."""
    own = "https://npm.example/Zq8x7Kp2Lm9Vw4Rt6"
    assert own not in Redactor().also_of(StdioTransport("x", env={"NPM_CONFIG_REGISTRY": own})).text(own)


QUOTES = """
import os, sys
password = os.environ["HTTPS_PROXY"].split(":")[2].partition("@")[0]
print("refused:", password, "with", os.environ["SSL_CERT_FILE"], file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("env", [{}, {"OTHER": "${ELSEWHERE}"}])
async def test_a_process_that_quotes_them(monkeypatch, tmp_path, caplog, env):
    """K6, T9: it has them, and what it says of them is shown without what is secret."""
    caplog.set_level(logging.DEBUG)
    authorities = str(tmp_path / "ca.pem")
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("SSL_CERT_FILE", authorities)
    monkeypatch.setenv("ELSEWHERE", "there")
    transport = StdioTransport(sys.executable, ["-I", "-c", QUOTES], env=env)
    origin = discovery.EntryOrigin(str(tmp_path / "servers.json"))
    spec = ServerSpec("s", defer(transport, env=env, server="s", origin=origin), restart="temporary")
    with trio.fail_after(60):
        async with open_supervisor([spec], gate=30) as supervisor, supervisor.stderr("s") as lines:
            (status,) = supervisor.status()
            line = await lines.receive()
    assert line == f"refused: [REDACTED:config] with {authorities}"
    assert line in status.error
    assert PASSWORD not in f"{status}{caplog.text}"

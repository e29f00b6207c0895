"""The gateway as a resource server of OAuth: a real issuer, real keys, real sockets."""

import hashlib
import hmac
import json
import math
import sys
import time
from base64 import urlsafe_b64encode

import httpx2
import jwt
import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.http.retry_after import LONGEST_REST
from mcp_nursery.supervisor.cli.serve_http import HttpFront
from mcp_nursery.supervisor.gateway import OAuthResource, Principal, Refused
from mcp_nursery.supervisor.gateway.auth import issuer
from mcp_nursery.supervisor.gateway.auth.bearer_tokens import add_token

from ..lab.gateways import served_over_http
from ..lab.processes import LAB, eventually
from ..lab.proxies import lab_proxy, only
from ..lab.token_issuer import TokenIssuer, part, pem_of
from .test_gateway_access import BOTH, INITIALIZE, client_with

pytestmark = pytest.mark.slow

LAB_COMMAND = ["--", sys.executable, "-I", "-S", str(LAB)]
URL = "https://tools.example.com"
MCP = f"{URL}/mcp"


@pytest.fixture
def issuing():
    with TokenIssuer() as found:
        yield found


def scope_of(token, path="/mcp"):
    return {"path": path, "headers": [(b"authorization", b"Bearer " + token.encode())]}


async def refusal(resource, token, path="/mcp"):
    with pytest.raises(Refused) as caught:
        await resource.authenticate(scope_of(token, path))
    return caught.value


async def test_a_client_finds_the_issuer_and_comes_in_with_its_token(issuing, tmp_path):
    tokens = tmp_path / "tokens.toml"
    own = add_token(tokens, "program")
    options = ["--oauth-issuer", issuing.url, "--public-url", URL, "--scope", "mcp", "--token-file", str(tokens)]
    with trio.fail_after(60):
        async with served_over_http(*options, *LAB_COMMAND) as (_, url), httpx2.AsyncClient(timeout=60) as http:
            refused = await http.post(url, headers=BOTH, json=INITIALIZE)
            place = f"{URL}/.well-known/oauth-protected-resource/mcp"
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == f'Bearer scope="mcp", resource_metadata="{place}"'
            told = await http.get(place.replace(URL, url.removesuffix("/mcp")))
            assert told.json() == {
                "resource": MCP,
                "authorization_servers": [issuing.url],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["mcp"],
            }
            root = url.replace("/mcp", "/.well-known/oauth-protected-resource")
            assert (await http.get(root)).json() == told.json()
            assert (await http.get(f"{root}/mcp/one")).json()["resource"] == f"{MCP}/one"
            for nowhere in (f"{root}X", f"{root}/mcpX", f"{root}/other"):
                assert (await http.get(nowhere)).status_code == 404
            for token in (issuing.token(MCP), own):
                async with client_with(url, token) as client:
                    assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"
            less = {"authorization": f"Bearer {issuing.token(MCP, scope='other')}"}
            lacking = await http.post(url, headers=BOTH | less, json=INITIALIZE)
            assert lacking.status_code == 403
            assert 'error="insufficient_scope", scope="mcp"' in lacking.headers["www-authenticate"]


async def test_keys_behind_a_proxy(monkeypatch, caplog):
    """K2, K5: the environment counts here, too, and what a proxy says names it."""
    async with lab_proxy(answer=b"HTTP/1.1 502 Bad Gateway\r\n\r\n") as proxy:
        only(monkeypatch, https_proxy=proxy.url)
        resource = OAuthResource("https://issuer.test", URL)
        with TokenIssuer() as issuing:
            assert (await refusal(resource, issuing.token(MCP), "/mcp")).status == 503
    problem = f"the proxy {proxy.url} (https_proxy) did not connect to issuer.test: 502 Bad Gateway"
    assert [record.getMessage() for record in caplog.records] == [
        f"the keys of https://issuer.test cannot be had: {problem}"
    ]


@pytest.mark.parametrize(("kid", "algorithm"), [("rsa", "RS256"), ("rsa", "PS512"), ("ec", "ES256"), ("ed", "EdDSA")])
async def test_who_it_is(issuing, kid, algorithm):
    resource = OAuthResource(issuing.url, URL)
    ends = time.time() + 100
    token = issuing.token([MCP, "other"], kid=kid, algorithm=algorithm, exp=ends)
    principal = await resource.authenticate(scope_of(token))
    assert principal == Principal("ann", key=issuing.url)
    assert principal.expires == ends + issuer.LEEWAY
    assert token not in repr(principal)


async def test_a_token_for_one_server_is_for_no_other(issuing):
    resource = OAuthResource(issuing.url, URL, audiences=["team"])
    assert await resource.authenticate(scope_of(issuing.token(f"{MCP}/one"), "/mcp/one"))
    assert await resource.authenticate(scope_of(issuing.token("team"), "/mcp/one"))
    assert (await refusal(resource, issuing.token(f"{MCP}/one"), "/mcp")).status == 401
    assert (await refusal(resource, issuing.token(f"{MCP}/one"), "/mcp/two")).status == 401


def signed_with_the_public_key(issuing):
    """As if the public key were a shared one. The library refuses to make it."""
    head = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{claims(issuing)}"
    digest = hmac.digest(pem_of(issuing.keys["rsa"]), head.encode(), hashlib.sha256)
    return f"{head}.{urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def critical(issuing):
    """With an extension that the library knows, and does not write."""
    head = part({"alg": "RS256", "typ": "JWT", "kid": "rsa", "crit": ["b64"], "b64": True})
    signed = f"{head}.{claims(issuing)}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), issuing.keys["rsa"])
    return f"{signed}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def claims(issuing):
    return part({"iss": issuing.url, "sub": "ann", "aud": MCP, "exp": time.time() + 300, "scope": "mcp"})


HOSTILE = {
    "none": lambda it: f"{part({'alg': 'none', 'typ': 'JWT'})}.{claims(it)}.",
    "None": lambda it: f"{part({'alg': 'None', 'typ': 'JWT', 'kid': 'rsa'})}.{claims(it)}.",
    "HS256 with the public key": signed_with_the_public_key,
    "HS256 with the shared key": lambda it: it.token(MCP, kid="shared", algorithm="HS256", key=b"x" * 32),
    "another's key": lambda it: it.token(MCP, key=TokenIssuer().keys["rsa"]),
    "a weak key": lambda it: it.token(MCP, kid="weak", key=it.weak),
    "a key of another kind": lambda it: it.token(MCP, kid="ec", key=it.keys["rsa"]),
    "a key that nobody knows": lambda it: it.token(MCP, kid="new", key=it.keys["rsa"]),
    "for others": lambda it: it.token("https://elsewhere.example/mcp"),
    "for nobody": lambda it: it.token(MCP, without=["aud"]),
    "of others": lambda it: it.token(MCP, iss="https://elsewhere.example"),
    "nearly of them": lambda it: it.token(MCP, iss=it.url + "/"),
    "over": lambda it: it.token(MCP, exp=time.time() - 60),
    "for good": lambda it: it.token(MCP, without=["exp"]),
    "not yet": lambda it: it.token(MCP, nbf=time.time() + 60),
    "made later": lambda it: it.token(MCP, iat=time.time() + 60),
    "of no user": lambda it: it.token(MCP, without=["sub"]),
    "critical": lambda it: it.token(MCP, headers={"crit": ["x"], "x": 1}),
    "critical, and known to PyJWT": critical,
    "of another type": lambda it: it.token(MCP, headers={"typ": "logout+jwt"}),
    "huge": lambda it: it.token(MCP, junk="x" * issuer.LONGEST_TOKEN),
    "deep": lambda it: urlsafe_b64encode(b"[" * 5000).decode() + ".e30.x",
    "no JWT": lambda it: "x.y",
    "a list": lambda it: f"{part([])}.{part([])}.x",
}


DATES = [10**400, -(10**400), math.inf, math.nan, "9999999999", True, None, [9999999999], {}]


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
async def test_a_date_that_is_no_number_lets_nobody_in(issuing, name):
    resource = OAuthResource(issuing.url, URL)
    for date in DATES:
        refused = await refusal(resource, issuing.token(MCP, **{name: date}))
        assert refused.status == 401, date


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_token_lets_nobody_in(issuing, kind):
    resource = OAuthResource(issuing.url, URL)
    refused = await refusal(resource, HOSTILE[kind](issuing))
    assert refused.status == 401
    assert 'error="invalid_token"' in refused.headers["www-authenticate"]


async def test_a_key_checks_what_was_made_with_its_own_algorithm_alone(issuing):
    """One for RS256 is none for PS512: what an issuer says of its key is no proposal."""
    issuing.body = json.dumps({"keys": [key | {"alg": "RS256"} for key in issuing.public_keys()]}).encode()
    resource = OAuthResource(issuing.url, URL)
    assert await resource.authenticate(scope_of(issuing.token(MCP)))
    assert (await refusal(resource, issuing.token(MCP, algorithm="PS512"))).status == 401


UNUSABLE = {
    "metadata of another": lambda issuing: issuing.metadata.update(issuer=f"{issuing.url}2"),
    "keys that somebody on the way can change": lambda issuing: issuing.metadata.update(
        jwks_uri=issuing.url.replace("127.0.0.1", "0.0.0.0").replace("/tenant", "/keys")
    ),
    "keys elsewhere": lambda issuing: issuing.statuses.update({"/keys": 302}),
    "keys of an error": lambda issuing: issuing.statuses.update({"/keys": 500}),
    "a document without end": lambda issuing: setattr(
        issuing, "body", json.dumps({"keys": issuing.public_keys(), "x": "x" * issuer.DOCUMENT}).encode()
    ),
    "keys for something else": lambda issuing: setattr(
        issuing, "body", json.dumps({"keys": [key | {"use": "enc"} for key in issuing.public_keys()]}).encode()
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_keys_that_are_not_the_issuer_s_own_let_nobody_in(issuing, kind):
    UNUSABLE[kind](issuing)
    assert (await refusal(OAuthResource(issuing.url, URL), issuing.token(MCP))).status == 503


async def test_a_flood_of_unknown_keys_asks_the_issuer_once(issuing):
    resource = OAuthResource(issuing.url, URL)
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(refusal, resource, issuing.token(MCP, kid=f"k{number}", key=issuing.keys["rsa"]))
    assert issuing.asked_for_keys == 1
    assert await resource.authenticate(scope_of(issuing.token(MCP)))


async def test_few_wait_for_a_key_that_is_not_known(issuing, monkeypatch):
    monkeypatch.setattr(issuer, "WAITING", 10)
    resource, refused = OAuthResource(issuing.url, URL), []
    issuing.answers.clear()

    async def come(number):
        token = issuing.token(MCP, kid=f"k{number}", key=issuing.keys["rsa"])
        refused.append((await refusal(resource, token)).status)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(come, number)
        await eventually(lambda: len(refused) == 30 - 10 - 1)
        issuing.answers.set()
    assert sorted(refused) == [401] * 11 + [503] * 19


async def test_nobody_waits_for_an_issuer_that_hangs(issuing, monkeypatch):
    """While its keys hold: they are fetched aside. Only who names a key that is not known waits, and not for long."""
    monkeypatch.setattr(issuer, "FRESH", 0.01)
    monkeypatch.setattr(issuer, "FETCH_INTERVAL", 0.01)
    resource, token = OAuthResource(issuing.url, URL), issuing.token(MCP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(resource.keep_fresh)
        assert await resource.authenticate(scope_of(token))
        issuing.answers.clear()
        asked = len(issuing.fetched)
        await eventually(lambda: len(issuing.fetched) > asked)
        with trio.fail_after(issuer.FETCH_TIMEOUT / 2):
            assert await resource.authenticate(scope_of(token))
        issuing.answers.set()
        assert await resource.authenticate(scope_of(token))
        nursery.cancel_scope.cancel()


async def test_a_new_key_is_found_and_an_old_one_goes(issuing, monkeypatch):
    resource = OAuthResource(issuing.url, URL)
    old = issuing.token(MCP)
    assert await resource.authenticate(scope_of(old))
    issuing.keys["new"] = issuing.keys.pop("rsa")
    new = issuing.token(MCP, kid="new")
    assert (await refusal(resource, new)).status == 401  # it was asked just now
    monkeypatch.setattr(issuer, "FETCH_INTERVAL", 0.0)
    assert await resource.authenticate(scope_of(new))
    assert (await refusal(resource, old)).status == 401


async def test_while_the_issuer_is_down_its_keys_hold_for_some_time(issuing, monkeypatch, caplog):
    monkeypatch.setattr(issuer, "FETCH_INTERVAL", 0.0)
    monkeypatch.setattr(issuer, "FRESH", 0.0)
    resource, token = OAuthResource(issuing.url, URL), issuing.token(MCP)
    issuing.down = True
    refused = await refusal(resource, token)
    assert (refused.status, refused.headers["retry-after"]) == (503, "0")
    issuing.down = False
    assert await resource.authenticate(scope_of(token))
    issuing.down = True
    assert await resource.authenticate(scope_of(token))
    monkeypatch.setattr(issuer, "STALE", 0.0)
    assert (await refusal(resource, token)).status == 503
    assert "cannot be had" in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize("path", ["/.well-known/oauth-authorization-server/tenant", "/keys"])
@pytest.mark.parametrize("asks", [7200, 5, 0])
async def test_an_issuer_that_asks_for_time_is_asked_nothing_meanwhile(issuing, path, asks, caplog, mock_clock):
    """Neither in another place, nor for an unknown key, nor to keep its keys fresh."""
    issuing.statuses, issuing.rest = {path: 429}, str(asks or "")
    rest = max(issuer.FETCH_INTERVAL, min(asks, LONGEST_REST))
    resource, token = OAuthResource(issuing.url, URL), issuing.token(MCP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(resource.keep_fresh)
        for passed in (0, rest - 10):
            mock_clock.jump(passed)
            await trio.testing.wait_all_tasks_blocked(0.05)
            refused = await refusal(resource, token)
            assert (refused.status, refused.headers["retry-after"]) == (503, f"{rest - passed:g}")
        assert (issuing.fetched[-1], issuing.fetched.count(path)) == (path, 1)
        issuing.statuses = {}
        mock_clock.jump(10)
        assert await resource.authenticate(scope_of(token))
        nursery.cancel_scope.cancel()
    words = f", not to be asked again for {min(asks, LONGEST_REST):g} s" if asks else ""
    assert f"the keys of {issuing.url} cannot be had: HTTP 429{words}\n" in caplog.text


async def test_an_issuer_that_hangs_is_waited_for_so_long(issuing, monkeypatch, caplog):
    monkeypatch.setattr(issuer, "FETCH_TIMEOUT", 0.1)
    issuing.answers.clear()
    assert (await refusal(OAuthResource(issuing.url, URL), issuing.token(MCP))).status == 503
    assert f"the keys of {issuing.url} cannot be had: not within 0.1 s" in caplog.text


@pytest.mark.parametrize("body", [b"x" * (issuer.DOCUMENT + 1), b"[]", b"{}", b"{", b'{"keys": [1, {"kty": "RSA"}]}'])
async def test_what_an_issuer_should_not_say_harms_nobody(issuing, body):
    issuing.body = body
    assert (await refusal(OAuthResource(issuing.url, URL), issuing.token(MCP))).status in (401, 503)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"oauth_issuer": "http://login.example.com", "public_url": URL}, "'--oauth-issuer': must be an https URL"),
        ({"oauth_issuer": "https://login.example.com"}, "'--public-url': is needed"),
        ({"oauth_issuer": "https://login.example.com", "public_url": MCP}, "'--public-url': must be https://HOST"),
        ({"scope": ["x"]}, "'--scope': needs --oauth-issuer"),
    ],
)
def test_options_that_cannot_work_are_refused(given, problem):
    with pytest.raises(ConfigError) as caught:
        HttpFront("127.0.0.1:0", **given)
    assert problem in str(caught.value)

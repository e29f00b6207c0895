"""Tokens that are bound to a key (DPoP, RFC 9449): an issuer and a server that verify each proof, over all transports
that have OAuth. A WebSocket has none: tests/supervisor/config/test_auth.py."""

import base64
from hashlib import sha256
from secrets import token_hex

import jwt
import pytest
import trio
from attrs import evolve

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import AuthorizationFailed, CallError
from mcp_nursery.actors.oauth import dpop
from mcp_nursery.actors.oauth.tokens import MemoryVault, TokenKey
from mcp_nursery.supervisor import HttpTransport, OAuth, ServerSpec, open_supervisor
from mcp_nursery.supervisor.login.login import log_in
from mcp_nursery.supervisor.login.vault import lasting_vault
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from ..lab.hostile_issuer import METADATA, agree, answer, issuing
from ..lab.oauth_server import PLATFORM, OAuthServer, Person
from ..lab.processes import AT_ONCE, next_state, status_of, supervised

pytestmark = pytest.mark.slow

S = ServerState


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    started = {}

    def of_kind(kind):
        if kind not in started:
            started[kind] = OAuthServer(tmp_path_factory.mktemp(kind), kind, dpop=True)
        server = started[kind]
        server.control(revoke=True, nonces="none")
        server.journal.clear()
        return server

    yield of_kind
    for server in started.values():
        server.kill()


@pytest.fixture(params=["http", "sse"])
def far(request, servers):
    return servers(request.param)


@pytest.fixture
def http(servers):
    return servers("http")


@pytest.fixture
async def issuer():
    async with issuing() as issuer:
        issuer.says[METADATA] = answer(200, issuer.metadata(dpop_signing_alg_values_supported=["ES256"]))
        issuer.says["/token"] = answer(200, issuer.token(token_type="DPoP"))
        yield issuer


def machine(server):
    words = {"client_id": "machine", "client_secret": "machines-secret", "issuer": server.origin}
    return OAuth(grant="client_credentials", **words, dpop=True)


def workload(server):
    async def assertion(issuer, _resource):
        return jwt.encode({"sub": "workload", "aud": issuer, "jti": token_hex(8)}, PLATFORM)

    return OAuth(grant="workload", issuer=server.origin, assertion=assertion, dpop=True)


def person(_server):
    return OAuth(dpop=True)


def vault():
    return lasting_vault(SqliteStore())


def store_of(server, words=None):
    return vault().store(TokenKey.of(server.url, words or OAuth()))


async def log_in_to(server, **words):
    return await log_in(server.spec(auth=OAuth(dpop=True, **words)), vault(), Person())


def said(result):
    return result.content[0].text


async def works(server, words=None):
    async with supervised(server.spec(auth=words)) as supervisor:
        return said(await supervisor.call_tool("look", server="far"))


async def many(supervisor, count=10, tool="commit"):
    results = []

    async def one():
        try:
            results.append(said(await supervisor.call_tool(tool, server="far")))
        except CallError as error:
            results.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return results


@pytest.mark.parametrize("nonces", ["none", "latest", "once"])
@pytest.mark.parametrize("words", [person, machine, workload])
async def test_each_request_is_proved(far, words, nonces):
    """Of whoever has a token, at the issuer and at the server, with and without their nonces."""
    far.control(nonces=nonces)
    if words is person:
        await log_in_to(far)
    assert await works(far, words(far)) == "seen"
    if nonces == "none":
        assert far.journal.count("unproved") == 0


async def test_a_key_outlasts_renewals_logins_and_runs(far):
    await log_in_to(far)
    key = (await store_of(far).read()).proof_key
    async with supervised(far.spec()) as supervisor:
        far.control(expire=True)
        assert await many(supervisor) == ["committed"] * 10
    assert (far.tokens("refresh_token"), far.journal.count("commit")) == (1, 10)
    assert await works(far) == "seen"
    await log_in_to(far)
    assert await works(far) == "seen"
    assert ((await store_of(far).read()).proof_key, far.journal.count("unproved")) == (key, 0)


@pytest.mark.parametrize("nonces", ["latest", "once"])
async def test_a_nonce_that_changes_costs_no_call_and_repeats_none(far, nonces):
    """Each is carried out once, though nobody would repeat what it does; no token is renewed for it."""
    await log_in_to(far)
    async with supervised(far.spec()) as supervisor:
        for _ in range(3):
            far.control(nonces="latest")
            assert await many(supervisor, 1) == ["committed"]
        far.control(expire=True, nonces="latest")
        assert await many(supervisor, 1) == ["committed"]
        far.control(nonces=nonces)
        assert await many(supervisor) == ["committed"] * 10
    assert (far.journal.count("commit"), far.tokens("refresh_token")) == (14, 1)


async def test_a_server_that_takes_no_nonce_is_asked_four_times(servers):
    """It may have changed its nonce meanwhile, more than once while a request waits for its turn."""
    sse = servers("sse")  # over HTTP there may be another request at the same time
    await log_in_to(sse)
    async with supervised(sse.spec()) as supervisor, supervisor.events() as events:
        sse.control(nonces="never")
        (error,) = await many(supervisor, 1)
        assert "takes no proof with the nonce that it gives (use_dpop_nonce)" in str(error)
        assert error.delivery is Delivery.NOT_SENT
        await next_state(events, S.WAITING, "far")
        assert (sse.journal.count("unproved"), sse.journal.count("commit")) == (4, 0)
        assert sse.tokens("refresh_token") == 0
        sse.control(nonces="latest")
        await next_state(events, S.CONNECTED, "far")


async def test_an_issuer_that_takes_no_nonce_is_asked_twice(http):
    http.control(nonces="never")
    with pytest.raises(AuthorizationFailed, match="refuses: HTTP 400 use_dpop_nonce"):
        await log_in_to(http)
    assert http.journal.count("unproved") == 2


async def test_a_wrong_clock_is_a_hint_and_costs_no_token(http, monkeypatch):
    await log_in_to(http)
    async with supervised(http.spec()) as supervisor, supervisor.events() as events:
        with monkeypatch.context() as patched:
            patched.setattr(dpop.time, "time", lambda now=dpop.time.time: now() - 3600)
            (error,) = await many(supervisor, 1)
            assert error.delivery is Delivery.NOT_SENT
            await next_state(events, S.NEEDS_AUTH, "far")
            told = status_of(supervisor, "far").error
            assert "invalid_dpop_proof (is the clock of this machine right?)" in told
    assert await works(http) == "seen"


@pytest.mark.parametrize("kept", [{"proof_key": None}, None])
async def test_a_key_that_is_lost_wants_a_login(http, kept):
    await log_in_to(http)
    store = store_of(http)
    await (store.remove() if kept is None else store.write(evolve(await store.read(), **kept)))
    http.journal.clear()
    async with open_supervisor([http.spec()]) as supervisor:
        await supervisor.list_tools()
        assert status_of(supervisor, "far").error.endswith("mcp-nursery login far")
    assert http.tokens("refresh_token") == http.journal.count("unproved") == 0, "the token was shown without a proof"
    await log_in_to(http)
    assert await works(http) == "seen"


async def test_who_wants_no_key_any_more_logs_in_again(http):
    await log_in_to(http)
    http.journal.clear()
    async with open_supervisor([http.spec(auth=OAuth())]) as supervisor:
        await supervisor.list_tools()
        assert status_of(supervisor, "far").state is S.NEEDS_AUTH
    assert http.journal.count("unproved") == 0


async def test_a_server_that_wants_proofs_says_so(issuer):
    """Without the setting, there is a token, and the server refuses it."""
    issuer.says["/token"] = answer(200, issuer.token())
    issuer.says["/mcp"] = answer(401, {}, more='www-authenticate: DPoP error="invalid_token", algs="ES256"\r\n')
    await log_in(issuer.spec(), vault(), agree)
    async with open_supervisor([issuer.spec()]) as supervisor:
        await supervisor.list_tools()
        assert 'it wants proofs (DPoP): dpop=True, or "dpop": true in auth' in status_of(supervisor, "far").error
    async with open_supervisor([issuer.spec("near", dpop=True)]) as supervisor:
        await supervisor.list_tools()
        assert "wants proofs" not in status_of(supervisor, "near").error, "there is no token yet"


# issuers that do something else


async def never(_request):
    raise AssertionError("a person is asked")


@pytest.mark.parametrize("supported", [None, [], ["RS256"], "ES256", {}])
async def test_an_issuer_that_binds_no_tokens_is_refused_before_anybody_is_asked(issuer, supported):
    issuer.says[METADATA] = answer(200, issuer.metadata(dpop_signing_alg_values_supported=supported))
    with pytest.raises(AuthorizationFailed, match="does not say that it binds tokens to a key") as caught:
        await log_in(issuer.spec(dpop=True), MemoryVault(), never)
    assert "\n" not in str(caught.value)
    words = {"grant": "client_credentials", "client_id": "me", "client_secret": "client-5ecret"}
    with pytest.raises(AuthorizationFailed, match="does not say that it binds tokens to a key"):
        await log_in(issuer.spec(dpop=True, **words, issuer=issuer.origin), MemoryVault(), never)
    assert issuer.count("/token") == 0


async def test_an_issuer_without_metadata_is_refused(issuer):
    del issuer.says[METADATA]
    with pytest.raises(AuthorizationFailed, match="does not say that it binds tokens to a key"):
        await log_in(issuer.spec(dpop=True), MemoryVault(), never)


@pytest.mark.parametrize("kind", ["Bearer", "bearer", None, 5])
async def test_a_token_that_is_not_bound_is_refused(issuer, kind):
    issuer.says["/token"] = answer(200, issuer.token(token_type=kind))
    with pytest.raises(AuthorizationFailed, match="gave a token that is bound to no key, which dpop forbids"):
        await log_in(issuer.spec(dpop=True), MemoryVault(), agree)


async def test_a_proof_names_the_place_as_it_is_asked_without_query(issuer):
    """Also of a token endpoint behind a proxy that knows it by another path, and of a server whose URL has secrets."""
    place = f"{issuer.origin}/realm/a%20b/token"
    metadata = issuer.metadata(token_endpoint=f"{place}?tenant=5ecret", dpop_signing_alg_values_supported=["ES256"])
    issuer.says[METADATA] = answer(200, metadata)
    issuer.says["/realm/a%20b/token"] = issuer.says["/token"]
    spec = ServerSpec("far", HttpTransport(f"{issuer.url}?key=5ecret#top", auth=OAuth(dpop=True)), policy=AT_ONCE)
    await log_in(spec, MemoryVault(), agree)
    (asked,) = (each for each in issuer.asked if each.path == "/realm/a%20b/token")
    assert claims_of(asked)["htu"] == place
    assert asked.target.endswith("?tenant=5ecret")


def claims_of(asked):
    return jwt.decode(asked.headers["dpop"], options={"verify_signature": False})


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_no_other_origin_gets_a_proof(issuer, status):
    """Neither one that the server redirects to, nor one that the issuer does; within the origin each gets its own."""
    async with issuing() as other:
        await log_in(issuer.spec(dpop=True), vault(), agree)
        issuer.says["/mcp"] = answer(status, {}, more=f"location: {other.url}\r\n")
        async with open_supervisor([issuer.spec(dpop=True)]) as supervisor:
            await supervisor.list_tools()
        issuer.says["/mcp"] = answer(status, {}, more=f"location: {issuer.origin}/moved\r\n")
        async with open_supervisor([issuer.spec(dpop=True)]) as supervisor:
            await supervisor.list_tools()
        issuer.says["/token"] = answer(status, {}, more=f"location: {other.origin}/token\r\n")
        issuer.refuse()
        with pytest.raises(AuthorizationFailed):
            await log_in(issuer.spec(dpop=True), MemoryVault(), agree)
        assert other.asked == []
    proved = {asked.path: claims_of(asked) for asked in issuer.asked if asked.headers.get("authorization")}
    assert {path: claims["htu"] for path, claims in proved.items()} == {
        "/mcp": issuer.url,
        "/moved": f"{issuer.origin}/moved",
    }
    ath = base64.urlsafe_b64encode(sha256(b"access-5ecret").digest()).rstrip(b"=").decode()
    assert {claims["ath"] for claims in proved.values()} == {ath}
    ids = [claims_of(asked)["jti"] for asked in issuer.asked if "dpop" in asked.headers]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("nonce", ["a" * 2000, 'in"side', "\\", ""])
async def test_a_nonce_that_is_none_is_not_used(issuer, nonce):
    issuer.says["/token"] = answer(400, {"error": "use_dpop_nonce"}, more=f"dpop-nonce: {nonce}\r\n")
    with pytest.raises(AuthorizationFailed, match="use_dpop_nonce"):
        await log_in(issuer.spec(dpop=True), MemoryVault(), agree)
    assert issuer.count("/token") == 1

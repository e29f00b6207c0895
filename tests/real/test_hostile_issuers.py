"""Servers and issuers that mean harm: no secret goes where it does not belong, none is quoted, and nothing crashes."""

import logging
import socket
import struct
from base64 import b64decode
from contextlib import asynccontextmanager, suppress
from itertools import count
from urllib.parse import unquote

import httpx2
import pytest
import trio
import trio.testing
from attrs import evolve
from mcp.shared.auth import AuthorizationCodeResult

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import AuthorizationFailed, CallError, ServerDown, ServerError
from mcp_nursery.actors.oauth import provider, renewal
from mcp_nursery.actors.oauth.token_endpoint import GrantRefused, Passing, refresh
from mcp_nursery.actors.oauth.tokens import MemoryVault, TokenKey, Tokens
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.supervisor import HttpTransport, OAuth, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.decisions import state_machine
from mcp_nursery.supervisor.login import token_files
from mcp_nursery.supervisor.login.login import log_in
from mcp_nursery.supervisor.login.vault import vault_of
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from ..lab.hostile_issuer import ENDPOINTS, METADATA, PROTECTED, SECRETS, agree, answer, issuing
from ..lab.http_peer import serving
from ..lab.processes import AT_ONCE, next_state, status_of


@pytest.fixture
async def far():
    async with issuing() as far:
        yield far


@pytest.fixture
async def other():
    async with issuing() as other:
        yield other


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


async def refusal(far, authorize=agree, **words):
    """What a login comes to."""
    with trio.fail_after(60), pytest.raises(AuthorizationFailed) as caught:
        await log_in(far.spec(**words), MemoryVault(), authorize)
    return str(caught.value)


async def test_who_behaves_is_logged_in(far, log):
    tokens = await log_in(far.spec(), MemoryVault(), agree)
    assert (tokens.access, far.asked[-1].form["code"]) == ("access-5ecret", "code-5ecret")
    assert [secret for secret in SECRETS if secret in log.text] == []


def pointing(far, issuer):
    far.says[PROTECTED] = answer(200, {"resource": far.url, "authorization_servers": [issuer]})


def mixed(far, other):
    """Its metadata is another issuer's."""
    far.says[METADATA] = answer(200, other.metadata())


def of_another_resource(far, other):
    far.says[PROTECTED] = answer(200, {"resource": other.url, "authorization_servers": [far.origin]})


def in_clear_text(far, _other):
    far.says[METADATA] = answer(200, far.metadata(token_endpoint="http://192.0.2.1/token"))


def page_in_clear_text(far, _other):
    far.says[METADATA] = answer(200, far.metadata(authorization_endpoint="http://192.0.2.1/authorize"))


def page_with_a_fragment(far, _other):
    far.says[METADATA] = answer(200, far.metadata(authorization_endpoint=f"{far.origin}/authorize#top"))


def page_with_a_state(far, _other):
    far.says[METADATA] = answer(200, far.metadata(authorization_endpoint=f"{far.origin}/authorize?state=mine&x="))


def invalid_place(far, _other):
    far.refuse(resource_metadata="http://[bad")


def place_with_a_high_port(far, _other):
    far.refuse(resource_metadata="http://127.0.0.1:99999999/")


def foreign_letters(far, _other):
    far.refuse(scope="réad")
    far.says["/token"] = answer(400, {"error": "invalid_scope"})


def registration_without_a_name(far, _other):
    far.says["/register"] = answer(201, {"client_secret": "client-5ecret"})


def registration_that_is_none(far, _other):
    far.says["/register"] = answer(201, body=b'["client-5ecret"]')


def token_moves(far, other):
    said = answer(307, {"was": "client-5ecret code-5ecret"}, more=f"location: {other.origin}/token\r\n")
    far.says["/token"] = said


def token_quotes(far, _other):
    far.says["/token"] = lambda asked: answer(400, {"error": asked.body.decode(), "error_description": "code-5ecret"})


def token_is_none(far, _other):
    far.says["/token"] = answer(200, body=b'{"access_token": "access-5ecret"')


def token_breaks_headers(far, _other):
    far.says["/token"] = answer(200, far.token(access_token="access-5ecret\r\nx-evil: 1"))


def token_of_another_type(far, _other):
    far.says["/token"] = answer(200, far.token(token_type="DPoP access-5ecret"))


def token_is_long(far, _other):
    far.says["/token"] = answer(200, far.token(access_token="access-5ecret" + "a" * 900_000))


def endless_token(far, _other):
    far.says["/token"] = answer(200, body=b" " * (2 << 20))


@pytest.mark.parametrize(
    "attack",
    [
        mixed,
        of_another_resource,
        in_clear_text,
        page_in_clear_text,
        page_with_a_fragment,
        page_with_a_state,
        invalid_place,
        place_with_a_high_port,
        registration_without_a_name,
        registration_that_is_none,
        token_moves,
        token_quotes,
        token_is_none,
        token_breaks_headers,
        token_of_another_type,
        token_is_long,
        endless_token,
        foreign_letters,
    ],
)
async def test_a_login_that_goes_wrong_says_so_in_one_line_and_quotes_nothing(far, other, log, attack):
    attack(far, other)
    said = await refusal(far)
    assert "\n" not in said
    assert [secret for secret in SECRETS if secret in said + log.text] == []
    assert other.asked == []


@pytest.mark.parametrize("said", [None, [], ["plain"], ["s256"]])
async def test_an_issuer_without_pkce_is_refused_before_anybody_is_asked(far, said):
    """Whoever sees the code on its way could use it: unless its user knows better."""
    far.says[METADATA] = answer(200, far.metadata(code_challenge_methods_supported=said))

    async def never(_request):
        raise AssertionError

    told = await refusal(far, never)
    assert "does not say that it supports PKCE with S256" in told
    assert far.count("/authorize") == far.count("/token") == 0
    tokens = await log_in(far.spec(require_pkce=False), MemoryVault(), agree)
    assert tokens.access == "access-5ecret"
    assert far.asked[-1].form["code_verifier"]


async def test_an_issuer_that_describes_nothing_is_asked(far):
    """As in the specification of 2025-03-26."""
    del far.says[METADATA], far.says[PROTECTED]
    assert (await log_in(far.spec(), MemoryVault(), agree)).access == "access-5ecret"


@pytest.mark.parametrize("expires_in", ["soon", -5, 10**30, 3599.5, None, True, [], "3600"])
async def test_a_token_is_good_whatever_is_said_of_its_end(far, expires_in):
    """It was granted, and what was spent for it is gone."""
    far.says["/token"] = answer(200, far.token(expires_in=expires_in))
    tokens = await log_in(far.spec(), MemoryVault(), agree)
    assert tokens.access == "access-5ecret"


async def test_a_token_endpoint_that_has_moved_within_its_origin_is_followed(far):
    far.says["/token"] = answer(307, {}, more="location: /new\r\n")
    far.says["/new"] = answer(200, far.token())
    assert (await log_in(far.spec(), MemoryVault(), agree)).access == "access-5ecret"


@pytest.mark.parametrize("trouble", ["other issuer", "issuer away", "description away", "none at all"])
async def test_the_secret_of_a_client_goes_to_its_own_issuer_alone(far, other, trouble):
    """Neither is anybody asked at another one, whose tokens would be renewed there with that secret."""
    asked = []

    async def ask(request):
        asked.append(request.url)
        return await agree(request)

    pointing(far, other.origin if trouble == "other issuer" else far.origin)
    if trouble == "issuer away":
        far.says[METADATA] = answer(503, {})
    elif trouble == "description away":
        far.says[METADATA] = answer(404, {})
    elif trouble == "none at all":
        far.says[PROTECTED] = answer(404, {})
    issuer = far.origin if trouble in ("issuer away", "description away") else "https://issuer.example"
    said = await refusal(far, ask, client_id="mine", client_secret="mine-5ecret", issuer=issuer)
    assert ("503" if trouble == "issuer away" else "another issuer") in said
    assert asked == []
    assert [each for each in (*far.asked, *other.asked) if b"mine" in each.body] == []


async def test_a_token_is_renewed_where_it_was_granted(far, other):
    """Whatever the server says by then."""
    words = OAuth(client_id="mine", client_secret="mine-5ecret", issuer=far.origin)
    vault = MemoryVault()
    tokens = await log_in(far.spec(client_id="mine", client_secret="mine-5ecret", issuer=far.origin), vault, agree)
    pointing(far, other.origin)
    assert (await refresh(tokens, words)).access == "access-5ecret"
    assert other.asked == []
    assert tokens == await vault.store(TokenKey.of(far.url, words)).read()


async def test_an_issuer_that_is_away_is_not_replaced_by_the_server(far):
    """It is not known whom to ask: nobody is registered, and nothing is asked, at the server's own paths."""
    far.says[METADATA] = answer(503, {})
    assert "HTTP 503" in await refusal(far)
    assert (far.count("/register"), far.count("/token")) == (0, 0)


@pytest.mark.parametrize("place", ["metadata", "issuer", "page", "token"])
async def test_a_server_elsewhere_reaches_nothing_on_this_machine(far, monkeypatch, place):
    """It names places; who asks them sits behind this machine's walls."""
    away = "https://far.example"
    metadata = {name: f"{away}/{path}" for name, path in ENDPOINTS.items()}
    described = {"resource": f"{away}/mcp", "authorization_servers": [away]}
    challenge = Challenge()
    asked = []
    if place == "metadata":
        challenge = Challenge(resource_metadata=f"{far.origin}/admin")
    elif place == "issuer":
        described["authorization_servers"] = [far.origin]
    elif place == "page":
        metadata["authorization_endpoint"] = f"{far.origin}/authorize"
    else:
        metadata["token_endpoint"] = f"{far.origin}/token"

    async def answered(request, _ca_file):
        asked.append(request)
        if "protected" in request.url.path:
            return httpx2.Response(200, json=described, request=request)
        if "authorization-server" in request.url.path:
            return httpx2.Response(
                200, json={"issuer": away, "code_challenge_methods_supported": ["S256"], **metadata}, request=request
            )
        return httpx2.Response(201, json={"client_id": "me", "redirect_uris": [Redirect.redirect_uri]}, request=request)

    monkeypatch.setattr(provider, "send", answered)
    with pytest.raises(GrantRefused, match="a server elsewhere may lead to https alone"):
        await provider.authorise(OAuth(), f"{away}/mcp", challenge, Redirect())
    assert [request for request in asked if request.url.host == "127.0.0.1"] == []


class Redirect:
    """Whoever is asked agrees, wherever that is."""

    redirect_uri = "http://127.0.0.1:9/callback"

    async def ask(self, url):
        assert "127.0.0.1" not in httpx2.URL(url).host
        return AuthorizationCodeResult(code="code-5ecret", state=httpx2.URL(url).params["state"])


@pytest.mark.parametrize(
    "brought", ["http://[", "http://127.0.0.1/callback?code=x&state=y", "?error=x", True, 5, b"code"]
)
async def test_what_a_host_brings_is_looked_at(far, brought):
    """A page of somebody else's making, or nothing that a person could bring."""

    async def bring(_request):
        return brought

    assert "not authorised" in await refusal(far, bring)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET //[ HTTP/1.1\r\n\r\n",
        b"GET http://[/callback HTTP/1.1\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"",
        b"\xff\xfe\r\n\r\n",
        b"GET /callback?state=%ff&code=x HTTP/1.1\r\n\r\n",
        b"GET /callback?" + b"&" * 15_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /callback" + b"a" * 40_000,
        b"POST /callback HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        b"OPTIONS /callback HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_any_page_can_send_to_the_port_changes_nothing(far, sent):
    """A browser sends requests to ports of its own machine for every page that wants it."""

    async def probe(request):
        back = await agree(request)
        port = httpx2.URL(request.redirect_uri).port
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(sent)
            await stream.send_eof()
            with suppress(trio.BrokenResourceError):
                said = b"".join([part async for part in stream])
                assert b"200" not in said[:20]
        await trio.testing.wait_all_tasks_blocked(0.02)
        return back

    with trio.fail_after(60):
        assert (await log_in(far.spec(), MemoryVault(), probe)).access == "access-5ecret"


async def test_nothing_of_what_the_browser_brings_is_on_the_page(far):
    """And what it brings counts once."""
    pages = []

    async def denied(request):
        state = httpx2.URL(request.url).params["state"]
        said = "error=access_denied&error_description=%3Cscript%3Ealert(1)%3C/script%3E"
        async with httpx2.AsyncClient(timeout=60) as browser:
            page = await browser.get(f"{request.redirect_uri}?{said}&state={state}")
            pages.append(page)

    assert "access_denied" in await refusal(far, denied)
    assert "script" not in pages[0].text
    assert pages[0].headers["cache-control"] == "no-store"


async def test_a_browser_that_has_gone_has_brought_its_code(far):
    """It is closed, or goes elsewhere, as soon as it has sent what matters."""

    async def go(request):
        target = (await agree(request)).removeprefix(request.redirect_uri)
        port = httpx2.URL(request.redirect_uri).port
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.send_all(b"GET /callback%s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % target.encode())
        await stream.aclose()

    with trio.fail_after(60):
        assert (await log_in(far.spec(), MemoryVault(), go)).access == "access-5ecret"


async def test_an_issuer_of_another_name_comes_back(far):
    """RFC 9207: what another issuer has granted is not taken for this one's."""

    async def mixed_up(request):
        return f"{await agree(request)}&iss=https%3A%2F%2Fother.example"

    assert "iss mismatch" in await refusal(far, mixed_up)
    assert far.count("/token") == 0


async def test_a_host_outlives_a_login_that_goes_wrong(far):
    """Whatever comes of it: the server is as it was, and so is the block."""

    async def wrong(request):
        port = httpx2.URL(request.redirect_uri).port
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET //[ HTTP/1.1\r\n\r\n")
            await stream.receive_some(1)
        asked.set()
        return 5

    asked = trio.Event()
    with trio.fail_after(60):
        async with open_supervisor([far.spec()], callbacks=Callbacks(authorize=wrong)) as supervisor:
            await asked.wait()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert status_of(supervisor, "far").state is ServerState.NEEDS_AUTH


@pytest.mark.slow
async def test_hosts_do_not_wake_each_other_for_ever(far, monkeypatch):
    """A server refuses whatever is granted: what one host has renewed is no news for the other."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.setattr(token_files, "_INTERVAL", 0.02)
    renewed = count()
    far.says["/token"] = lambda _asked: answer(200, far.token(access_token=f"access-5ecret-{next(renewed)}"))
    spec = far.spec()
    await log_in(spec, vault_of(SqliteStore()), agree)
    async with open_supervisor([spec]), open_supervisor([spec]) as other:
        with trio.fail_after(30), suppress(ServerDown):
            await other.wait_connected("far")
        with trio.move_on_after(2):
            await trio.sleep_forever()
        assert far.count("/token") <= 5
        assert status_of(other, "far").state is ServerState.NEEDS_AUTH
        far.says["/token"] = answer(200, far.token())
        async with other.events() as events:
            await log_in(spec, vault_of(SqliteStore()), agree)
            with trio.fail_after(30):
                await next_state(events, ServerState.CONNECTING, "far")


@asynccontextmanager
async def guarded(far, on_call):
    """A server whose tools are called with tokens of this issuer alone, and what `on_call` does then."""
    async with serving() as peer:

        async def other(asked):
            if asked.path.startswith(b"/.well-known"):
                described = {"resource": peer.url, "authorization_servers": [far.origin]}
                await asked.send(answer(200, described))
            elif asked.header(b"authorization") is None:
                await asked.send(answer(401, {}, more="www-authenticate: Bearer\r\n"))
            else:
                return False
            return True

        peer.on_other, peer.on_call = other, on_call
        yield peer


async def test_a_server_that_wants_ever_more_scopes_is_not_worth_a_page_each(far, user_folders, monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    asked = []
    wanted = count()

    async def want(call):
        more = f'www-authenticate: Bearer error="insufficient_scope", scope="s{next(wanted)}-{"x" * 900}"\r\n'
        await call.send(answer(403, {}, more=more))

    async def authorize(request):
        asked.append(request)
        return await agree(request)

    async with guarded(far, want) as peer:
        spec = ServerSpec("far", HttpTransport(peer.url, auth=OAuth()), policy=AT_ONCE)
        with trio.fail_after(120):
            async with open_supervisor([spec], callbacks=Callbacks(authorize=authorize)) as supervisor:
                async with supervisor.events() as events:
                    await next_state(events, ServerState.CONNECTED, "far")
                for _ in range(60):
                    with pytest.raises(ServerError, match="insufficient_scope"):
                        await supervisor.call_tool("once", server="far")
    assert len(asked) <= 1 + 10
    (path,) = (user_folders / "state" / "mcp-nursery" / "tokens").glob("*.json")
    assert path.stat().st_size < 20_000


async def test_a_server_that_leads_through_slow_answers_is_left(far, monkeypatch):
    """Each comes in time, and all together hold up who else would renew the token."""
    monkeypatch.setattr(renewal, "_EXCHANGE", 0.3)
    monkeypatch.setattr(renewal, "_RENEWAL_PAUSES", ())

    async def slowly(_asked):
        await trio.sleep(0.2)
        return answer(404, {})

    for path in (PROTECTED, PROTECTED.removesuffix("/mcp"), METADATA):
        far.says[path] = slowly
    words = {"grant": "client_credentials", "client_id": "mine", "client_secret": "mine-5ecret"}
    async with open_supervisor([far.spec(**words)]) as supervisor, supervisor.events() as events:
        with trio.fail_after(30):
            event = await next_state(events, ServerState.WAITING, "far")
    assert "there was no token within 0.3 s" in str(event)
    assert far.count("/token") == 0


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (answer(400, {"error": "invalid_grant"}), {"refresh": None}),
        (answer(400, {"error": "invalid_client"}), {"refresh": None, "client": {}}),
        (answer(401, {"error": "invalid_client"}), {"refresh": None, "client": {}}),
        (answer(404, {}), {}),
        (answer(403, body=b"<html>"), {}),
        (answer(200, {"error": "invalid_request"}), {}),
        (answer(302, {}, more="location: https://portal.example/\r\n"), {}),
    ],
)
async def test_no_refusal_but_that_of_the_token_or_its_client_deletes_it(far, monkeypatch, said, lost):
    """Q29: what is refused once is asked for again later, unless it is sure that it comes to nothing."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    spec, store = far.spec(), vault_of(SqliteStore()).store(TokenKey.of(far.url, OAuth()))
    await log_in(spec, vault_of(SqliteStore()), agree)
    before = await store.read()
    far.says["/token"] = said
    for _ in range(2):
        asked = far.count("/token")
        async with open_supervisor([spec]) as supervisor:
            with trio.fail_after(30), pytest.raises(ServerDown):
                await supervisor.wait_connected("far")
            assert status_of(supervisor, "far").state is ServerState.NEEDS_AUTH
        after = await store.read()
        assert after == evolve(before, **lost)
    assert far.count("/token") - asked == (not lost)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_an_issuer_that_is_busy_refuses_nothing(far, status):
    """It says nothing of the token, whatever error it names: to ask again later may help."""
    tokens = await log_in(far.spec(), MemoryVault(), agree)
    far.says["/token"] = answer(status, {"error": "invalid_grant"})
    with pytest.raises(Passing, match=f"answered HTTP {status}"):
        await refresh(tokens, OAuth())


async def test_what_is_being_renewed_at_the_end_is_kept(far, monkeypatch):
    """The issuer has spent the old one: whoever comes next would have none."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    spec, asked = far.spec(), trio.Event()
    await log_in(spec, vault_of(SqliteStore()), agree)

    async def slowly(_asked):
        asked.set()
        await trio.sleep(0.3)
        return answer(200, far.token(access_token="access-5ecret-2", refresh_token="refresh-5ecret-2"))

    far.says["/token"] = slowly
    with trio.fail_after(60):
        async with open_supervisor([spec]):
            await asked.wait()
    kept = await vault_of(SqliteStore()).store(TokenKey.of(far.url, OAuth())).read()
    assert (kept.access, kept.refresh, far.count("/token")) == ("access-5ecret-2", "refresh-5ecret-2", 2)


async def test_no_secret_goes_in_clear_text(far):
    in_clear_text(far, None)
    assert "secrets go by https alone" in await refusal(far)
    kept = Tokens("access", "refresh", token_endpoint="http://192.0.2.1/token", client={"client_id": "me"})
    with pytest.raises(GrantRefused, match="secrets go by https alone"):
        await refresh(kept, OAuth())


@pytest.mark.slow
async def test_a_person_who_does_not_agree_is_left_alone(far, monkeypatch):
    """The server is asked again now and then, and the person is not."""
    monkeypatch.setattr(state_machine, "ASKED_AGAIN", 2.0)
    asked = []

    async def refuse(request):
        asked.append(far.count("/mcp"))
        state = httpx2.URL(request.url).params["state"]
        return f"{request.redirect_uri}?error=access_denied&state={state}"

    with trio.fail_after(60):
        async with open_supervisor([far.spec()], callbacks=Callbacks(authorize=refuse)):
            while not asked or far.count("/mcp") < asked[0] + 3:  # noqa: ASYNC110 - the server's own count
                await trio.sleep(0.01)
    assert len(asked) == 1


async def test_a_token_that_a_server_quotes_is_not_shown(far, monkeypatch, log):
    """Bare, in the words of an error: no pattern knows it, only who has got it."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    renewed = "zuVwPq7Lk2"
    good = [SECRETS[0]]

    async def quote(call):
        bearer = call.header(b"authorization").decode().removeprefix("Bearer ")
        if bearer not in good:
            await call.send(answer(401, {}, more=f'www-authenticate: Bearer error="no {bearer}"\r\n'))
            return
        error = {"code": -32000, "message": f"nothing for {bearer} here", "data": [bearer]}
        await call.say({"jsonrpc": "2.0", "id": call.message["id"], "error": error})

    async with guarded(far, quote) as peer:
        spec = ServerSpec("far", HttpTransport(peer.url, auth=OAuth()), policy=AT_ONCE)
        await log_in(spec, vault_of(SqliteStore()), agree)
        said = []
        with trio.fail_after(60):
            async with open_supervisor([spec]) as supervisor, supervisor.events() as events:
                await supervisor.wait_connected("far")
                far.says["/token"] = answer(200, far.token(access_token=renewed))
                for token in (SECRETS[0], renewed):
                    good[:] = [token]
                    with pytest.raises(ServerError) as caught:
                        await supervisor.call_tool("once", server="far")
                    said.append((str(caught.value), repr(caught.value), caught.value.message))
                good.clear()
                far.says["/token"] = answer(400, {"error": "invalid_grant"})
                with suppress(CallError):
                    await supervisor.call_tool("once", server="far")
                said.append((repr(await next_state(events, ServerState.NEEDS_AUTH, "far")), supervisor.status()))
    ours = "".join(record.getMessage() for record in log.records if not record.name.startswith("httpcore"))
    assert [secret for secret in (*SECRETS, renewed) if secret in repr(said) + ours] == []
    assert "REDACTED" in repr(said)


async def test_a_renewal_says_what_it_is_for_and_who_asks(far):
    """RFC 8707, and RFC 6749 2.3.1; what is not said again holds on."""
    tokens = await log_in(far.spec(scopes=["read"]), MemoryVault(), agree)
    far.says["/token"] = answer(200, {"access_token": "access-5ecret-2", "token_type": "bearer"})
    renewed = await refresh(tokens, OAuth())
    assert (renewed.access, renewed.refresh, renewed.scope) == ("access-5ecret-2", tokens.refresh, "read")
    assert (renewed.expires_at, renewed.login, renewed.client) == (None, tokens.login, tokens.client)
    form = far.asked[-1].form
    assert (form["resource"], form["refresh_token"]) == (far.url, "refresh-5ecret")
    assert (form["client_id"], form["client_secret"]) == ("me", "client-5ecret")
    assert "authorization" not in far.asked[-1].headers
    await refresh(tokens, OAuth(client_id="a:b c", client_secret="5ecret/%é", issuer=far.origin))
    assert far.asked[-1].form["client_secret"] == "5ecret/%é"
    basic = evolve(tokens, client={"client_id": "me", "token_endpoint_auth_method": "client_secret_basic"})
    await refresh(basic, OAuth(client_id="a:b c", client_secret="5ecret/%é", issuer=far.origin))
    pair = b64decode(far.asked[-1].headers["authorization"].removeprefix("Basic ")).decode()
    assert [unquote(part) for part in pair.split(":")] == ["a:b c", "5ecret/%é"]
    assert "client_secret" not in far.asked[-1].form
    await refresh(evolve(tokens, client={"client_id": "me", "token_endpoint_auth_method": "none"}), OAuth())
    assert not {"client_secret", "authorization"} & {*far.asked[-1].form, *far.asked[-1].headers}

"""Servers that want OAuth: a real issuer, a real server, real files. No token is lost, and none is asked for twice."""

import json
import logging
import sys
from contextlib import suppress
from secrets import token_hex

import httpx2
import jwt
import pytest
import trio

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import AuthorizationFailed, CallError, ServerDown, ServerError
from mcp_nursery.actors.oauth import renewal
from mcp_nursery.supervisor import OAuth, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.login.login import log_in
from mcp_nursery.supervisor.login.vault import vault_of
from mcp_nursery.supervisor.storage.named import store_named
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from ..lab import PROGRAMS
from ..lab.oauth_server import PLATFORM, WORKLOAD, OAuthServer, Person
from ..lab.processes import next_state, status_of, supervised

pytestmark = pytest.mark.slow

S = ServerState


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One of each kind, started at its first use."""
    started = {}

    def of_kind(kind):
        if kind not in started:
            folder, dpop = tmp_path_factory.mktemp(kind), kind == "dpop"
            started[kind] = OAuthServer(folder, "http" if dpop else kind, dpop=dpop)
        server = started[kind]
        server.control(revoke=True)
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


async def log_in_to(server, **words):
    await log_in(server.spec(auth=OAuth(**words)), vault_of(SqliteStore()), Person())


def kept(user_folders):
    """The tokens that are kept, by the names of their files."""
    folder = user_folders / "state" / "mcp-nursery" / "tokens"
    return {path: json.loads(path.read_text()) for path in folder.glob("*.json")}


def said(result):
    return result.content[0].text


async def many(supervisor, count=10, tool="look"):
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


async def test_a_login_is_all_that_a_server_needs(far, user_folders):
    """P5: authorisation code with PKCE, the client registered by itself; the next run needs nobody."""
    await log_in_to(far)
    async with supervised(far.spec()) as supervisor:
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
    async with supervised(far.spec()) as supervisor:
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
    assert (far.journal.count("registration"), far.journal.count("consent")) == (1, 1)
    ((path, document),) = kept(user_folders).items()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (document["where"], document["tokens"]["issuer"].rstrip("/")) == ("file", far.origin)


async def test_ten_calls_that_meet_401_at_once_renew_the_token_once(far):
    """Each is carried out once, though nobody would repeat what it does."""
    await log_in_to(far)
    async with supervised(far.spec()) as supervisor:
        far.control(expire=True, slow=0.2)
        assert await many(supervisor, tool="commit") == ["committed"] * 10
        assert far.tokens("refresh_token") == 1
        assert (status_of(supervisor, "far").incarnation, far.journal.count("commit")) == (1, 10)


async def test_an_issuer_that_is_away_for_three_seconds_loses_no_token(far, user_folders):
    """Q29: nothing is deleted, and who waits has its answer once it is back."""
    await log_in_to(far)
    async with supervised(far.spec()) as supervisor:
        before = kept(user_folders)
        far.control(expire=True, down=3)
        assert await many(supervisor, 3) == ["seen"] * 3
        assert far.tokens("refresh_token") > 1
        assert status_of(supervisor, "far").state is S.CONNECTED
    assert kept(user_folders).keys() == before.keys()


async def test_what_no_issuer_says_deletes_nothing(http, user_folders):
    """Q29: an answer that is no token is as good as none, and is quoted nowhere."""
    await log_in_to(http)
    async with supervised(http.spec()) as supervisor, supervisor.events() as events:
        before = kept(user_folders)
        http.control(expire=True, garbage='{"access_token": "planted-5ecret"}'[:-1])
        (error,) = await many(supervisor, 1)
        assert error.delivery is Delivery.NOT_SENT
        assert "planted" not in str(error)
        assert kept(user_folders) == before
        http.control(garbage=None)
        await next_state(events, S.CONNECTED, "far")


@pytest.mark.parametrize("shared", [False, True], ids=["files", "database"])
async def test_two_processes_renew_a_token_once(http, shared, request):
    """The second finds what the first has left."""
    state = [request.getfixturevalue("database")] if shared else []
    await log_in(http.spec(auth=OAuth()), vault_of(store_named(*state or [None])), Person())
    http.control(expire=True, slow=1)
    said = []

    async def host():
        command = [sys.executable, PROGRAMS / "oauth_host.py", http.url, *state]
        said.append((await trio.run_process(command, capture_stdout=True)).stdout)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(host)
        nursery.start_soon(host)
    assert said == [b"seen", b"seen"]
    assert http.tokens("refresh_token") == 1


async def test_a_revoked_token_wants_a_login_and_a_login_brings_the_server_back(far, user_folders):
    """P5: no restart of the host; nothing is asked meanwhile but the file."""
    await log_in_to(far)
    async with supervised(far.spec()) as supervisor, supervisor.events() as events:
        far.control(revoke=True)
        (error,) = await many(supervisor, 1, "commit")
        assert error.delivery is Delivery.NOT_SENT
        event = await next_state(events, S.NEEDS_AUTH, "far")
        assert event.challenge.error == "invalid_token"
        assert event.challenge.resource_metadata.startswith(far.origin)
        assert event.challenge == status_of(supervisor, "far").challenge
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("look", server="far")
        assert caught.value.challenge == event.challenge
        refused = far.journal.count("refused")
        await log_in_to(far)
        with trio.fail_after(30):
            await next_state(events, S.CONNECTED, "far")
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
        assert far.journal.count("refused") == refused + 1, "the login's own question"
    assert (far.journal.count("registration"), far.journal.count("commit")) == (1, 0)


async def goes_back(request):
    """A person who sees an error in place of a page, and gives up."""
    async with httpx2.AsyncClient(timeout=30) as browser:
        assert "Who is that?" in (await browser.get(request.url, follow_redirects=True)).text
    return "http://127.0.0.1/callback?nothing"


async def works(server):
    async with supervised(server.spec()) as supervisor:
        return said(await supervisor.call_tool("look", server="far"))


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_an_issuer_whose_page_refuses_the_client_gets_another(http, status):
    """The person sees no error."""
    await log_in_to(http)
    http.control(forget=True, page=status)
    await log_in_to(http)
    assert (http.journal.count("registration"), http.journal.count("unknown_client")) == (2, 1)
    assert await works(http) == "seen"


@pytest.mark.parametrize("status", [200, 403, 500])
async def test_after_an_error_page_that_no_program_understands_the_next_login_registers_another_client(http, status):
    await log_in_to(http)
    http.control(forget=True, page=status)
    with pytest.raises(AuthorizationFailed, match="log in again, and another client is registered"):
        await log_in(http.spec(), vault_of(SqliteStore()), goes_back)
    assert await works(http) == "seen", "what was granted is kept"
    await log_in_to(http)
    assert http.journal.count("registration") == 2
    assert await works(http) == "seen"


async def test_a_client_that_is_refused_once_the_person_has_agreed_is_replaced_and_the_person_asked_again(http):
    await log_in_to(http)
    person, forgets = Person(), [True]

    async def agree(request):
        url = await Person(pastes=True)(request) if forgets else None
        if not forgets:
            return await person(request)
        http.control(forget=forgets.pop())
        return url

    await log_in(http.spec(), vault_of(SqliteStore()), agree)
    assert (http.journal.count("registration"), len(person.asked)) == (2, 1)
    assert await works(http) == "seen"


async def test_a_client_that_is_refused_at_a_renewal_is_dropped_and_a_login_helps(far, user_folders):
    await log_in_to(far)
    async with supervised(far.spec()) as supervisor, supervisor.events() as events:
        far.control(forget=True, expire=True)
        await many(supervisor, 1)
        await next_state(events, S.NEEDS_AUTH, "far")
        (document,) = kept(user_folders).values()
        assert (document["tokens"]["client"], document["tokens"]["refresh"]) == ({}, None)
        await log_in_to(far)
        with trio.fail_after(30):
            await next_state(events, S.CONNECTED, "far")
    assert (far.journal.count("registration"), far.journal.count("unknown_client")) == (2, 0)


async def test_damaged_tokens_are_replaced_by_a_login(http, user_folders):
    """As their error says."""
    await log_in_to(http)
    ((path, _),) = kept(user_folders).items()
    path.write_text("{")
    async with open_supervisor([http.spec()]) as supervisor:
        await supervisor.list_tools()
        assert "damaged; log in again" in status_of(supervisor, "far").error
    await log_in_to(http)
    assert await works(http) == "seen"


async def test_a_passing_failure_of_a_login_drops_nothing(http, user_folders):
    await log_in_to(http)
    before = kept(user_folders)
    http.control(down=3600)
    with pytest.raises(AuthorizationFailed, match="503"):
        await log_in_to(http)
    assert kept(user_folders) == before
    http.control()
    await log_in_to(http)
    assert http.journal.count("registration") == 1


async def test_a_person_who_does_not_agree_leaves_the_client_as_it_was(http, user_folders):
    await log_in_to(http)
    before = kept(user_folders)

    async def refuse(request):
        state = httpx2.URL(request.url).params["state"]
        return f"{request.redirect_uri}?error=access_denied&state={state}"

    with pytest.raises(AuthorizationFailed, match="access_denied"):
        await log_in(http.spec(), vault_of(SqliteStore()), refuse)
    assert kept(user_folders) == before


async def test_a_client_that_is_refused_as_soon_as_it_is_registered_is_not_registered_for_ever(http):
    async def agree(request):
        url = await Person(pastes=True)(request)
        http.control(forget=True)
        return url

    for registrations in (1, 2):
        with pytest.raises(AuthorizationFailed, match="client"):
            await log_in(http.spec(), vault_of(SqliteStore()), agree)
        assert http.journal.count("registration") == registrations


async def test_a_host_that_shows_pages_needs_no_command(far):
    """The consent has its own time: it is none of the time to connect."""
    person = Person()

    async def slow(request):
        await trio.sleep(1.5)
        return await person(request)

    spec = far.spec()
    with trio.fail_after(60):
        async with open_supervisor([spec], callbacks=Callbacks(authorize=slow)) as supervisor:
            async with supervisor.events() as events:
                await next_state(events, S.CONNECTED, "far")
            assert said(await supervisor.call_tool("look", server="far")) == "seen"
    (asked,) = person.asked
    assert asked.server == "far"
    assert "state=" not in repr(asked)


async def test_what_the_browser_was_sent_back_with_can_be_pasted(http):
    """On a machine without a browser."""
    await log_in(http.spec(), vault_of(SqliteStore()), Person(pastes=True))
    async with supervised(http.spec()):
        pass


async def test_a_person_who_does_not_agree_is_asked_once(http):
    asked = []

    async def refuse(request):
        asked.append(request)
        state = httpx2.URL(request.url).params["state"]
        return f"{request.redirect_uri}?error=access_denied&state={state}"

    async with open_supervisor([http.spec()], callbacks=Callbacks(authorize=refuse)) as supervisor:
        with trio.fail_after(30):
            async with supervisor.events() as events:
                while "access_denied" not in (status_of(supervisor, "far").error or ""):
                    event = await events.receive()
            with pytest.raises(ServerDown, match=r"401.*: far: not authorised: .*access_denied"):
                await supervisor.wait_connected("far")
        assert status_of(supervisor, "far").state is S.NEEDS_AUTH
        assert (event.old, event.new, event.error) == (S.NEEDS_AUTH, S.NEEDS_AUTH, status_of(supervisor, "far").error)
    assert len(asked) == 1


async def test_a_client_authorises_itself(far):
    """Without a person; a lost token is replaced without anybody's doing."""
    words = OAuth(grant="client_credentials", client_id="machine", client_secret="machines-secret", issuer=far.origin)
    async with supervised(far.spec(auth=words)) as supervisor:
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
        far.control(revoke=True)
        assert await many(supervisor) == ["seen"] * 10
        assert far.tokens("client_credentials") == 2
    far.control(revoke=True)
    wrong = OAuth(grant="client_credentials", client_id="machine", client_secret="wrong-5ecret", issuer=far.origin)
    async with open_supervisor([far.spec(auth=wrong)]) as supervisor:
        await supervisor.list_tools()
        assert status_of(supervisor, "far").state is S.NEEDS_AUTH


def assertion(issuer, **other):
    """What a platform gives a workload."""
    return jwt.encode({"sub": "workload", "aud": issuer, "jti": token_hex(8), **other}, PLATFORM, "HS256")


async def test_a_workload_shows_what_its_platform_has_written(far, tmp_path):
    """Each time anew, and never what came of the time before; the issuer takes each assertion once."""
    file = tmp_path / "token"
    file.write_text(f"{assertion(far.origin)}\n")
    words = OAuth(grant="workload", issuer=far.origin, assertion_file=str(file))
    async with supervised(far.spec(auth=words)) as supervisor:
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
        far.control(expire=True)
        file.write_text(assertion(far.origin))
        assert await many(supervisor) == ["seen"] * 10
    assert (far.tokens(WORKLOAD), far.tokens("refresh_token"), far.journal.count("registration")) == (2, 0, 0)


@pytest.mark.parametrize("given", ["text", "function"])
async def test_an_assertion_of_a_workload_comes_as_text_or_from_a_function(http, given):
    asked = []

    async def ask(issuer, resource):
        asked.append((issuer, resource))
        return assertion(issuer)

    words = OAuth(
        grant="workload", issuer=http.origin, assertion=ask if given == "function" else assertion(http.origin)
    )
    async with supervised(http.spec(auth=words)) as supervisor:
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
    assert asked == [(http.origin, http.url)] * len(asked)


@pytest.mark.parametrize("fault", ["aud", "exp", "none"])
async def test_a_workload_that_is_refused_says_so_and_asks_once(http, fault):
    """By no other grant, and not again."""
    wrong = {"aud": assertion("https://other.example"), "exp": assertion(http.origin, exp=1), "none": "a.b.c"}[fault]
    words = OAuth(grant="workload", issuer=http.origin, assertion=wrong)
    async with open_supervisor([http.spec(auth=words)]) as supervisor:
        await supervisor.list_tools()
        status = status_of(supervisor, "far")
        assert (status.state, http.journal.count("look")) == (S.NEEDS_AUTH, 0)
        assert "refuses: HTTP 400 invalid_grant" in status.error
    assert [http.tokens(grant) for grant in (WORKLOAD, "client_credentials", "refresh_token")] == [1, 0, 0]


@pytest.mark.parametrize(
    ("written", "told"), [(None, "No such file or directory"), ("root:x:0:0:root", "no JWT is in it")]
)
async def test_a_file_without_an_assertion_is_named_and_sent_nowhere(http, tmp_path, written, told, monkeypatch):
    monkeypatch.setattr(renewal, "_RENEWAL_PAUSES", ())
    file = tmp_path / "token"
    if written is not None:
        file.write_text(written)
    words = OAuth(grant="workload", issuer=http.origin, assertion_file=str(file))
    with pytest.raises(AuthorizationFailed) as caught:
        await log_in(http.spec(auth=words), vault_of(SqliteStore()), Person())
    problem = f"assertion_file (assertionFile): {told}: {file}; the platform has to put a JWT there"
    assert problem in str(caught.value)
    async with open_supervisor([http.spec(auth=words)]) as supervisor:
        await supervisor.list_tools()
        assert problem in status_of(supervisor, "far").error
    assert http.tokens(WORKLOAD) == 0


async def test_a_scope_that_is_missing_is_seen_before_a_renewal(http):
    """P5: a call is refused for it, and the connection goes on; the next login asks for it too."""
    await log_in_to(http)
    async with supervised(http.spec()) as supervisor:
        with pytest.raises(ServerError, match="insufficient_scope, it wants admin") as caught:
            await supervisor.call_tool("admin", server="far")
        assert caught.value.code == 403
        assert http.tokens("refresh_token") == 0
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
        await log_in_to(http)
    async with supervised(http.spec()) as supervisor:
        assert said(await supervisor.call_tool("admin", server="far")) == "done"
        assert said(await supervisor.call_tool("look", server="far")) == "seen"


async def test_a_person_is_asked_for_the_scope_that_is_missing(http):
    """Calls are refused meanwhile and the connection goes on; it has the new token once the person has agreed."""
    await log_in_to(http)
    person = Person()
    async with supervised(http.spec(), callbacks=Callbacks(authorize=person)) as supervisor:
        answer = None
        with trio.fail_after(30):
            while answer is None:
                with suppress(ServerError):
                    answer = said(await supervisor.call_tool("admin", server="far"))
        assert answer == "done"
        assert len(person.asked) == 1
        assert status_of(supervisor, "far").incarnation == 1
    assert http.journal.count("consent") == 2


async def test_a_client_of_its_own_takes_the_scope_that_is_missing(http):
    words = OAuth(grant="client_credentials", client_id="machine", client_secret="machines-secret", issuer=http.origin)
    async with supervised(http.spec(auth=words)) as supervisor:
        assert said(await supervisor.call_tool("admin", server="far")) == "done"
        assert said(await supervisor.call_tool("look", server="far")) == "seen"
    assert http.tokens("client_credentials") == 2


@pytest.mark.parametrize("kind", ["http", "sse", "dpop"])
async def test_no_token_is_said_anywhere(servers, kind, user_folders, caplog):
    """In no log of ours or of the SDK, event, status, error, repr or state file; also not by who quotes them."""
    for name in ("mcp_nursery", "mcp"):
        caplog.set_level(logging.DEBUG, name)
    shown = []
    far = servers(kind)
    await log_in_to(far, dpop=far.dpop)
    keys = [document["tokens"]["proof_key"] for document in kept(user_folders).values() if far.dpop]
    async with supervised(far.spec()) as supervisor, supervisor.events() as events:
        far.control(expire=True)
        shown += await many(supervisor, 3)
        far.control(expire=True, quotes=True)
        shown += await many(supervisor, 3)
        shown.append(await next_state(events, S.NEEDS_AUTH, "far"))
        shown.append(supervisor.status())
        with pytest.raises(AuthorizationFailed) as failed:
            await log_in_to(far, dpop=far.dpop)
        shown += [failed.value, supervisor.tools, far.spec()]
    state = (user_folders / "state" / "mcp-nursery" / "state-6.sqlite3").read_bytes().decode("latin1")
    said = httpx2.get(f"{far.origin}/said", timeout=60).json()
    assert (len(said) >= 6, len(keys)) == (True, far.dpop)
    said += keys
    everything = "".join([caplog.text, state, *(f"{each!r}{each}" for each in shown)])
    assert [secret for secret in said if secret in everything] == []
    assert "REDACTED" in repr(shown)

"""How an entry says that its requests are authorised, and the command that prints headers."""

import json

import pytest
import trio

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.secrets import SECRETS
from mcp_nursery.supervisor import OAuth
from mcp_nursery.supervisor.config.deferred import DeferredTransport, Resolver
from mcp_nursery.supervisor.config.dialects import opencode, other_hosts
from mcp_nursery.supervisor.config.discovery import EntryOrigin
from mcp_nursery.supervisor.config.entry import read_entry
from mcp_nursery.supervisor.security.redaction import ServerSecrets
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.transports import HttpTransport, UnusableTransport

URL = "https://far.example/mcp"


def spec_of(origin=None, **said):
    return read_entry("far", {"url": URL, **said}, number=1, origin=origin or EntryOrigin("/f.json")).spec


def problem(**said):
    transport = spec_of(**said).transport
    assert isinstance(transport, UnusableTransport)
    return str(transport.error)


@pytest.mark.parametrize("said", ["oauth", {"type": "oauth"}])
def test_a_word_is_enough(said):
    assert spec_of(auth=said).transport == HttpTransport(URL, auth=OAuth())


def test_all_that_code_can_say():
    said = {
        "type": "oauth",
        "grant": "enterprise",
        "scopes": ["read"],
        "clientId": "me",
        "clientSecret": "s",
        "assertion": "a",
        "issuer": "https://issuer.example",
        "clientMetadataUrl": "https://me.example/client",
        "dpop": True,
        "requirePkce": False,
        "redirectPort": 8000,
        "redirectUri": "http://127.0.0.1:8000/back",
    }
    words = OAuth(
        grant="enterprise",
        scopes=["read"],
        client_id="me",
        client_secret="s",
        assertion="a",
        issuer="https://issuer.example",
        client_metadata_url="https://me.example/client",
        dpop=True,
        require_pkce=False,
        redirect_port=8000,
        redirect_uri="http://127.0.0.1:8000/back",
    )
    assert spec_of(auth=said).transport.auth == words
    assert "'s'" not in repr(words)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("bearer-5ecret", "field 'auth': must be \"oauth\", or an object"),
        (5, "field 'auth': must be \"oauth\", or an object"),
        ({"type": "oauth", "client": 1}, "field 'auth.client': unknown key"),
        ({"type": "oauth", "grant": "password"}, "field 'auth.grant': must be 'authorization_code'"),
        ({"type": "oauth", "grant": "client_credentials"}, "field 'auth.clientId': missing"),
        ({"type": "oauth", "grant": "workload", "assertion": "a"}, "field 'auth.issuer': missing, and workload needs"),
        ({"type": "oauth", "grant": "workload", "issuer": "https://i"}, "field 'auth.assertion': missing"),
        ({"type": "oauth", "grant": "client_credentials", "clientId": "me"}, "field 'auth.clientSecret': missing"),
        ({"type": "oauth", "redirectUri": "https://elsewhere/"}, "field 'auth.redirectUri': an http URL"),
        ({"type": "oauth", "redirectPort": 70000}, "field 'auth.redirectPort': must be a port"),
    ],
)
def test_what_cannot_work_names_its_field(said, told):
    assert told in problem(auth=said)
    assert "5ecret" not in problem(auth=said)


def test_a_web_socket_has_none():
    assert "field 'auth'" in problem(auth="oauth", url="wss://far.example/")


async def test_words_are_resolved_at_each_connect(monkeypatch):
    monkeypatch.setenv("SECRET_OF_CLIENT", "first-5ecret")
    said = {
        "type": "oauth",
        "clientId": "${NAME}",
        "clientSecret": "${env:SECRET_OF_CLIENT}",
        "issuer": "!echo https://i",
    }
    transport = spec_of(auth=said, env={"NAME": "me"}).transport
    assert isinstance(transport, DeferredTransport)
    resolver = Resolver(transport)
    words = (await resolver.transport()).auth
    assert words == OAuth(client_id="me", client_secret="first-5ecret", issuer="https://i")
    assert "first-5ecret" in resolver.secrets
    assert "5ecret" not in repr(transport)


async def test_the_file_of_an_assertion_may_come_from_a_variable_and_belongs_to_the_project(monkeypatch):
    monkeypatch.setenv("NAME_OF_FILE", "token")
    project = EntryOrigin("/p/.mcp.json", workspace="/p")
    said = {"type": "oauth", "grant": "workload", "issuer": "https://i", "assertionFile": "${NAME_OF_FILE}"}
    for written, file in (("${NAME_OF_FILE}", "/p/token"), ("t/1", "/p/t/1"), ("/var/run/token", "/var/run/token")):
        transport = spec_of(project, auth={**said, "assertionFile": written}).transport
        resolved = await Resolver(transport).transport() if isinstance(transport, DeferredTransport) else transport
        assert resolved.auth == OAuth(grant="workload", issuer="https://i", assertion_file=file)
    assert spec_digest(spec_of(auth=said)) != spec_digest(spec_of(auth={**said, "assertionFile": "other"}))


def test_an_entry_of_a_project_has_to_be_agreed_to():
    """It would use what its user may do elsewhere; or run a command."""
    project = EntryOrigin("/p/.mcp.json", trusted=False)
    assert spec_of(project).trust_request is None
    assert spec_of(project, auth="oauth").trust_request.reasons == ("uses your tokens",)
    said = {"type": "oauth", "clientSecret": "!pass x"}
    assert "runs a command for auth" in spec_of(project, auth=said).trust_request.reasons
    assert spec_of(project, headersHelper="x").trust_request.reasons == ("runs a command for headers",)


def test_what_says_nothing_of_it_is_known_as_before():
    """Digests that were written down hold on: eras and pins of servers are found by them."""
    assert spec_digest(spec_of()) == "86965a6de910388691134a254c01cb0464282b1fa8fb035107b02c2df052e160"
    deferred = spec_of(headers={"A": "${B}"})
    assert spec_digest(deferred) == "f77a6fbedfc9570e96a7335894820f740a11231b38646b0dc1cc80b761e221ca"
    assert spec_digest(spec_of(auth="oauth")) not in (None, spec_digest(spec_of()))
    assert spec_digest(spec_of(auth="oauth")) == spec_digest(spec_of(auth={"type": "oauth"}))
    assert spec_digest(spec_of(auth="oauth")) == spec_digest(spec_of(auth={"type": "oauth", "dpop": True}))


# the command that prints headers


def helper(printed):
    return f"printf %s '{json.dumps(printed) if not isinstance(printed, str) else printed}'"


async def test_a_helper_s_headers_go_over_those_that_stand_there():
    """K11, P6: whatever the case of their names; secrets are known."""
    said = {"A": "static", "x-kept": "static"}
    transport = spec_of(headers=said, headersHelper=helper({"a": "helped-5ecret"})).transport
    resolver = Resolver(transport)
    assert (await resolver.transport()).headers == {"a": "helped-5ecret", "x-kept": "static"}
    assert "helped-5ecret" in resolver.secrets
    assert "5ecret" not in f"{transport!r}{transport}"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (helper("5ecret"), "did not print a JSON object"),
        (helper("[]"), "did not print a JSON object"),
        (helper({"a": 5}), "the header a must be text"),
        (helper({"a b": "5ecret"}), "is not a valid header name"),
        ("echo 5ecret; exit 3", "exit code 3"),
    ],
)
async def test_a_helper_that_fails_is_worth_another_try(command, told):
    with pytest.raises(StartFailed, match=told) as caught:
        await Resolver(spec_of(headersHelper=command).transport).transport()
    assert caught.value.retriable
    assert "field 'headersHelper'" in str(caught.value)
    assert "5ecret" not in str(caught.value)


async def test_a_helper_has_ten_seconds(monkeypatch):
    monkeypatch.setattr("mcp_nursery.supervisor.config.value_sources.COMMAND_SECONDS", 0.2)
    with trio.fail_after(10), pytest.raises(StartFailed, match="took more than"):
        await Resolver(spec_of(headersHelper="sleep 60").transport).transport()


async def test_connecting_tells_of_what_a_helper_printed():
    secrets = ServerSecrets()
    SECRETS.set(secrets)
    connector = spec_of(headersHelper=helper({"a": "helped-5ecret"})).transport.connector(close_grace=1)
    await connector._resolve()
    assert "helped-5ecret" not in secrets.hide("it said helped-5ecret")


# other hosts


CLIENT = OAuth(client_id="me", client_secret="s", scopes=["read", "write"])


@pytest.mark.parametrize(
    ("translate", "said", "words"),
    [
        (other_hosts.claude, {"clientId": "me", "callbackPort": 8080}, OAuth(client_id="me", redirect_port=8080)),
        (other_hosts.claude, {"scopes": "read write"}, OAuth(scopes=["read", "write"])),
        (opencode.translate, {"clientId": "me", "clientSecret": "s", "scope": "read write"}, CLIENT),
        (opencode.translate, {}, OAuth()),
        (opencode.translate, False, None),
        (
            other_hosts.gemini,
            {"enabled": True, "clientId": "me", "clientSecret": "s", "scopes": ["read", "write"]},
            CLIENT,
        ),
        (other_hosts.gemini, {"enabled": False, "clientId": "me"}, None),
    ],
)
def test_words_of_other_hosts(translate, said, words):
    own = translate({"url": URL, "type": "http", "oauth": said}).own
    assert spec_of(**{key: value for key, value in own.items() if key != "oauth"}).transport.auth == words


def test_what_another_host_says_besides_is_warned_of():
    said = {"clientId": 5, "tokenUrl": "https://issuer.example/token"}
    translation = other_hosts.gemini({"httpUrl": URL, "oauth": said})
    assert translation.own["oauth"] == {"tokenUrl": "https://issuer.example/token"}
    assert translation.words["auth.clientId"] == "oauth.clientId"

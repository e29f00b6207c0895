"""A server that refuses the version of `initialize` and names those that it speaks: asked once more, and remembered."""

import pytest

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Host
from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.session.handshake import negotiate
from mcp_nursery.supervisor import HttpTransport, RestartPolicy, ServerSpec, open_supervisor

from ...lab.http_peer import HANDSHAKE, INFO, response, serving
from ...lab.sessions import MODERN, answers, connection, discovery, greeting, refuses, session
from ...lab.specs import status

LATEST, OLD, OLDEST = "2025-11-25", "2025-06-18", "2024-11-05"
UNKNOWN = refuses(-32601)


def names(*versions, code=-32602, **more):
    return refuses(code, message="Unsupported protocol version", data={"supported": list(versions), **more})


def says(words, code=-32000):
    return refuses(code, message=words)


def offered(lab):
    return [message["params"]["protocolVersion"] for message in lab.heard_of("initialize")]


@pytest.mark.parametrize(
    ("refusal", "then"),
    [
        (names(OLDEST, OLD), OLD),
        (names(OLDEST, OLD, requested=LATEST), OLD),
        (names("2030-01-01", OLDEST), OLDEST),
        (names(OLD, code=-32022, requested=LATEST), OLD),
        (says(f"Bad Request: Unsupported protocol version: {LATEST} (supported versions: {OLDEST}, {OLD})"), OLD),
        (says(f"Unsupported protocol version. Supported versions: {OLD}", 400), OLD),
    ],
)
@pytest.mark.parametrize("remembered", [None, Era.HANDSHAKE])
async def test_a_refused_version_is_replaced_by_the_best_that_is_named(refusal, then, remembered, autojump_clock):
    script = {"server_discover": UNKNOWN, "initialize": [refusal, answers(greeting(then))]}
    async with session(**script) as (lab, client):
        handshake = await negotiate(client, remembered)
        assert offered(lab) == [LATEST, then]
        assert (handshake.era, handshake.protocol_version, handshake.remembered) == (Era.HANDSHAKE, then, then)
    async with session(initialize=answers(greeting(then))) as (lab, client):
        again = await negotiate(client, handshake.remembered)
        assert (offered(lab), lab.asked, again.remembered) == ([then], ["initialize"], then)


async def test_what_was_remembered_is_replaced_when_it_is_refused(autojump_clock):
    async with session(initialize=[names(LATEST), answers(greeting(LATEST))]) as (lab, client):
        handshake = await negotiate(client, OLDEST)
        assert (offered(lab), handshake.remembered) == ([OLDEST, LATEST], LATEST)


async def test_a_server_that_names_the_newest_is_asked_for_that(autojump_clock):
    script = {"server_discover": answers(discovery()), "initialize": names(MODERN)}
    async with session(**script) as (lab, client):
        handshake = await negotiate(client, Era.HANDSHAKE)
        assert (lab.asked, handshake.remembered) == (["initialize", "server/discover"], Era.MODERN)


@pytest.mark.parametrize(
    "refusal",
    [names("2030-01-01"), names(), names(LATEST), says("not before 2025-06-18"), names(7), says("no version")],
)
async def test_a_server_that_names_no_other_is_asked_once(refusal, autojump_clock):
    async with session(server_discover=UNKNOWN, initialize=refusal) as (lab, client):
        with pytest.raises(JsonRpcError):
            await negotiate(client, Era.HANDSHAKE)
        assert offered(lab) == [LATEST]


async def test_a_server_that_refuses_what_it_has_named_is_asked_no_third_time(autojump_clock):
    async with session(initialize=names(OLDEST, OLD)) as (lab, client):
        with pytest.raises(JsonRpcError):
            await negotiate(client, Era.HANDSHAKE)
        assert offered(lab) == [LATEST, OLD]


@pytest.mark.parametrize(
    ("protocol", "script"),
    [
        (LATEST, {"initialize": names(OLDEST, OLD)}),
        (MODERN, {"server_discover": says(f"version not supported (supported versions: {OLDEST}, {OLD})")}),
    ],
)
async def test_the_error_of_a_fixed_version_names_the_setting(protocol, script, autojump_clock):
    async with connection(Host("lab", NO_CALLBACKS, protocol=protocol), **script) as (lab, opening):
        with pytest.raises(HandshakeFailed) as failed:
            await opening.handshake(None)
        begin = f"it speaks {OLD} and {OLDEST}, and its setting protocol is '{protocol}': "
        assert failed.value.loss.message.startswith(begin)
        assert failed.value.loss.unusable
        assert len(lab.asked) == 1


@pytest.mark.parametrize("refused", ["initialize", "tools/list"])
async def test_over_http_the_next_conversation_begins_with_it(refused, tmp_path):
    """Servers whose transport knows fewer versions than what answers `initialize` refuse what follows by 400."""
    named = f"Bad Request: Unsupported protocol version (supported versions: {OLDEST}, {OLD})"

    async with serving(HANDSHAKE) as peer:

        async def strict(asked):
            message = asked.message
            if message.get("method") == "initialize" and (
                refused == "tools/list" or message["params"]["protocolVersion"] == OLD
            ):
                version = message["params"]["protocolVersion"]
                await peer._result(
                    asked, {"protocolVersion": version, "serverInfo": INFO, "capabilities": {"tools": {}}}
                )
            elif message.get("method") == "initialize" or asked.header(b"mcp-protocol-version") == LATEST.encode():
                await asked.send(response(400, named.encode(), b"text/plain"))
            else:
                return False
            return True

        peer.on_other = strict

        async def connect():
            before = len(peer.asked)
            spec = ServerSpec("far", HttpTransport(peer.url), policy=RestartPolicy(delays=(0.01,)))
            async with open_supervisor([spec], state=tmp_path / "state") as nursery:
                await nursery.wait_connected("far")
                assert status(nursery, "far").protocol_version == OLD
            heard = [asked.message for asked in peer.asked[before:]]
            return [one["params"]["protocolVersion"] for one in heard if one.get("method") == "initialize"]

        assert await connect() == [LATEST, OLD]
        assert await connect() == [OLD]

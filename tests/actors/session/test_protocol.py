"""What is spoken where a spec says it: one question, and no guess."""

import pytest
import trio

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Host
from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.session.handshake import WrongProtocol, check_protocol

from ...lab.sessions import HANDSHAKE, MODERN, MUTE, answers, connection, dies, discovery, greeting, refuses

PROBE, INITIALIZE = "server/discover", "initialize"
BOTH = {"server_discover": answers(discovery()), "initialize": answers(greeting())}


def host(protocol):
    return Host("lab", NO_CALLBACKS, protocol=protocol)


async def opened(protocol, remembered=None, **script):
    async with connection(host(protocol), **script) as (lab, opening):
        return await opening.handshake(remembered), lab


async def failed(protocol, remembered=None, **script):
    async with connection(host(protocol), **script) as (lab, opening):
        with pytest.raises(HandshakeFailed) as caught:
            await opening.handshake(remembered)
        return caught.value, lab


@pytest.mark.parametrize("remembered", [None, *Era])
@pytest.mark.parametrize(
    ("protocol", "asked", "version"),
    [("handshake", INITIALIZE, HANDSHAKE), (HANDSHAKE, INITIALIZE, HANDSHAKE), (MODERN, PROBE, MODERN)],
)
async def test_one_question_is_asked_whatever_is_remembered(protocol, asked, version, remembered, autojump_clock):
    handshake, lab = await opened(protocol, remembered, **BOTH)
    assert (handshake.protocol_version, lab.asked) == (version, [asked])


async def test_the_version_that_is_wanted_is_offered(autojump_clock):
    handshake, lab = await opened("2025-03-26", initialize=answers(greeting("2025-03-26")))
    assert handshake.protocol_version == lab.heard[0]["params"]["protocolVersion"] == "2025-03-26"


async def test_another_version_cannot_be_mended_by_trying_again(autojump_clock):
    failure, _ = await failed("2025-03-26", initialize=answers(greeting("2025-06-18")))
    assert failure.loss.unusable
    assert failure.loss.message == "its protocol is set to '2025-03-26', and it answers '2025-06-18'"


@pytest.mark.parametrize(
    ("protocol", "script"), [(MODERN, {}), ("handshake", {"initialize": refuses(-32601)})], ids=["modern", "handshake"]
)
async def test_a_refusal_is_the_end_and_says_what_was_wanted(protocol, script, autojump_clock):
    failure, lab = await failed(protocol, **script)
    assert failure.loss.message.startswith(f"the handshake (protocol {protocol}) failed: ")
    assert len(lab.asked) == 1


async def test_a_server_that_dies_of_the_question_is_not_asked_another(autojump_clock):
    failure, _ = await failed(MODERN, server_discover=dies(Loss("exited with code 101", exit_code=101)))
    assert not failure.probe_refused


async def test_a_mute_server_is_sent_no_initialize(autojump_clock):
    async with connection(host(MODERN), server_discover=MUTE) as (lab, opening):
        with trio.move_on_after(25):
            await opening.handshake(None)
        assert set(lab.asked) == {PROBE}


@pytest.mark.parametrize(
    ("protocol", "only", "fits"),
    [
        ("auto", Era.MODERN, True),
        ("handshake", Era.MODERN, False),
        (HANDSHAKE, Era.MODERN, False),
        (MODERN, Era.MODERN, True),
        (MODERN, Era.HANDSHAKE, False),
        ("handshake", None, True),
    ],
)
def test_a_transport_of_one_era_carries_no_other(protocol, only, fits):
    if fits:
        check_protocol(protocol, only)
        return
    with pytest.raises(WrongProtocol, match=f"over its transport servers speak the {only} era"):
        check_protocol(protocol, only)

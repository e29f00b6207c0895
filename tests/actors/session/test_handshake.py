"""Which era a server speaks: every kind of answer to the probe and to `initialize`, with exact times."""

import pytest
import trio

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.messages import Handshake
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.secrets import MAX_LINE
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.session.handshake import negotiate
from mcp_nursery.actors.session.session import client_info

from ...lab.sessions import (
    HANDSHAKE,
    INFO,
    MODERN,
    MUTE,
    answers,
    connection,
    dies,
    discovery,
    greeting,
    listing,
    refuses,
    session,
    unsupported,
)

PROBE, INITIALIZE = "server/discover", "initialize"
GOOD_PROBE, GOOD_INITIALIZE = answers(discovery()), answers(greeting())


async def opened(remembered=None, **script):
    """The era, what the server was asked, and when it was settled."""
    async with session(**script) as (lab, client):
        handshake = await negotiate(client, remembered)
        settled = trio.current_time()
        return handshake, lab, settled


async def refused(error, remembered=None, **script):
    """What was raised, and what the server was asked."""
    async with session(**script) as (lab, client):
        with pytest.raises(error) as caught:
            await negotiate(client, remembered)
        return caught.value, lab.asked


# what comes of it


async def test_a_modern_server_is_asked_once(autojump_clock):
    handshake, lab, settled = await opened(server_discover=GOOD_PROBE, initialize=unsupported(MODERN))
    assert handshake == Handshake(
        era=Era.MODERN,
        protocol_version=MODERN,
        server_info=handshake.server_info,
        capabilities={"tools": {}},
        instructions="be kind",
    )
    assert handshake.server_info == INFO
    assert (lab.asked, settled) == ([PROBE], 0)


async def test_a_server_that_names_nobody_is_served_all_the_same(autojump_clock):
    handshake, _, _ = await opened(server_discover=answers(discovery(_meta={})))
    assert (handshake.era, handshake.server_info) == (Era.MODERN, None)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", HANDSHAKE])
async def test_a_handshake_server_is_told_that_it_is_initialized(version, autojump_clock):
    handshake, lab, settled = await opened(initialize=answers(greeting(version)))
    assert (handshake.era, handshake.protocol_version) == (Era.HANDSHAKE, version)
    assert handshake.instructions == "be kind"
    assert (lab.asked, settled) == ([PROBE, INITIALIZE], 0)
    assert lab.heard[-1]["method"] == "notifications/initialized"


async def test_servers_are_told_who_asks(autojump_clock):
    _, lab, _ = await opened(initialize=GOOD_INITIALIZE)
    probe, initialize = lab.heard[:2]
    assert probe["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] == "mcp-nursery"
    assert initialize["params"]["clientInfo"] == client_info()


# refusals of the probe


@pytest.mark.parametrize("code", [-32601, -32600, -32602, -32603, -32700, -32000, -32001, -1, 0, 404])
async def test_any_error_on_the_probe_means_initialize_at_once(code, autojump_clock):
    handshake, lab, settled = await opened(server_discover=refuses(code), initialize=GOOD_INITIALIZE)
    assert (handshake.era, lab.asked, settled) == (Era.HANDSHAKE, [PROBE, INITIALIZE], 0)


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"supportedVersions": "2026-07-28"},
        {"content": []},
        discovery("2031-01-01"),
        discovery(HANDSHAKE),
        {**discovery(), "supportedVersions": []},
        {**discovery(), "capabilities": 5},
    ],
    ids=["empty", "no list", "another's", "the future", "the past", "no version", "no capabilities"],
)
async def test_an_answer_that_cannot_be_used_means_initialize(nonsense, autojump_clock):
    handshake, lab, settled = await opened(server_discover=answers(nonsense), initialize=GOOD_INITIALIZE)
    assert (handshake.era, lab.asked, settled) == (Era.HANDSHAKE, [PROBE, INITIALIZE], 0)


async def test_a_refusal_that_names_a_version_we_share_is_probed_once_more(autojump_clock):
    handshake, lab, _ = await opened(server_discover=[unsupported("2031-01-01", MODERN), GOOD_PROBE])
    assert (handshake.era, lab.asked) == (Era.MODERN, [PROBE, PROBE])


async def test_and_not_twice_more(autojump_clock):
    raised, asked = await refused(JsonRpcError, server_discover=unsupported(MODERN), initialize=GOOD_INITIALIZE)
    assert (raised.code, asked) == (-32022, [PROBE, PROBE])


@pytest.mark.parametrize("versions", [[HANDSHAKE], ["2024-11-05", "2031-01-01"]])
async def test_a_refusal_that_names_a_handshake_version_means_initialize(versions, autojump_clock):
    handshake, lab, _ = await opened(server_discover=unsupported(*versions), initialize=GOOD_INITIALIZE)
    assert (handshake.era, lab.asked) == (Era.HANDSHAKE, [PROBE, INITIALIZE])


async def test_a_refusal_that_names_only_versions_of_the_future_is_the_end(autojump_clock):
    raised, asked = await refused(JsonRpcError, server_discover=unsupported("2031-01-01"), initialize=GOOD_INITIALIZE)
    assert (raised.code, asked) == (-32022, [PROBE])


@pytest.mark.parametrize("data", [None, {}, {"supported": 5}, "text"])
async def test_a_refusal_that_names_nothing_readable_means_initialize(data, autojump_clock):
    handshake, lab, _ = await opened(server_discover=refuses(-32022, data=data), initialize=GOOD_INITIALIZE)
    assert (handshake.era, lab.asked) == (Era.HANDSHAKE, [PROBE, INITIALIZE])


async def test_a_server_that_has_refused_the_first_probe_is_never_sent_initialize(autojump_clock):
    """P7: both attempts take more than the second together; `initialize` would make it one of the handshake."""
    refusal, found = unsupported("2031-01-01", MODERN, after=0.75), answers(discovery(), after=0.75)
    handshake, lab, settled = await opened(server_discover=[refusal, found], initialize=GOOD_INITIALIZE)
    assert (handshake.era, handshake.era_answered, settled) == (Era.MODERN, True, 1.5)
    assert lab.asked == [PROBE, PROBE]


@pytest.mark.parametrize(
    ("remembered", "script", "answered"),
    [
        (None, {"initialize": GOOD_INITIALIZE}, True),
        (None, {"server_discover": MUTE, "initialize": GOOD_INITIALIZE}, False),
        (None, {"server_discover": refuses(-32601, after=2), "initialize": answers(greeting(), after=4)}, True),
        (None, {"server_discover": answers(discovery(), after=2), "initialize": answers(greeting(), after=4)}, False),
        (Era.HANDSHAKE, {"initialize": GOOD_INITIALIZE}, False),
        (Era.HANDSHAKE, {"server_discover": GOOD_PROBE, "initialize": unsupported(MODERN)}, True),
    ],
    ids=["refused", "mute", "refused late", "slow, and speaks both", "not asked", "not asked, and modern"],
)
async def test_an_era_is_answered_or_it_follows_from_silence(remembered, script, answered, autojump_clock):
    handshake, _, _ = await opened(remembered, **script)
    assert handshake.era_answered is answered


# mute servers


async def test_a_server_mute_for_the_probe_costs_a_second(autojump_clock):
    async with session(server_discover=MUTE, initialize=GOOD_INITIALIZE) as (lab, client):
        handshake = await negotiate(client, None)
        assert (handshake.era, trio.current_time()) == (Era.HANDSHAKE, 1.0)
        assert lab.times == [(0, PROBE), (1.0, INITIALIZE)]
        await trio.sleep(60)
        assert lab.heard_of("notifications/cancelled") == []  # a probe must not be cancelled


async def test_a_slow_modern_server_that_refuses_initialize_is_waited_for(autojump_clock):
    handshake, lab, settled = await opened(
        server_discover=answers(discovery(), after=3), initialize=unsupported(MODERN)
    )
    assert (handshake.era, settled) == (Era.MODERN, 3)
    assert lab.times == [(0, PROBE), (1.0, INITIALIZE)]


async def test_a_slow_handshake_server_that_refuses_the_probe_late_is_waited_for(autojump_clock):
    handshake, lab, settled = await opened(
        server_discover=refuses(-32601, after=2), initialize=answers(greeting(), after=4)
    )
    assert (handshake.era, settled) == (Era.HANDSHAKE, 5)
    assert lab.asked == [PROBE, INITIALIZE]


async def test_an_answer_within_the_second_is_hedged_by_nothing(autojump_clock):
    handshake, lab, settled = await opened(server_discover=answers(discovery(), after=0.75), initialize=GOOD_INITIALIZE)
    assert (handshake.era, settled, lab.asked) == (Era.MODERN, 0.75, [PROBE])


async def test_a_probe_that_stays_mute_is_given_up_ten_seconds_after_initialize_was_refused(autojump_clock):
    async with session(server_discover=MUTE, initialize=refuses(-32000, message="go away")) as (lab, client):
        with pytest.raises(JsonRpcError, match="go away"):
            await negotiate(client, None)
        assert trio.current_time() == 11
        assert lab.asked == [PROBE, INITIALIZE]


@pytest.mark.parametrize("takes", [12, 29])
@pytest.mark.parametrize("script", [{}, {"initialize": unsupported(MODERN)}], ids=["no such method", "no such version"])
async def test_a_modern_server_may_take_as_long_for_its_answer_as_a_start_may(takes, script, autojump_clock):
    """L2: every answer takes that long, so that asking again would not help."""
    handshake, lab, settled = await opened(server_discover=answers(discovery(), after=takes), **script)
    assert (handshake.era, settled, lab.asked) == (Era.MODERN, takes, [PROBE, INITIALIZE])


async def test_so_may_one_whose_version_is_set(autojump_clock):
    async with session(server_discover=answers(discovery(), after=25)) as (lab, client):
        handshake = await negotiate(client, None, protocol=MODERN)
        assert (handshake.era, trio.current_time(), lab.asked) == (Era.MODERN, 25, [PROBE])


async def test_so_may_one_that_is_probed_after_it_refused_initialize(autojump_clock):
    script = {"server_discover": answers(discovery(), after=25), "initialize": unsupported(MODERN)}
    handshake, lab, settled = await opened(Era.HANDSHAKE, **script)
    assert (handshake.era, settled, lab.asked) == (Era.MODERN, 25, [INITIALIZE, PROBE])


async def test_a_server_that_is_mute_for_all_holds_until_somebody_gives_up(autojump_clock):
    async with session(server_discover=MUTE, initialize=MUTE) as (lab, client):
        with trio.move_on_after(30):
            await negotiate(client, None)
        assert trio.current_time() == 30
        assert lab.asked == [PROBE, INITIALIZE]


@pytest.mark.parametrize(
    "refusal", [unsupported(MODERN, after=14), refuses(-32601, after=14)], ids=["version", "method"]
)
async def test_a_modern_server_that_takes_long_to_start_is_waited_for(refusal, autojump_clock):
    """A first `npx` or `uvx` may take that long. It reads both questions at second 14."""
    handshake, lab, settled = await opened(server_discover=answers(discovery(), after=15), initialize=refusal)
    assert (handshake.era, settled, lab.asked) == (Era.MODERN, 15, [PROBE, INITIALIZE])


# refusals of initialize


async def test_an_initialize_refused_for_its_version_is_a_probe(autojump_clock):
    """What is remembered may be of yesterday."""
    handshake, lab, _ = await opened(Era.HANDSHAKE, server_discover=GOOD_PROBE, initialize=unsupported(MODERN))
    assert (handshake.era, lab.asked) == (Era.MODERN, [INITIALIZE, PROBE])


async def test_a_probe_refused_for_once_and_an_initialize_refused_for_its_version_is_a_second_probe(autojump_clock):
    handshake, lab, _ = await opened(server_discover=[refuses(-32603), GOOD_PROBE], initialize=unsupported(MODERN))
    assert (handshake.era, lab.asked) == (Era.MODERN, [PROBE, INITIALIZE, PROBE])


@pytest.mark.parametrize("remembered", [None, Era.HANDSHAKE])
async def test_any_other_refusal_of_initialize_is_the_end(remembered, autojump_clock):
    raised, asked = await refused(JsonRpcError, remembered, initialize=refuses(-32000, message="go away"))
    assert raised.message == "go away"
    assert asked.count(INITIALIZE) == 1


async def test_a_version_of_initialize_that_nobody_knows_is_the_end(autojump_clock):
    raised, _ = await refused(RuntimeError, initialize=answers(greeting("1999-01-01")))
    assert "1999-01-01" in str(raised)


# what is remembered


async def test_a_remembered_handshake_sends_no_probe(autojump_clock):
    handshake, lab, settled = await opened(Era.HANDSHAKE, server_discover=MUTE, initialize=GOOD_INITIALIZE)
    assert (handshake.era, lab.asked, settled) == (Era.HANDSHAKE, [INITIALIZE], 0)


async def test_a_remembered_modern_server_is_probed_and_may_have_changed(autojump_clock):
    handshake, lab, _ = await opened(Era.MODERN, initialize=GOOD_INITIALIZE)
    assert (handshake.era, lab.asked) == (Era.HANDSHAKE, [PROBE, INITIALIZE])


# a server that dies of the probe

DIED = Loss("exited with code 101", exit_code=101)
DIED_UNHEARD = Loss("exited with code 1", exit_code=1, unheard=True)


@pytest.mark.parametrize(
    ("remembered", "loss", "refused"),
    [
        (None, DIED, True),
        (None, DIED_UNHEARD, False),  # it had not read the probe: it died of something else
        (Era.HANDSHAKE, DIED, False),
        (Era.MODERN, DIED, False),
    ],
)
async def test_a_server_that_ends_on_the_first_question(remembered, loss, refused, autojump_clock):
    async with connection(server_discover=dies(loss), initialize=dies(loss)) as (lab, opening):
        with pytest.raises(HandshakeFailed) as caught:
            await opening.handshake(remembered)
        assert caught.value.probe_refused is refused
        assert caught.value.loss == loss
        assert caught.value.era is None
        assert len(lab.asked) == 1


async def test_a_server_that_ends_on_the_hedge_is_not_one_that_hangs(autojump_clock):
    async with connection(server_discover=MUTE, initialize=dies(DIED)) as (_, opening):
        with pytest.raises(HandshakeFailed) as caught:
            await opening.handshake(None)
        assert caught.value.loss == DIED
        assert trio.current_time() == 1.0


async def test_a_server_that_refuses_the_probe_and_ends_may_be_one_that_wants_initialize_first(autojump_clock):
    async with connection(server_discover=refuses(-32600), initialize=dies(DIED)) as (_, opening):
        with pytest.raises(HandshakeFailed) as caught:
            await opening.handshake(None)
        assert caught.value.loss == DIED
        assert caught.value.probe_refused


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"initialize": refuses(-32000, message="go\naway")}, "the handshake failed: go away"),
        ({"initialize": refuses(-32000, message="go\naway " * 500_000)}, "the handshake failed: go away go away"),
        ({"initialize": answers(greeting("1999-01-01"))}, "1999-01-01"),
        ({"initialize": answers({"capabilities": {}})}, "an answer that is not valid MCP: Field required"),
        (
            {"initialize": answers(greeting(capabilities={f"k{at}": {} for at in range(5_000)}))},
            "an introduction with more than 5000 JSON values",
        ),
    ],
)
async def test_a_handshake_that_fails_says_why_in_one_line(script, words, autojump_clock):
    async with connection(**script) as (_, opening):
        with pytest.raises(HandshakeFailed) as caught:
            await opening.handshake(None)
        assert words in caught.value.loss.message
        assert "\n" not in caught.value.loss.message
        assert len(caught.value.loss.message) < MAX_LINE + 100
        assert (caught.value.era, caught.value.probe_refused) == (None, False)


async def test_the_era_is_told_when_only_the_listing_fails(autojump_clock):
    script = {"server_discover": GOOD_PROBE, "tools_list": [listing("a", cursor="b"), refuses(-32000)]}
    async with connection(**script) as (_, opening):
        await opening.handshake(None)
        with pytest.raises(HandshakeFailed) as caught:
            await opening.list_tools()
        assert caught.value.era is Era.MODERN

"""Calls through the gateway whose clients take their time to answer. Virtual time."""

import pytest
import trio
import trio.testing

from mcp_nursery.actors.limits import HUMAN_TIMEOUT
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor.gateway.upstream.held_calls import TOGETHER

from ....lab.gateway_clients import AskingServer, served
from .test_ask_client import newer, opened

pairs = pytest.mark.parametrize("session", [True, False], ids=["older client", "newer client"])
servers = pytest.mark.parametrize("kind", ["stream", "named", "modern"])


async def asked(server, ann, nursery):
    """The process whose call has asked Ann."""
    nursery.start_soon(ann.work)
    process = await server.called("Ann")
    process.ask("Ann")
    await ann.asked.wait()
    return process


@servers
@pairs
@pytest.mark.parametrize("works", [4, 6])
async def test_the_limit_of_a_server_stands_still_while_a_client_is_asked(autojump_clock, kind, session, works):
    """R4: in all pairs of eras."""
    server = AskingServer(kind)
    async with served(server, call_timeout=5) as (_, _, make, nursery):
        ann = make("Ann", session=session)
        process = await asked(server, ann, nursery)
        await trio.sleep(100)
        assert ann.results == []
        ann.goes_on.set()
        process = await server.called("Ann")  # a newer server is called again
        await trio.sleep(works)
        process.answer("Ann") if works < 5 else None
        await trio.testing.wait_all_tasks_blocked()
        assert ("for Ann" if works < 5 else "no answer within 5 s") in ann.results[0]


@servers
@pytest.mark.parametrize(("own", "front", "seconds"), [(10, 70, 10), (None, 70, 70), (None, None, HUMAN_TIMEOUT)])
async def test_a_client_that_does_not_answer(autojump_clock, kind, own, front, seconds):
    """P4: the server is told that its question was dismissed, after its own limit, else that of the gateway."""
    server = AskingServer(kind)
    async with served(server, front, human_timeout=own) as (_, _, make, nursery):
        process = await asked(server, make("Ann"), nursery)
        await trio.sleep(seconds - 1)
        assert "Ann" not in process.answers
        await trio.sleep(2)
        assert [each["result"] for each in process.answers["Ann"]] == [{"action": "cancel"}]


@pytest.mark.parametrize(("own", "front", "seconds"), [(10, 70, 10), (None, 70, 70), (None, None, HUMAN_TIMEOUT)])
async def test_a_client_that_does_not_come_back(autojump_clock, own, front, seconds):
    """P4: its call is cancelled, and a repetition names the setting."""
    server = AskingServer()
    async with served(server, front, human_timeout=own) as (_, gateway, make, nursery):
        ann = make("Ann", session=False)
        call = {"name": "work", "arguments": {"who": "Ann"}}

        async def first():
            ann.results.append(await ann.request("tools/call", **call))

        nursery.start_soon(first)
        process = await server.called("Ann")
        process.ask("Ann")
        await trio.sleep(1)
        (status,) = gateway.held
        assert status.expires_in == pytest.approx(seconds - 1, abs=0.1)
        await trio.sleep(seconds - 2)
        assert process.cancelled == []
        await trio.sleep(2)
        assert len(process.cancelled) == 1
        answers = {key: {"action": "decline"} for key in ann.results[0]["inputRequests"]}
        with pytest.raises(JsonRpcError, match="humanSeconds of the server or serve --answer-within"):
            await ann.request("tools/call", **call, inputResponses=answers, requestState=ann.results[0]["requestState"])


async def test_a_server_that_is_removed_while_its_call_is_about_to_be_asked_about(autojump_clock):
    """P4: its client is asked all the same, within the limit of the gateway."""
    async with opened(answer_within=7) as lab, trio.open_nursery() as nursery:

        async def remove():
            await trio.sleep(TOGETHER / 2)
            await lab.supervisor.remove_server("lab")

        nursery.start_soon(remove)
        assert (await lab.answer(newer()))["resultType"] == "input_required"
        assert "lab" not in [each.name for each in lab.supervisor.status()]
        (status,) = lab.gateway.held
        assert status.expires_in == 7

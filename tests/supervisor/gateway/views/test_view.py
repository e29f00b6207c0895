"""What all servers have as one, while some of them hang. Virtual time."""

import pytest
import trio

from mcp_nursery.actors.errors import CallTimeout
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.views.shown_uris import qualify
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.specs import hang, spec, status


async def says(arguments):
    await trio.lowlevel.checkpoint()
    return "a word"


async def unheard(method, params):
    raise AssertionError


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": qualify("lab", "note://1")}),
        ("prompts/get", {"name": "mcp_lab_hint"}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": qualify("lab", "note://1")},
                "argument": {"name": "x", "value": ""},
            },
        ),
    ],
)
async def test_a_server_that_hangs_holds_up_nobody_elses_resources_and_prompts(autojump_clock, method, params):
    lab = ScriptedServer(Life(), resources={"note://1": says}, prompts={"hint": says})
    async with (
        open_supervisor(
            [spec(lab), spec(ScriptedServer(Life(mute=True)), name="hung")], callbacks=gateway_callbacks()
        ) as supervisor,
        open_gateway(supervisor) as gateway,
    ):
        await supervisor.wait_connected("lab")
        began = trio.current_time()
        incoming = ClientRequest(1, method, params, {}, unheard, principal="ann")
        assert await gateway.view(None).route(incoming) is not None
        assert trio.current_time() == began


@pytest.mark.parametrize("seconds", [0, 301], ids=["refuses", "may probe"])
async def test_the_list_of_a_server_whose_breaker_is_open_is_what_is_known(autojump_clock, seconds):
    """Its client would be refused a list, for calls that timed out; and an answer would have calls made again."""
    lab = ScriptedServer(tools={"hang": hang})
    lab.capabilities["tools"] = {"listChanged": False}
    async with (
        open_supervisor([spec(lab)], callbacks=gateway_callbacks()) as supervisor,
        open_gateway(supervisor) as gateway,
    ):
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await supervisor.call_tool("hang", server="lab", timeout=1)
        await trio.sleep(seconds)
        began, asked = trio.current_time(), len(lab.listings)
        incoming = ClientRequest(1, "tools/list", {}, {}, unheard, principal="ann")
        result = await gateway.answer(incoming, gateway.view("lab"), "2025-11-25")
        assert [tool["name"] for tool in result["tools"]] == ["hang"]
        assert (trio.current_time(), len(lab.listings)) == (began, asked)
        breaker = status(supervisor).breaker
        assert breaker is not None
        assert breaker.state == "open"

"""The table of orders, and those who give them."""

import pytest

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.cli.screen.screen import Action
from mcp_nursery.supervisor.cli.web.acts import ACTS
from mcp_nursery.supervisor.errors import UnknownServer
from mcp_nursery.supervisor.orders import ORDERS, InvalidOrder, OrderHost, OrderRefused
from mcp_nursery.supervisor.testing import ScriptedServer

from ..lab.specs import nothing, spec


def test_buttons_and_keys_give_no_order_that_is_not_in_the_table():
    assert ACTS.keys() == ORDERS.keys()
    assert {*Action} - {Action.QUIT} <= ORDERS.keys()


@pytest.mark.parametrize("order", ORDERS)
async def test_an_order_with_wrong_parameters_does_nothing(order):
    async with open_supervisor([spec(ScriptedServer(tools={"work": nothing}))]) as supervisor:
        await supervisor.wait_connected("lab")
        with pytest.raises(InvalidOrder, match="must be"):
            await ORDERS[order](OrderHost(supervisor), dict.fromkeys(("server", "session", "restart"), 7))
        assert supervisor.status()[0].incarnation == 1


async def test_what_is_gone_is_refused():
    async with open_supervisor([]) as supervisor:
        host = OrderHost(supervisor)
        with pytest.raises(UnknownServer):
            await ORDERS["stop"](host, {"server": "lab"})
        with pytest.raises(OrderRefused, match=r"^work does not differ any more\.$"):
            await ORDERS["accept"](host, {"server": "lab", "tool": "work", "digest": ""})
        with pytest.raises(OrderRefused, match="has ended already"):
            await ORDERS["end_session"](host, {"session": "x"})

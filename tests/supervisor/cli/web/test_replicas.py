"""The reports of replicas: what is read of them, whatever stands there."""

import json
import math

import trio

from mcp_nursery.supervisor.cli.web.replicas import COUNTS_FOR, REPORTED_EVERY, Replicas, own_name
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.pages import paged
from ....lab.specs import spec

WHOLE = {"version": "9", "began": 0, "servers": "", "trouble": [], "sessions": 0, "requests": 0}
ODD = [json.dumps(WHOLE | more) for more in ({"began": math.nan}, {"began": math.inf}, {"trouble": ["x"] * 10_000})]
"""Reports that can be read, and not be shown."""


class Notes:
    """A database that all replicas share."""

    def __init__(self):
        self.all = {"other": json.dumps({"version": "9", "began": 0, "servers": "", "trouble": [], "sessions": 0,
                                         "requests": 0, "new": 1})}  # fmt: skip
        self.lost = False

    async def report(self, replica, report, seconds):
        assert seconds == COUNTS_FOR
        await trio.lowlevel.checkpoint()
        self.all[replica] = report
        return None if self.lost else self.all


async def test_what_can_be_read_is_kept_while_the_database_is_away(autojump_clock):
    notes = Notes()
    for number, text in enumerate(("", "[]", "{", '{"version": 1}', "[" * 100_000, *ODD)):
        notes.all[f"bad {number}"] = text
    servers = [spec(ScriptedServer(), "good"), spec(ScriptedServer(Life(refuses="no")), "bad")]
    async with paged(servers) as gateway, trio.open_nursery() as nursery:
        await gateway.supervisor.wait_connected("good")
        replicas = Replicas(notes, "own")
        nursery.start_soon(replicas.run, gateway.supervisor, gateway.application)
        await trio.sleep(1)
        assert replicas.reports.keys() == {"other", "own"}
        own = replicas.reports["own"]
        assert own.servers == "1 of 2 connected, 1 waiting"
        assert own.trouble == ("bad",)
        notes.lost = True
        await trio.sleep(REPORTED_EVERY * 3)
        assert replicas.reports.keys() == {"other", "own"}
        nursery.cancel_scope.cancel()


def test_a_replica_is_named_by_its_machine_port_and_process():
    assert ":8000 (" in own_name(8000)

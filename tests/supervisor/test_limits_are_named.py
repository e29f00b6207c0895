"""Whatever a limit of a server ends is an error that names the setting, and the setting helps. Virtual time."""

import re
from functools import partial

import pytest
import trio
from attrs import fields

from mcp_nursery.supervisor import NurseryError, ServerSpec, open_supervisor
from mcp_nursery.supervisor.config.entry import ENTRY_KEYS
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.specs import spec, status


async def work(arguments):
    await trio.sleep(5)
    return "done"


async def connects(supervisor):
    await supervisor.wait_connected("lab")


async def calls(supervisor):
    await supervisor.call_tool("work", server="lab")


async def calls_thrice(supervisor):
    """The first error of three calls at once, if there is one."""
    errors = []

    async def call():
        try:
            await supervisor.call_tool("work", server="lab")
        except NurseryError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
    if errors:
        raise errors[0]


SLOW = Life(connects_after=5)
FEW = {"max_in_flight": 1, "mailbox_size": 1}
NAMED = [
    ("connect_timeout", "connectSeconds", SLOW, {"connect_timeout": 1}, {"connect_timeout": 10}, connects),
    ("call_timeout", "callSeconds", Life(), {"call_timeout": 1}, {"call_timeout": 10}, calls),
    ("max_in_flight", "maxInFlight", Life(), FEW, {**FEW, "max_in_flight": 3}, calls_thrice),
    ("mailbox_size", "mailboxSize", Life(), FEW, {**FEW, "mailbox_size": 3}, calls_thrice),
    ("max_definitions", "maxDefinitions", Life(), {"max_definitions": 1}, {"max_definitions": 2}, connects),
    ("max_kept_bytes", "maxKeptBytes", Life(), {"max_kept_bytes": 50}, {"max_kept_bytes": 50_000}, connects),
]
ELSEWHERE = {
    "install_timeout": "real/test_installers.py",
    "human_timeout": "supervisor/calls/test_human_time.py",
    "max_instances": "supervisor/gateway/upstream/test_pool.py",
    "max_message_values": "actors/jsonrpc/test_refusals.py",
    "liveness": "actors/test_liveness.py",
    "max_result_chars": "supervisor/tools/test_tool_result.py",  # it cuts what a model is shown, and ends nothing
}
"""The tests of other limits, which need more than a scripted server."""


@pytest.mark.parametrize("row", NAMED, ids=[row[0] for row in NAMED])
async def test_the_error_names_the_setting_and_the_setting_helps(autojump_clock, row):
    keyword, key, life, narrow, wide, act = row
    make = partial(spec, ScriptedServer(life, tools={"work": work, "more": work}), restart="temporary")
    async with open_supervisor([make(**narrow)]) as supervisor:
        with pytest.raises(NurseryError) as ended:
            await act(supervisor)
        said = str(status(supervisor).error) if act is connects else str(ended.value)
    assert {keyword, key} <= set(re.findall(r"\w+", said)), said
    assert key in ENTRY_KEYS
    async with open_supervisor([make(**wide)]) as supervisor:
        await act(supervisor)


def test_no_limit_is_left_out(request):
    limits = {each.name for each in fields(ServerSpec) if re.search("timeout|^max_|_size|liveness", each.name)}
    assert limits == {row[0] for row in NAMED} | set(ELSEWHERE)
    for keyword, test in ELSEWHERE.items():
        assert keyword in (request.config.rootpath / "tests" / test).read_text()

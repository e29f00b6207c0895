"""P1: resources, templates and prompts are listed after the tools, as well as can be. Virtual time."""

import logging
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Host
from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.limits import CostLimits
from mcp_nursery.actors.list_refresh import OTHER_LISTS
from mcp_nursery.actors.messages import Connected, Refreshed
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.session.base import HandshakeFailed

from ...lab.actors import living
from ...lab.sessions import CACHING, MUTE, answers, connection, dies, discovery, greeting, listing, refuses

OFFERED = {"tools": {}, "resources": {}, "prompts": {}}


def resources(*uris, **more):
    return answers({"resources": [{"uri": uri, "name": uri} for uri in uris], **CACHING, **more})


def templates(*uris):
    return answers({"resourceTemplates": [{"uriTemplate": uri, "name": uri} for uri in uris], **CACHING})


def prompts(*names):
    return answers({"prompts": [{"name": name} for name in names], **CACHING})


HEALTHY = {
    "server_discover": answers(discovery(capabilities=OFFERED)),
    "tools_list": listing("echo"),
    "resources_list": resources("a:/1", "a:/2"),
    "resources_templates_list": templates("a:/{n}"),
    "prompts_list": prompts("greet"),
}


@pytest.fixture(params=["modern", "handshake"])
def healthy(request):
    if request.param == "modern":
        return HEALTHY
    opening = {"server_discover": refuses(-32601), "initialize": answers(greeting(capabilities=OFFERED))}
    return {**HEALTHY, **opening}


@asynccontextmanager
async def listed(limits=None, **script):
    """A connection of which everything was listed."""
    host = Host("lab", NO_CALLBACKS, limits or CostLimits())
    async with connection(host, **script) as (lab, opened):
        await opened.handshake(None)
        await opened.list_tools()
        await opened.list_others(OTHER_LISTS)
        yield lab, opened


def names(definitions):
    return (
        [tool.name for tool in definitions.tools],
        [resource.uri for resource in definitions.resources],
        [template.uri_template for template in definitions.templates],
        [prompt.name for prompt in definitions.prompts],
    )


async def test_every_list_and_every_page_of_it(healthy):
    pages = [resources("a:/1", nextCursor="more"), resources("a:/2")]
    async with listed(**{**healthy, "resources_list": pages}) as (_, opened):
        assert names(opened.definitions) == (["echo"], ["a:/1", "a:/2"], ["a:/{n}"], ["greet"])


async def test_what_a_server_does_not_offer_is_not_asked_for():
    async with listed(**{**HEALTHY, "server_discover": answers(discovery())}) as (lab, opened):
        assert names(opened.definitions) == (["echo"], [], [], [])
        assert lab.asked == ["server/discover", "tools/list"]


async def test_a_list_that_is_no_method_is_empty_and_no_news(healthy, caplog):
    async with listed(**{**healthy, "resources_templates_list": refuses(-32601)}) as (_, opened):
        assert names(opened.definitions) == (["echo"], ["a:/1", "a:/2"], [], ["greet"])
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("wrong", [refuses(-32603), answers({"prompts": 7, **CACHING}), answers({"prompts": [{}]})])
async def test_a_list_that_fails_leaves_the_others_and_what_it_was_and_is_logged_once(wrong, caplog):
    async with listed(**{**HEALTHY, "prompts_list": [prompts("greet"), wrong]}) as (lab, opened):
        lab.script["resources/list"] = [resources("b:/")]
        for _ in range(3):
            await opened.list_others(OTHER_LISTS)
        assert names(opened.definitions) == (["echo"], ["b:/"], ["a:/{n}"], ["greet"])
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("lab: its prompts could not be listed: ")


async def test_all_lists_together_are_bounded(caplog):
    """`max_kept_bytes` holds for the sum; what came first stays."""
    script = {**HEALTHY, "resources_list": resources(*(f"a:/{n}" for n in range(40)))}
    async with listed(CostLimits(kept=1500), **script) as (_, opened):
        assert names(opened.definitions) == (["echo"], [], ["a:/{n}"], ["greet"])
    (record,) = caplog.records
    assert "its resource definitions and other lists exceed 1500 bytes" in record.getMessage()


async def test_entries_of_all_lists_together_are_bounded(caplog):
    """What came first stays, and a list that shrinks makes room again."""
    script = {**HEALTHY, "resources_list": [resources(*(f"a:/{n}" for n in range(7))), resources("a:/1")]}
    async with listed(CostLimits(definitions=7), **script) as (_, opened):
        assert names(opened.definitions) == (["echo"], [], ["a:/{n}"], ["greet"])
        await opened.list_others(OTHER_LISTS)
        assert names(opened.definitions) == (["echo"], ["a:/1"], ["a:/{n}"], ["greet"])
    (record,) = caplog.records
    assert record.getMessage() == (
        "lab: its resources could not be listed: "
        "its resource definitions and other lists exceed 7 entries, the limit for one server (max_definitions, or "
        "maxDefinitions in a file, allows more)"
    )


async def test_resources_of_one_name_are_told_apart_by_their_uris():
    pages = [
        answers({"resources": [{"uri": f"a:/{n}", "name": "same"}], "nextCursor": f"{n}", **CACHING}) for n in "12"
    ]
    async with listed(**{**HEALTHY, "resources_list": [*pages, resources("a:/3")]}) as (_, opened):
        assert [resource.uri for resource in opened.definitions.resources] == ["a:/1", "a:/2", "a:/3"]


async def test_what_nobody_could_show_is_left_out(caplog):
    uris = resources("a:/1", "a:/1", "a:/" + "x" * 8192, "b:/1")
    async with listed(**{**HEALTHY, "resources_list": uris}) as (_, opened):
        assert [resource.uri for resource in opened.definitions.resources] == ["a:/1", "b:/1"]
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "dropped a resource named 'a:/1': the server has another reso",
        "dropped a resource named 'a:/" + "x" * 31,
    ]


async def test_a_loss_while_they_are_listed_is_the_connection_s():
    gone = Loss("gone")
    async with connection(**{**HEALTHY, "prompts_list": dies(gone)}) as (_, opened):
        await opened.handshake(None)
        await opened.list_tools()
        with pytest.raises(HandshakeFailed) as lost:
            await opened.list_others(OTHER_LISTS)
        assert lost.value.lost


class Wired:
    """A connector to the lab."""

    def __init__(self, **script):
        self.script = script

    @asynccontextmanager
    async def connect(self, host):
        async with connection(host, **self.script) as (self.lab, opened):
            yield opened


async def test_a_server_is_connected_without_a_list_that_is_slow_and_has_it_later(autojump_clock):
    slow = answers({"prompts": [{"name": "greet"}], **CACHING}, after=8)
    async with living(Wired(**{**HEALTHY, "prompts_list": slow})) as seen:
        await seen.connected.wait()
        at, report = seen.reports[-1]
        assert (at, type(report)) == (5, Connected)
        assert names(report.definitions) == (["echo"], ["a:/1", "a:/2"], ["a:/{n}"], [])
        await trio.sleep(20)
        at, report = seen.reports[-1]
        assert (at, type(report)) == (13, Refreshed)
        assert names(report.definitions) == (["echo"], ["a:/1", "a:/2"], ["a:/{n}"], ["greet"])


async def test_a_mute_list_takes_no_more_than_half_of_the_time_to_connect(autojump_clock):
    async with living(Wired(**{**HEALTHY, "resources_list": MUTE}), connect_timeout=4) as seen:
        await seen.connected.wait()
        assert seen.story[-1] == (2, Connected)
        await trio.sleep(20)
        assert len(seen.reports) == 3  # opened, connected, and listed again in vain
        assert [prompt.name for prompt in seen.reports[-1][1].definitions.prompts] == ["greet"]


async def test_each_list_is_fetched_again_alone(autojump_clock):
    async with living(Wired(**HEALTHY)) as seen:
        await seen.connected.wait()
        lab = seen.actor._connector.lab
        del lab.times[:]
        lab.script["prompts/list"] = [prompts("other")]
        seen.actor._refresh.changed([ListKind.PROMPTS])
        await trio.sleep(1)
        assert lab.asked == ["prompts/list"]
        report = seen.reports[-1][1]
        assert names(report.definitions) == (["echo"], ["a:/1", "a:/2"], ["a:/{n}"], ["other"])

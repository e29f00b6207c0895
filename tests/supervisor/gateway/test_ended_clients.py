"""Clients whose leave to come has ended: what outlasts their requests ends with it. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor.gateway import open_http

from ...lab.gateway_clients import AskingServer, served
from ...lab.web_clients import WebClient, by_name


@asynccontextmanager
async def at_work(server, *clients, **options):
    """Clients without sessions, each with a call under way: the application, the processes of their calls, and they."""
    async with (
        served(server, **options) as (_, gateway, _, nursery),
        open_http(gateway, authenticate=by_name) as application,
    ):
        processes, there = [], []
        for name in clients:
            known = name != "anybody"
            client = WebClient(application, nursery, name, "/mcp/lab", "work", known=known, modern=True)
            nursery.start_soon(client.work)
            processes.append(await server.called(name))
            there.append(client)
        yield application, processes, there


def is_one(name):
    """Whether a client is this one; nobody knows who `anybody` is."""
    return lambda client: (client is None) if name == "anybody" else (client is not None and client.name == name)


@pytest.mark.parametrize("name", ["Ann", "anybody"])
async def test_a_call_that_waits_for_its_client_ends_with_it(name, autojump_clock):
    server = AskingServer("named")
    async with at_work(server, name, "Bob") as (application, (process, _), _):
        for who in (name, "Bob"):
            process.ask(who)
        await trio.sleep(1)
        application.end_clients(is_one(name))
        await trio.sleep(1)
        assert process.answers.keys() == {name}  # its question is over, and the other's is not
        assert "error" in process.answers[name][0]


async def test_a_call_under_way_ends_with_it_and_is_told_that_it_may_have_acted(autojump_clock):
    """With 401 its client would make it again, with another token."""
    server = AskingServer()
    async with at_work(server, "Ann", "Bob") as (application, (process, _), (ann, bob)):
        application.end_clients(is_one("Ann"))
        await trio.sleep(1)
        assert ann.last.status == 200
        assert ann.last.last["error"]["data"] == {"delivery": "unknown"}
        assert "does not hold any more" in ann.last.last["error"]["message"]
        process.answer("Bob")
        await trio.sleep(1)
        assert bob.last.status == 200


@pytest.mark.parametrize("name", ["Ann", "anybody"])
async def test_an_instance_of_its_own_ends_with_it(name, autojump_clock):
    server = AskingServer()
    async with at_work(server, name, "Bob", instances="session") as (application, (own, other), _):
        for who, process in ((name, own), ("Bob", other)):
            process.answer(who)
        await trio.sleep(1)
        application.end_clients(is_one(name))
        await trio.sleep(10)
        assert (own.ended.is_set(), other.ended.is_set()) == (True, False)
        assert server.alive == 2  # with the one that is always there

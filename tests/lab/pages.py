"""The page of a gateway in this loop, on a port of its own, and a browser without scripts: its forms and cookies."""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import trio
from attrs import frozen

from mcp_nursery.supervisor import MemoryStore, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.cli.web.acts import PageHost
from mcp_nursery.supervisor.cli.web.page import open_page
from mcp_nursery.supervisor.cli.web.visitors import Visitors
from mcp_nursery.supervisor.gateway import HttpApplication, open_gateway, open_http
from mcp_nursery.supervisor.gateway.auth.principal import Authenticate
from mcp_nursery.supervisor.gateway.client_status import ClientsStatus
from mcp_nursery.supervisor.gateway.http.application import serve_http
from mcp_nursery.supervisor.gateway.sealing import random_keys
from mcp_nursery.supervisor.http_server.listening import bind_socket


@frozen
class Paged:
    """A gateway with a page."""

    supervisor: Supervisor
    application: HttpApplication
    origin: str


@asynccontextmanager
async def paged(
    specs: Sequence[ServerSpec], *, authenticate: Authenticate | None = None, **options: Any
) -> AsyncGenerator[Paged, None]:
    """A gateway in front of these servers, with a page. Nobody waits until they are connected."""
    listening = bind_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    made: list[HttpApplication] = []
    visitors = Visitors(authenticate, None if authenticate is None else random_keys())
    async with open_supervisor(specs, **{"state": MemoryStore(), "gate": 0, **options}) as supervisor:

        def clients() -> ClientsStatus:
            return made[0].clients()

        async def end_session(key: str) -> bool:
            return await made[0].end_session(key)

        host = PageHost(supervisor, end_session, clients)
        async with (
            open_gateway(supervisor) as gateway,
            open_page(host, visitors) as page,
            open_http(gateway, page=page, authenticate=authenticate) as application,
            trio.open_nursery() as nursery,
        ):
            made.append(application)
            stop = trio.Event()
            nursery.start_soon(partial(serve_http, gateway, application, listening, drain=1, stop=stop.wait))
            yield Paged(supervisor, application, f"http://127.0.0.1:{port}")
            stop.set()


class Browser:
    """A browser without scripts: it keeps cookies, and fills in the forms of the page that it is on."""

    def __init__(self, http: httpx2.AsyncClient, origin: str) -> None:
        self.http, self.origin = http, origin
        self.answer: httpx2.Response = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """The text of the page, without its tags."""
        return unescape(re.sub(r"<[^>]*>", " ", self.answer.text))

    async def go(self, path: str = "/ui", **headers: str) -> int:
        """Go to a page. Returns its status."""
        self.answer = await self.http.get(self.origin + path, headers=headers)
        return self.answer.status_code

    async def press(self, label: str, **fields: str) -> int:
        """Press a button, with what is filled in. Returns the status of the page that follows."""
        action, given = self.form(label)
        return await self.send(action, {**given, **fields})

    async def send(self, action: str, fields: dict[str, str], **headers: str) -> int:
        """Send a form, and follow where it leads. Returns the status."""
        sent = {"origin": self.origin, **headers}
        self.answer = await self.http.post(self.origin + action, data=fields, headers=sent)
        if self.answer.status_code == 303:
            return await self.go(self.answer.headers["location"])
        return self.answer.status_code

    def form(self, label: str) -> tuple[str, dict[str, str]]:
        """The action of the form with this button, and its fields; of an act those that the button stands for."""
        for form in re.findall(r"<form .*?</form>", self.answer.text, re.DOTALL):
            action, hidden = re.search(r'action="([^"]*)"', form), _hidden(form)
            assert action is not None
            if f">{label}</button>" in form:
                return action[1], hidden
            if 'id="acts"' in form:
                for value, name in re.findall(r'<button form="acts" name="do" value="([^"]*)">([^<]*)</button>',
                                              self.answer.text):  # fmt: skip
                    if unescape(name) == label:
                        return action[1], hidden | dict(parse_qsl(unescape(value)))
        raise AssertionError(f"no button {label!r} in {self.text}")


def _hidden(form: str) -> dict[str, str]:
    found = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form)
    return {unescape(name): unescape(value) for name, value in found}


@asynccontextmanager
async def browsing(origin: str) -> AsyncGenerator[Browser, None]:
    """A browser that has not been there before."""
    async with httpx2.AsyncClient(timeout=60) as http:
        yield Browser(http, origin)


@asynccontextmanager
async def following(browser: Browser, path: str) -> AsyncGenerator[trio.MemoryReceiveChannel[dict[str, Any]], None]:
    """The messages of the stream of changes of the page that the browser is on, or of the one at this path."""
    send, receive = trio.open_memory_channel[dict[str, Any]](1000)

    async def read() -> None:
        async with browser.http.stream("GET", browser.origin + path) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    await send.send(json.loads(line.removeprefix("data: ")))
        send.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        yield receive
        nursery.cancel_scope.cancel()


def live_path(browser: Browser) -> str:
    """The path of the stream of changes of the page that the browser is on."""
    found = re.search(r'data-live="([^"]*)"', browser.answer.text)
    assert found is not None
    return unescape(found[1])

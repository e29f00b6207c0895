"""The whole of `mcp-nursery login`, with a real browser: Chromium without a window, driven by its own protocol.

It is the system's Chromium; where there is none the test is skipped.
"""

import json
import re
import shutil
import subprocess
from contextlib import asynccontextmanager

import httpx2
import pytest
import trio
from trio_websocket import open_websocket_url

from ..lab.command_line import COMMAND
from ..lab.oauth_server import OAuthServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.interop, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")]


@asynccontextmanager
async def browser(folder):
    """A page of a browser that was just started."""
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quietly, [CHROMIUM, *flags, "about:blank"])
        announced = folder / "DevToolsActivePort"
        while not (announced.exists() and announced.read_text().strip()):  # noqa: ASYNC110 - another process writes it
            await trio.sleep(0.05)
        port = announced.read_text().split()[0]
        pages = httpx2.get(f"http://127.0.0.1:{port}/json/list").json()
        page = next(page for page in pages if page["type"] == "page")
        async with open_websocket_url(page["webSocketDebuggerUrl"]) as socket:
            yield Page(socket)
        nursery.cancel_scope.cancel()


async def quietly(command):
    await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)


class Page:
    def __init__(self, socket):
        self.socket = socket
        self.asked = 0

    async def ask(self, method, **params):
        self.asked += 1
        await self.socket.send_message(json.dumps({"id": self.asked, "method": method, "params": params}))
        while (answer := json.loads(await self.socket.get_message())).get("id") != self.asked:
            pass
        return answer["result"]

    async def value(self, expression):
        answer = await self.ask("Runtime.evaluate", expression=expression)
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait for what is on the page: another process shows it."""
        while not (found := await self.value(expression)):  # noqa: ASYNC110 - another process shows it
            await trio.sleep(0.05)
        return found


async def test_a_person_agrees_in_a_browser(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    server = OAuthServer(tmp_path)
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"url": server.url, "auth": "oauth"}}}))
    command = [*COMMAND, "login", "far", "--no-browser", "--config", str(config)]
    try:
        with trio.fail_after(240):
            async with browser(tmp_path / "profile") as page, trio.open_nursery() as nursery:
                login = await nursery.start(start_login, command)
                await page.ask("Page.navigate", url=await shown(login))
                assert await page.until("document.querySelector('h1')?.innerText") == "Agree?"
                await page.value("document.querySelector('#agree').click()")
                assert "go back" in await page.until("document.querySelector('p')?.innerText")
                assert await login.wait() == 0
        assert server.journal.count("consent") == 1
    finally:
        server.kill()


async def start_login(command, task_status):
    await trio.run_process(command, stderr=subprocess.PIPE, task_status=task_status)


async def shown(login):
    """The address of the page, as the command prints it."""
    said = b""
    while not (found := re.search(rb"(http://\S+authorize\?\S+)\n", said)):
        said += await login.stderr.receive_some()
    return found[1].decode()

"""The whole of `mcp-nursery login`, with a real browser: Chromium without a window, driven by its own protocol."""

import json
import re
import subprocess

import pytest
import trio

from ..lab.command_line import COMMAND
from ..lab.oauth_server import OAuthServer
from .browsers import browser

pytestmark = pytest.mark.interop


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

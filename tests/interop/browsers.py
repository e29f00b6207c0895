"""A real browser without a window, driven by its own protocol: the system's Chromium, or one from npm's registry."""

import base64
import json
import os
import shutil
import tarfile
from contextlib import asynccontextmanager, suppress

import httpx2
import trio
from trio_websocket import open_websocket_url

from . import installing

PACKAGE = "@sparticuz/chromium@153.0.0"
"""Brings Chromium, and the libraries that it needs, to a machine without."""
UNPACK = """
import { readFileSync, writeFileSync } from 'node:fs';
import { brotliDecompressSync } from 'node:zlib';
const [, , from, to] = process.argv;
for (const name of ['chromium', 'al2023.tar', 'swiftshader.tar', 'fonts.tar']) {
  writeFileSync(`${to}/${name}`, brotliDecompressSync(readFileSync(`${from}/${name}.br`)));
}
"""


def chromium():
    """The program, and the environment that it needs besides ours. Skips the test where there is none and none can be
    installed."""
    own = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if own is not None:
        return own, {}
    with installing.needed_by_test("Chromium"):
        folder = installing.installed(f"unpacked {PACKAGE}", _unpack)
        return str(folder / "chromium"), {"LD_LIBRARY_PATH": str(folder / "lib")}


def _unpack(folder):
    node, modules = installing.npm_modules(PACKAGE)
    script = folder / "unpack.mjs"
    script.write_text(UNPACK)
    installing.run([node, script, modules / "@sparticuz/chromium/bin", folder])
    for name in ("al2023", "swiftshader", "fonts"):
        with tarfile.open(folder / f"{name}.tar") as archive:
            archive.extractall(folder, filter="data")
        (folder / f"{name}.tar").unlink()
    (folder / "chromium").chmod(0o755)


@asynccontextmanager
async def browser(folder, *flags):
    """A page of a browser that was just started."""
    program, more = chromium()
    command = [
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        "--window-size=1280,900",
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", *flags, "about:blank"),
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_quietly, command, {**os.environ, **more})
        announced = folder / "DevToolsActivePort"
        while not (announced.exists() and announced.read_text().strip()):  # noqa: ASYNC110 - another process writes it
            await trio.sleep(0.05)
        port = announced.read_text().split()[0]
        async with httpx2.AsyncClient() as http:
            pages = (await http.get(f"http://127.0.0.1:{port}/json/list")).json()
        found = next(page for page in pages if page["type"] == "page")
        async with open_websocket_url(found["webSocketDebuggerUrl"], max_message_size=64 << 20) as socket:
            page = Page(socket)
            await page.ask("Runtime.enable")
            await page.ask("Log.enable")
            await page.ask("Network.enable")
            await page.ask("Page.enable")
            yield page
        nursery.cancel_scope.cancel()


async def _quietly(command, environment):
    await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False, env=environment)


class Refused(Exception):
    """The browser cannot do what it was asked for: it may be on its way to another page."""


class Page:
    """One page of a browser."""

    def __init__(self, socket):
        self.socket = socket
        self.complaints = []
        """What the browser has complained of: errors of scripts, and what the page's policy forbids."""
        self.requested = []
        """The URLs that it has asked for."""
        self._asked = 0

    async def ask(self, method, **params):
        self._asked += 1
        await self.socket.send_message(json.dumps({"id": self._asked, "method": method, "params": params}))
        while True:
            message = json.loads(await self.socket.get_message())
            if message.get("id") == self._asked:
                if "error" in message:
                    raise Refused(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message):
        about = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(about["exceptionDetails"].get("exception", {}).get("description", "?"))
            case "Log.entryAdded" if about["entry"]["source"] not in ("network",):
                self.complaints.append(about["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(about["request"]["url"])
            case _:
                pass

    async def go(self, url):
        """Go to a page, and wait until it is there."""
        await self.ask("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    async def value(self, expression):
        answer = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait for what is on the page: another process shows it."""
        found = None
        with trio.move_on_after(30):
            while found in (None, False, "", 0):
                with suppress(Refused):
                    found = await self.value(expression)
                await trio.sleep(0.02)
            return found
        raise AssertionError((expression, await self.value("location.href"), await self.text(), self.complaints))

    async def text(self, selector="body"):
        return await self.value(f"document.querySelector({json.dumps(selector)})?.innerText")

    async def press(self, label):
        """Press the first button with this label, and wait for the page that follows."""
        await self.value("window.isOld = true")
        pressed = await self.value(
            f"(() => {{ const found = [...document.querySelectorAll('button')]"
            f".find((each) => each.innerText === {json.dumps(label)} && !each.disabled);"
            " found?.click(); return Boolean(found); })()"
        )
        assert pressed, (label, await self.text())
        await self.until("window.isOld === undefined && document.readyState === 'complete'")

    async def fill(self, id_, text):
        """Fill a field."""
        await self.value(f"document.getElementById({json.dumps(id_)}).value = {json.dumps(text)}")

    async def show(self, width, height, *, dark=False):
        """Show the page in a window of this size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=scheme)
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, path, width=1280, height=800, *, dark=False):
        """Write a picture of the page."""
        await self.show(width, height, dark=dark)
        shot = await self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

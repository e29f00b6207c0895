"""A gateway in front of a gateway, as where servers are spread over machines: real processes, of one user and one key.
tests/real/test_lossless.py compares what is said frame by frame."""

import json
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from urllib.parse import urlsplit

import pytest
import trio

from ..lab import PROGRAMS
from ..lab.gateways import served_over_http
from ..lab.processes import LAB, Journal, eventually
from ..lab.raw_clients import NEW, OLD, http_client, opened, request

pytestmark = pytest.mark.slow

ERAS = pytest.mark.parametrize("version", [pytest.param(OLD, marks=pytest.mark.night), NEW])


def lab(journal):
    return [sys.executable, "-I", "-S", str(LAB), f"journal={journal}"]


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


class Chain:
    """A front gateway, the gateway behind it, and a client of the front."""

    def __init__(self, nursery, version, options, command):
        self._nursery, self._options, self._command = nursery, options, command
        self.version = version
        self.process = self.url = self.client = None

    async def start(self, port=0):
        """Start the back gateway."""
        self.process, self.url = await self._nursery.start(self._serve, port)

    async def _serve(self, port, *, task_status):
        options = ["--http", f"127.0.0.1:{port}", *self._options]
        async with served_over_http(*options, "--", *self._command) as started:
            task_status.started(started)
            await trio.sleep_forever()

    async def restart(self):
        """Kill the back gateway, and start it again at the same address."""
        await self.kill()
        await self.start(urlsplit(self.url).port)

    async def kill(self):
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def ask(self, number, method, **params):
        """The answer to a request."""
        frames = [json.loads(frame) for frame in await self.client.ask(request(self.version, number, method, **params))]
        (answer,) = [frame for frame in frames if "method" not in frame]
        return answer

    async def call(self, number, tool, **arguments):
        return await self.ask(number, "tools/call", name=tool, arguments=arguments)

    async def text(self, number, tool, **arguments):
        """The text of a result that is no error."""
        result = (await self.call(number, tool, **arguments))["result"]
        assert not result.get("isError"), result
        return result["content"][0]["text"]

    async def again(self, number):
        """The text of the first result after a restart."""
        for each in count(number):
            result = (await self.call(each, "pid"))["result"]
            if not result.get("isError"):
                return result["content"][0]["text"]
        raise AssertionError


@asynccontextmanager
async def chain(tmp_path, version, command, *, back=(), front=()):
    """The server's command behind two gateways."""
    file = tmp_path / "front.json"
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            made = Chain(nursery, version, back, command)
            await made.start()
            file.write_text(json.dumps({"mcpServers": {"far": {"url": made.url, "restartDelays": [0.2] * 20}}}))
            async with (
                served_over_http(*front, "--config", str(file), "--no-project") as (_, url),
                http_client(f"{url}/far", version) as made.client,
            ):
                if version == OLD:
                    await opened(made.client, OLD)
                yield made
            nursery.cancel_scope.cancel()


@ERAS
async def test_a_call_that_its_client_takes_back_is_cancelled_at_the_server(tmp_path, version, journal):
    async with chain(tmp_path, version, lab(journal.path)) as made, trio.open_nursery() as nursery:
        nursery.start_soon(partial(made.call, 2, "sleep", seconds=60))
        await eventually(lambda: journal.count("sleep"))
        nursery.cancel_scope.cancel()  # whose connection closes
    assert journal.count("cancelled") == 1


@ERAS
async def test_calls_go_on_after_the_back_gateway_was_killed(tmp_path, version, journal):
    """In the session that there was, on both hops."""
    async with chain(tmp_path, version, lab(journal.path)) as made:
        first = await made.text(2, "pid")
        await made.restart()
        assert await made.again(3) != first


@ERAS
async def test_a_call_that_the_back_gateway_was_making_is_made_once(tmp_path, version, journal):
    """Its client is told that it may have acted, and never that it was not sent."""
    async with chain(tmp_path, version, lab(journal.path)) as made, trio.open_nursery() as nursery:
        said = []

        async def call():
            said.append((await made.call(2, "commit", token="a", takes=30))["result"])

        nursery.start_soon(call)
        await eventually(lambda: journal.count("commit"))
        await made.restart()
        await eventually(lambda: said)
        assert said[0]["isError"]
        words = said[0]["content"][0]["text"]
        assert "may have" in words or "unknown" in words, words
        await made.again(3)
    assert journal.count("commit") == 1


async def test_a_call_that_its_client_cancels_by_a_message_is_cancelled_at_the_server(tmp_path, journal):
    """One of the handshake era; a newer one closes the stream."""
    async with chain(tmp_path, OLD, lab(journal.path)) as made, trio.open_nursery() as nursery:
        frame = request(OLD, 2, "tools/call", name="sleep", arguments={"seconds": 60})
        nursery.start_soon(made.client.ask, frame)
        await eventually(lambda: journal.count("sleep"))
        await made.client.send('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}')
        await eventually(lambda: journal.count("cancelled"))
        nursery.cancel_scope.cancel()


@ERAS
async def test_a_list_that_changes_is_announced_through_both(tmp_path, version, journal):
    heard = []
    async with chain(tmp_path, version, lab(journal.path)) as made, trio.open_nursery() as nursery:
        begun = trio.Event()

        async def hear(frame):
            heard.append(json.loads(frame))
            begun.set()

        if version == OLD:
            await nursery.start(made.client.listen)
        else:
            wanted = {"toolsListChanged": True}
            nursery.start_soon(made.client.ask, request(NEW, 8, "subscriptions/listen", notifications=wanted), hear)
            await begun.wait()
        await made.call(3, "grow", names=["more"])
        await eventually(
            lambda: any(
                each.get("method") == "notifications/tools/list_changed"
                for each in [*heard, *map(json.loads, made.client.unasked)]
            )
        )
        listed = (await made.ask(4, "tools/list"))["result"]["tools"]
        assert "more" in {tool["name"] for tool in listed}
        nursery.cancel_scope.cancel()


@ERAS
async def test_news_of_a_resource_come_through_both(tmp_path, version):
    note = tmp_path / "note"
    note.write_text("one")
    library = [sys.executable, str(PROGRAMS / "nursery_library.py"), "stdio"]
    heard = []
    async with (
        chain(tmp_path, version, library, back=["--env", f"NOTE={note}"]) as made,
        trio.open_nursery() as nursery,
    ):
        begun = trio.Event()

        async def hear(frame):
            heard.append(json.loads(frame))
            begun.set()

        if version == OLD:
            assert "result" in await made.ask(2, "resources/subscribe", uri="note://file")
            await nursery.start(made.client.listen)
        else:
            wanted = {"resourceSubscriptions": ["note://file"]}
            nursery.start_soon(made.client.ask, request(NEW, 8, "subscriptions/listen", notifications=wanted), hear)
            await begun.wait()
        for number in count(3):  # until all have begun to listen
            await made.call(number, "write", text="two")
            unasked = [*heard, *map(json.loads, made.client.unasked)]
            if any(each.get("method") == "notifications/resources/updated" for each in unasked):
                break
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_an_approval_at_each_gateway_is_asked_for_at_each(tmp_path, journal):
    """Both have the key of their user: what one has sealed is nothing that the other can take for its own."""
    asking = ["--ask", "*"]
    async with chain(tmp_path, NEW, lab(journal.path), back=asking, front=asking) as made:
        params = {"name": "commit", "arguments": {"token": "a"}}
        able = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        asked = []

        async def ask(number, **more):
            frame = json.loads(request(NEW, number, "tools/call", **params, **more))
            frame["params"]["_meta"] |= able
            return json.loads((await made.client.ask(json.dumps(frame)))[-1])["result"]

        result = await ask(2)
        for number in range(3, 8):
            if result.get("resultType") != "input_required":
                break
            (key,) = result["inputRequests"]
            asked.append(result["inputRequests"][key]["params"]["message"])
            answers = {key: {"action": "accept", "content": {"allow": True}}}
            result = await ask(number, inputResponses=answers, requestState=result["requestState"])
        assert result["content"][0]["type"] == "text", result
        assert not result.get("isError"), result
        assert [message.splitlines()[1] for message in asked] == ["server: far", "server: nursery_lab"]
    assert journal.count("commit") == 1

"""The loops of docs/howto/frameworks.md, around the SDKs of Anthropic, OpenAI and Google."""

import json
import re
from pathlib import Path

import anyio
import httpx2
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai.types import HttpOptions
from openai import AsyncOpenAI

from .elsewhere import ALLOWED, supervised_elsewhere, supervised_here

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "frameworks.md").read_text()
LOOPS = {}
exec(re.search(r"<!-- file: loops.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1], LOOPS)

OPENED = {"asyncio": supervised_elsewhere, "trio": supervised_here}
DONE = "all is well"


def of_anthropic(at, call):
    if call is None:
        block = {"type": "text", "text": DONE}
    else:
        block = {"type": "tool_use", "id": f"c{at}", "name": call[0], "input": call[1]}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": f"m{at}", "type": "message", "role": "assistant", "model": "m", "content": [block]}
    return {**message, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage}


def of_openai(at, call):
    message = {"role": "assistant", "content": DONE if call is None else None}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [{"id": f"c{at}", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": f"m{at}", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def of_gemini(at, call):
    part = {"text": DONE} if call is None else {"functionCall": {"id": f"c{at}", "name": call[0], "args": call[1]}}
    return {"candidates": [{"content": {"role": "model", "parts": [part]}}]}


async def anthropic_answers(http, toolset):
    client = AsyncAnthropic(api_key="none", http_client=http)
    asked = [{"role": "user", "content": "go"}]
    reply = await LOOPS["with_anthropic"](client, toolset, asked, model="m", max_tokens=9)
    assert reply.content[0].text == DONE


async def openai_answers(http, toolset):
    client = AsyncOpenAI(api_key="none", http_client=http)
    message = await LOOPS["with_openai"](client, toolset, [{"role": "user", "content": "go"}], model="m")
    assert message.content == DONE


async def gemini_answers(http, toolset):
    client = genai.Client(api_key="none", http_options=HttpOptions(httpx_async_client=http))
    asked = [{"role": "user", "parts": [{"text": "go"}]}]
    reply = await LOOPS["with_gemini"](client, toolset, asked, model="m")
    assert reply.text == DONE


SDKS = {
    "anthropic": (of_anthropic, anthropic_answers),
    "openai": (of_openai, openai_answers),
    "gemini": (of_gemini, gemini_answers),
}


@pytest.fixture(params=[(sdk, backend) for sdk in SDKS for backend in OPENED if (sdk, backend) != ("gemini", "trio")])
def sdk_and_backend(request):
    """The SDK of Google knows asyncio alone."""
    return request.param


def requests_of(sdk_and_backend, *calls):
    """What the API was sent, by a loop whose model makes these calls. What may be awaited comes before its call."""
    sdk, backend = sdk_and_backend
    reply_of, answers = SDKS[sdk]
    bodies = []

    async def main():
        async def serve(request):
            bodies.append(json.loads(request.content))
            at = len(bodies) - 1
            call = calls[at] if at < len(calls) else None
            if callable(call):
                call = await call(supervisor)
            return httpx2.Response(200, json=reply_of(at, call and (f"mcp_agent_{call[0]}", call[1])))

        with anyio.fail_after(60):
            async with (
                OPENED[backend](**ALLOWED) as supervisor,
                httpx2.AsyncClient(transport=httpx2.MockTransport(serve)) as http,
            ):
                await answers(http, supervisor.as_toolset())

    anyio.run(main, backend=backend)
    return bodies


async def after_a_kill(supervisor):
    await supervisor.kill()
    return "pid", {}


async def when_connected(supervisor):
    await supervisor.wait_connected()
    return "pid", {}


def test_a_loop_outlives_its_server(sdk_and_backend):
    bodies = requests_of(sdk_and_backend, ("pid", {}), after_a_kill, when_connected)
    assert all("mcp_agent_pid" in json.dumps(body["tools"]) for body in bodies)
    assert "restarts in" in json.dumps(bodies[2])
    pids = re.findall(r"untrusted\W+n(\d+)", json.dumps(bodies[3]))
    assert len(set(pids)) == 2


def test_a_lost_call_says_that_the_server_may_have_acted(sdk_and_backend):
    _, last = requests_of(sdk_and_backend, ("die", {}))
    assert "The tool may have acted" in json.dumps(last)


def test_pictures_go_where_the_api_takes_them(sdk_and_backend):
    """OpenAI's chat completions take none in the answer of a tool."""
    _, last = requests_of(sdk_and_backend, ("picture", {}))
    told = json.dumps(last)
    assert "a dot" in told
    assert ("iVBORw0KGgo" in told) is (sdk_and_backend[0] != "openai")


def test_pictures_that_are_no_base64_are_left_out(sdk_and_backend):
    _, last = requests_of(sdk_and_backend, ("torn", {}))
    told = json.dumps(last)
    assert "3; their data is no base64" in told
    assert "iVBORw0KG" not in told


def test_instructions_of_servers_are_in_the_system_prompt(sdk_and_backend):
    """The loop of OpenAI leaves the system prompt to who calls it."""
    first, _ = requests_of(sdk_and_backend, ("pid", {}))
    assert ("Use pid first." in json.dumps(first)) is (sdk_and_backend[0] != "openai")

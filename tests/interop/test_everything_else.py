"""What the reference server has besides tools, over each transport: resources, templates, prompts, completion."""

import base64
import gzip

import pytest
import trio

from mcp_nursery.supervisor import ServerError, open_supervisor

from .everything import NAME, TRANSPORTS, running

pytestmark = pytest.mark.interop

DOCUMENTS = {"architecture", "extension", "features", "how-it-works", "instructions", "startup", "structure"}


@pytest.fixture(params=TRANSPORTS)
async def supervisor(request):
    with running(request.param) as spec, trio.fail_after(60):
        async with open_supervisor([spec]) as supervisor:
            await supervisor.wait_connected(NAME)
            yield supervisor


async def test_resources(supervisor):
    listed = {resource.uri for resource in await supervisor.list_resources(NAME)}
    assert listed == {f"demo://resource/static/document/{name}.md" for name in DOCUMENTS}
    for uri in listed:
        assert (await supervisor.read_resource(uri)).full_text.startswith("# Everything Server")
    with pytest.raises(ServerError):
        await supervisor.read_resource("demo://resource/nothing", server=NAME)


async def test_a_resource_that_a_tool_makes(supervisor):
    """It is listed from then on, and read as it was made."""
    await supervisor.call_tool("gzip-file-as-resource", {"name": "a.gz", "data": "data:,hello"}, server=NAME)
    assert "demo://resource/session/a.gz" in {one.uri for one in await supervisor.list_resources(NAME, refresh=True)}
    made = await supervisor.read_resource("demo://resource/session/a.gz")
    assert gzip.decompress(base64.b64decode(made.contents[0].blob)) == b"hello"


async def test_templates(supervisor):
    await supervisor.list_resources(NAME)
    kinds = {template.uri_template.split("/")[-2]: template for template in supervisor.resource_templates}
    assert kinds.keys() == {"text", "blob"}
    text = await supervisor.read_resource("demo://resource/dynamic/text/7")
    assert text.full_text.startswith("Resource 7: This is a plaintext resource")
    blob = await supervisor.read_resource("demo://resource/dynamic/blob/7")
    assert base64.b64decode(blob.contents[0].blob).startswith(b"Resource 7: This is a base64 blob")
    for template in kinds.values():
        assert list((await supervisor.complete(template, "resourceId", "7")).values) == ["7"]
        assert not (await supervisor.complete(template, "resourceId", "seven")).values


async def test_prompts(supervisor):
    prompts = {prompt.prompt: prompt for prompt in await supervisor.list_prompts(NAME)}
    assert prompts.keys() == {"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"}
    assert [argument.required for argument in prompts["args-prompt"].arguments] == [True, False]

    async def messages(prompt, arguments=None):
        return (await supervisor.get_prompt(prompts[prompt].name, arguments)).messages

    (simple,) = await messages("simple-prompt")
    assert (simple.role, simple.content.type) == ("user", "text")
    (asked,) = await messages("args-prompt", {"city": "Oslo", "state": "Norway"})
    assert asked.content.text == "What's weather in Oslo, Norway?"
    (promoted,) = await messages("completable-prompt", {"department": "Sales", "name": "Eve"})
    assert promoted.content.text == "Please promote Eve to the head of the Sales team."
    _, embedded = await messages("resource-prompt", {"resourceType": "Text", "resourceId": "7"})
    assert embedded.content.resource.uri == "demo://resource/dynamic/text/7"
    with pytest.raises(ServerError):
        await messages("resource-prompt", {"resourceType": "Text", "resourceId": "seven"})


async def test_completion(supervisor):
    """What is known of other arguments narrows it."""
    prompts = {prompt.prompt: prompt for prompt in await supervisor.list_prompts(NAME)}

    async def values(prompt, argument, typed, **context):
        return list((await supervisor.complete(prompts[prompt], argument, typed, context=context or None)).values)

    assert await values("completable-prompt", "department", "S") == ["Sales", "Support"]
    assert await values("completable-prompt", "name", "", department="Sales") == ["David", "Eve", "Frank"]
    assert await values("completable-prompt", "name", "") == []
    assert await values("resource-prompt", "resourceType", "T") == ["Text"]
    assert await values("resource-prompt", "resourceId", "7") == ["7"]


async def test_subscriptions(supervisor):
    """News come at once, or at the server's next turn, 5 s later; after a loss of the connection there may be some."""
    uri = "demo://resource/static/document/features.md"
    async with supervisor.subscribe(uri, server=NAME) as updates:
        await supervisor.call_tool("toggle-subscriber-updates", server=NAME)
        while not (update := await updates.receive()).certain:
            pass
        assert (update.server, update.uri) == (NAME, uri)
        await supervisor.reconnect(NAME)
        while (update := await updates.receive()).certain:
            pass
        assert (update.server, update.uri) == (NAME, uri)

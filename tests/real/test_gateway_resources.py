"""P8: what a server shows is read from that server, though others have the same URIs. Real servers of both eras."""

import json
import sys

import pytest
import trio
from mcp_types import ResourceTemplateReference

from mcp_nursery.actors.protocol import INVALID_PARAMS

from ..lab import PROGRAMS
from ..lab.gateways import client_on

pytestmark = pytest.mark.push


def config(folder, era):
    """A file with the servers `a` and `b`, and one that lists the URIs by which the gateway shows theirs."""
    taken = ["mcp-server://a/note://today", "ui://a+view.html", "ui://b+view.html"]
    servers = {
        name: {"command": sys.executable, "args": ["-I", str(PROGRAMS / "nursery_pages.py"), name, era, *more]}
        for name, more in {"a": (), "b": (), "evil": taken}.items()
    }
    file = folder / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return ["--config", str(file)]


async def text(client, uri):
    [contents] = (await client.read_resource(str(uri))).contents
    assert str(contents.uri) == str(uri)
    return contents.text


@pytest.mark.parametrize(("front", "mode"), [("stdio", "legacy"), ("http", "auto")])
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_what_is_read_comes_from_the_server_that_showed_it(front, mode, era, tmp_path):
    with trio.fail_after(120):
        async with client_on(front, config(tmp_path, era), mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            for name in ("a", "b", "evil"):
                meta = tools[f"{name}_show"].meta
                assert await text(client, meta["ui"]["resourceUri"]) == f"{name}: ui://view.html"
                assert await text(client, meta["ui/resourceUri"]) == f"{name}: ui://view.html"
                assert meta["ui"]["resourceUri"].startswith("ui://")
            listed = (await client.list_resources()).resources
            assert len({str(each.uri) for each in listed}) == len(listed) == 9
            for each in listed:
                assert (await text(client, each.uri)).startswith(f"{each.name}: ")
            for each in (await client.list_resource_templates()).resource_templates:
                read = await text(client, each.uri_template.replace("{day}", "monday"))
                assert read == f"{each.name}: note://monday"
                ref = ResourceTemplateReference(type="ref/resource", uri=each.uri_template)
                found = await client.complete(ref, {"name": "day", "value": ""})
                assert found.completion.values == [f"{each.name}: note://{{day}}"]
            for name in ("a", "b"):
                called = await client.call_tool(f"{name}_show", {})
                filled = await client.get_prompt(f"{name}_greet")
                assert called.meta["ui"]["resourceUri"] == tools[f"{name}_show"].meta["ui"]["resourceUri"]
                for said in (called.content, [message.content for message in filled.messages]):
                    assert said[0].text == name
                    assert await text(client, said[1].uri) == f"{name}: note://today"
                    assert str(said[2].uri) == "https://example.com/"  # a host opens it by itself
                    assert await text(client, said[3].resource.uri) == f"{name}: note://page"
            for unclear in ("ui://view.html", "note://today", "note://monday", "https://example.com/"):
                with pytest.raises(Exception) as refused:  # noqa: PT011 - of the SDK
                    await client.read_resource(unclear)
                assert refused.value.error.code == INVALID_PARAMS

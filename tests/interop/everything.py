"""The reference server that has everything: what each of its tools is asked, and what it should answer."""

from contextlib import contextmanager

from attrs import frozen

from mcp_nursery.supervisor import HttpTransport, ServerSpec, SseTransport, StdioTransport

from ..lab.remote import free_port
from . import installing
from .listening import listening

REQUIREMENT = "@modelcontextprotocol/server-everything@2026.8.31"
TRANSPORTS = ("stdio", "http", "sse")
NAME = "all"


@contextmanager
def running(transport):
    """The spec of it over this transport; of a remote one, the server runs."""
    with installing.needed_by_test("server-everything"):
        program, *arguments = installing.npm_package(REQUIREMENT)
    port = free_port()
    mode = {"stdio": "stdio", "http": "streamableHttp", "sse": "sse"}[transport]
    if transport == "stdio":
        yield ServerSpec(NAME, StdioTransport(program, [*arguments, mode], env={"GREETING": "hello"}))
        return
    url = f"http://127.0.0.1:{port}"
    far = HttpTransport(f"{url}/mcp") if transport == "http" else SseTransport(f"{url}/sse")
    with listening([program, *arguments, mode], {"PORT": str(port), "GREETING": "hello"}, port):
        yield ServerSpec(NAME, far)


@frozen
class Use:
    """One use of a tool."""

    tool: str
    arguments: dict
    answer: str
    """What the text of the result holds."""
    blocks: tuple[str, ...] = ("text",)
    """The types of its content."""
    is_error: bool = False


_URL = {"url": "https://example.org/visit", "message": "please"}

USES = (
    Use("echo", {"message": "ünïcode ✓"}, "Echo: ünïcode ✓"),
    Use("get-sum", {"a": 2, "b": 40}, "42"),
    Use("get-env", {}, '"GREETING": "hello"'),
    Use("get-tiny-image", {}, "the MCP logo", ("text", "image", "text")),
    Use("get-annotated-message", {"messageType": "success"}, "completed successfully"),
    Use("get-annotated-message", {"messageType": "error", "includeImage": True}, "failed", ("text", "image")),
    Use("get-structured-content", {"location": "Chicago"}, "Light rain"),
    Use("get-resource-links", {"count": 2}, "text/2", ("text", "resource_link", "resource_link")),
    Use("get-resource-reference", {"resourceType": "Text", "resourceId": 7}, "text/7", ("text", "resource", "text")),
    Use("get-resource-reference", {"resourceType": "Blob", "resourceId": 7}, "blob/7", ("text", "resource", "text")),
    Use("gzip-file-as-resource", {"name": "a.gz", "data": "data:,hello"}, "session/a.gz", ("resource_link",)),
    Use(
        "gzip-file-as-resource",
        {"name": "b.gz", "data": "data:,hello", "outputType": "resource"},
        "application/gzip",
        ("resource",),
    ),
    Use("trigger-long-running-operation", {"duration": 0.4, "steps": 4}, "Long running operation completed"),
    Use("trigger-sampling-request", {"prompt": "a bird", "maxTokens": 9}, "I heard Resource trigger-sampling-request"),
    Use("get-roots-list", {}, "(1 total)"),
    Use("trigger-elicitation-request", {}, "Name: Ada", ("text", "text", "text")),
    Use("trigger-url-elicitation", _URL, "User completed", ("text", "text")),
    Use("trigger-url-elicitation", {**_URL, "errorPath": True}, "User completed", ("text", "text")),
    Use("toggle-simulated-logging", {}, "Started simulated"),
    Use("toggle-simulated-logging", {}, "Stopped simulated"),
    Use("toggle-subscriber-updates", {}, "Started simulated"),
    Use("toggle-subscriber-updates", {}, "Stopped simulated"),
    Use("simulate-research-query", {"topic": "birds"}, "Research Report: birds"),
    Use("simulate-research-query", {"topic": "birds", "ambiguous": True}, "birds (User accepted without selection)"),
)
"""Every tool that it offers to this host, in turn. The last is called as a task, and asks in the middle of it."""

"""Two tools of our own for a model, which list resources and read resources. The tools exist only while some server
has resources."""

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any, Final

import trio

from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import InvalidArguments, NotApproved, UnknownTool
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import define, evolve, field
from mcp_nursery.actors.reply import ProgressCallback

from ..catalogue.catalogue import Catalogue
from ..decisions.restart_policy import WhenDown
from ..resources import Resource, ResourceTemplate
from ..security.untrusted_marks import clean_name
from ..skills import Skill
from ..tools.tool import Tool
from ..tools.tool_result import ToolResult
from .approvals import Approvals
from .call import Call
from .host_tools import LIST_RESOURCES as LIST
from .host_tools import READ_RESOURCE as READ
from .host_tools import HostTools, host_result, host_tool
from .resources_and_prompts import owner_of
from .skills import known_skills, read_for_model

_MOST_DESCRIPTION = 200
"""Characters of a description that are listed."""

_LIST_DESCRIPTION = (
    "Lists the resources that the MCP servers offer, one JSON object a line: its URI, server, name and description."
)
_READ_DESCRIPTION = (
    "Reads one resource of an MCP server by its URI: one that is listed, one made from a listed template, or one that "
    "the result of a tool links to. Give the server of that tool with a URI that is not listed."
)
_SERVER = {"type": "string", "description": "The server's name."}
_ARGUMENTS: Final[Mapping[str, dict[str, Any]]] = {
    LIST: {"type": "object", "properties": {"server": _SERVER}},
    READ: {"type": "object", "properties": {"uri": {"type": "string"}, "server": _SERVER}, "required": ["uri"]},
}


@define(eq=False)
class ResourceTools(HostTools):
    """The two tools, and their work for a model."""

    _approvals: Approvals
    _made: tuple[Tool, ...] = field(default=(), init=False)

    @override
    def servers_tools(self, catalogue: Catalogue) -> Collection[Tool]:
        return catalogue.tools

    @override
    def own(self, catalogue: Catalogue) -> tuple[Tool, ...]:
        if not (catalogue.resources or catalogue.resource_templates):
            return ()
        self._made = self._made or (self._tool(LIST, _LIST_DESCRIPTION), self._tool(READ, _READ_DESCRIPTION))
        return self._made

    @override
    async def find(self, name: str) -> Tool:
        if (tool := self._known(name)) is not None:
            return tool
        owners = self._servers.owners_of(name, self._servers.snapshots)
        await self._servers.refresh_old(owners, [ListKind.TOOLS])
        if (tool := self._known(name)) is not None:
            return tool
        catalogue = self._servers.catalogue.value.for_models
        if held := catalogue.held_back(name):
            raise NotApproved(held.server, held.tool, held.why)
        raise UnknownTool(name, near=catalogue.near(name))

    def _known(self, name: str) -> Tool | None:
        return self._servers.catalogue.value.for_models.find(name) or self.find_own(name)

    def _tool(self, name: str, described: str) -> Tool:
        return host_tool(
            name,
            described,
            _ARGUMENTS[name],
            self._list if name == LIST else self._read,
            reserved=self._reserved,
            requires_approval=name == READ,
            read_only=True,
        )

    async def _list(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: ProgressCallback | None,
        meta: Mapping[str, Any] | None,
        when_down: WhenDown | None,
    ) -> ToolResult:
        """List what is known; no server is asked."""
        del timeout, on_progress, meta, when_down
        await trio.lowlevel.checkpoint()
        server = self._server(_texts(tool, arguments).get("server"))
        offered = _listed(self._servers.shown_resources(), self._servers.catalogue.value.resource_templates)
        listed = chain(offered, map(_skill_line, known_skills(self._servers)))
        return await host_result(tool, await by_turns(_lines(listed, server)))

    async def _read(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: ProgressCallback | None,
        meta: Mapping[str, Any] | None,
        when_down: WhenDown | None,
    ) -> ToolResult:
        """Read a resource for a model. That is the model's decision, and needs approval like a tool of the server."""
        del on_progress
        given = _texts(tool, arguments)
        if "uri" not in given:
            raise InvalidArguments("uri is missing", tool=tool.name)
        uri, server = given["uri"], self._server(given.get("server"))
        call = Call(uri, server=server, timeout=timeout, when_down=when_down, meta=meta)
        owner = await owner_of(call, self._servers)  # no read without an agreement: that is to one server
        self._servers.snapshot(owner)
        agreed = await self._approvals.agree(evolve(tool, server=owner), {"uri": uri}, self._servers)
        read = await read_for_model(evolve(call, server=owner), self._servers, agreed)
        return await host_result(tool, read.full_text, read)

    def _server(self, named: str | None) -> str | None:
        """The server of this name, which may be written as in the marks around results."""
        if named is None or named in self._servers.snapshots:
            return named
        return next((name for name in self._servers.snapshots if clean_name(name) == named), named)


def _texts(tool: Tool, arguments: Mapping[str, Any] | None) -> dict[str, str]:
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    known = tool.input_schema["properties"]
    if wrong := [name for name, value in given.items() if name not in known or not isinstance(value, str)]:
        raise InvalidArguments(f"{wrong[0]:.80} must be one of the texts {', '.join(known)}", tool=tool.name)
    return given


def _skill_line(skill: Skill) -> dict[str, Any]:
    described = skill.description[:_MOST_DESCRIPTION]
    return {"uri": skill.uri, "server": skill.server, "skill": skill.name, "description": described}


def _lines(listed: Iterable[dict[str, Any]], server: str | None) -> Steps[str]:
    """The offers of this server, or of all servers, one a line: each may have thousands."""
    lines: list[str] = []
    for line in listed:
        yield
        if server in (None, line["server"]):
            lines.append(json.dumps({key: value for key, value in line.items() if value}, ensure_ascii=False))
    return "\n".join(lines)


def _listed(resources: Iterable[Resource], templates: Iterable[ResourceTemplate]) -> Iterable[dict[str, Any]]:
    for each in resources:
        said = (each.description or "")[:_MOST_DESCRIPTION]
        kind = {"mimeType": each.mime_type, "size": each.size}
        yield {"uri": each.uri, "server": each.server, "name": each.title or each.name, "description": said, **kind}
    for template in templates:
        said, name = (template.description or "")[:_MOST_DESCRIPTION], template.title or template.name
        yield {"uriTemplate": template.uri_template, "server": template.server, "name": name, "description": said}

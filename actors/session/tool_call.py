"""`tools/call` beside the session: what a tool's definition adds to its requests, and promises of its results."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..jsonrpc.codec import decode
from ..messages import CALL_TOOL
from ..pieces import Steps
from .base import BadResult
from .requests import PreparedRequest
from .schemas import OutputSchema, SchemaViolation

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments are repeated in headers of their own: their path, and the header's name."""


class PreparedTool(PreparedRequest):
    """One tool of one incarnation: the headers of its requests, and its output schema."""

    def __init__(self, definition: "Tool", *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
        super().__init__(CALL_TOOL, protocol_version=protocol_version, stamp=stamp)
        self.name: Final = definition.name
        promised = definition.output_schema
        self._output_schema = None if promised is None else OutputSchema(promised, tool=definition.name)
        self.promises: bool = promised is not None
        self._schema = definition.input_schema
        self._headers: tuple[dict[str, str], HeaderMap] | None = None

    def headers(self, params: bytes) -> dict[str, str]:
        """The headers of a request, where frames have headers, including repeated arguments."""
        from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map  # loaded with the transports that have them

        if self._headers is None:
            self._headers = self.headers_about(self.name), x_mcp_header_map(self._schema) if self._modern else {}
        fixed, mirrored = self._headers
        if not mirrored:
            return fixed
        return fixed | mcp_param_headers(mirrored, decode(params).get("arguments") or {})

    def check_promise(self, result: "CallToolResult", *, small: bool) -> Steps[bool]:
        """Check structured content against the output schema. See `PreparedRequest`."""
        schema = self._output_schema
        if schema is None or result.is_error:
            return True
        if "structured_content" not in result.model_fields_set:
            raise BadResult("the tool declares an output schema and returned no structured content")
        try:
            return (yield from schema.check(result.structured_content, small=small))
        except SchemaViolation as error:
            raise BadResult(str(error)) from None


class PreparedTools:
    """The tools of one list, each prepared when it is first called: most of ten thousand never are.

    Args:
        tools: As the server declares them.
        protocol_version: Of this incarnation.
        stamp: What the era puts into the `_meta` of every request.
    """

    def __init__(self, tools: "Iterable[Tool]", *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
        self._definitions = {tool.name: tool for tool in tools}
        self._version = protocol_version
        self._stamp = stamp
        self._prepared: dict[str, PreparedTool] = {}

    def get(self, name: str) -> PreparedTool | None:
        """The tool of this name, if it is listed."""
        if name not in self._prepared and name in self._definitions:
            definition = self._definitions[name]
            self._prepared[name] = PreparedTool(definition, protocol_version=self._version, stamp=self._stamp)
        return self._prepared.get(name)

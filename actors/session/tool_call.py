"""`tools/call` beside the session: heads encoded once a tool, results judged once in the caller's task."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import CallToolResult, InputRequiredResult, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ..errors import folded
from ..json_depth import TOO_DEEP, more_values_than, nested_too_deep
from ..jsonrpc.codec import decode, encode
from ..jsonrpc.incoming import MOST_ASKED
from ..pieces import Steps
from .output_schema import OutputSchema, SchemaViolation

MOST_BLOCKS: Final = 10_000
"""Content blocks of a result. To find out what kind each of them is takes a hundredth of a millisecond, and so does
showing one that is no text."""
_BLOCKS: Final = 250
"""Blocks of which that is found out in a row."""
_ARRAY: Final = frozenset([list])

HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments are repeated in headers of their own: their path, and the header's name."""


class BadResult(Exception):
    """The server answered with something the protocol or the tool's own schema does not allow."""


class InputWanted(Exception):
    """No result yet: the server asks for input first."""

    def __init__(self, wanted: InputRequiredResult) -> None:
        self.wanted = wanted
        super().__init__("the server asks for input")


class PreparedTool:
    """One tool of one incarnation: the fixed part of its requests, and its output schema compiled at first use."""

    def __init__(self, definition: Tool, *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
        self.name: Final = definition.name
        self._modern = protocol_version in MODERN_PROTOCOL_VERSIONS
        self._output_schema = definition.output_schema
        self._compiled: OutputSchema | None = None
        self._stamp = stamp
        self._encoded_stamp = encode(stamp) if stamp else b""
        self._version = protocol_version
        self._schema = definition.input_schema
        self._headers: tuple[dict[str, str], HeaderMap] | None = None
        self._head = b',"method":"tools/call","params":{"name":' + encode(definition.name)

    def params_meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The `_meta` of a request: the call's own, and the stamp of the era, which it cannot forge."""
        return {**meta, **self._stamp}

    def frame(
        self, request_id: int | str, arguments: bytes | None, meta: Mapping[str, Any], *, wants_progress: bool = False
    ) -> bytes:
        """The whole request."""
        if wants_progress:
            meta = {**meta, "progressToken": request_id}
        stamped = encode(self.params_meta(meta)) if meta else self._encoded_stamp
        encoded_id = b"%d" % request_id if isinstance(request_id, int) else encode(request_id)
        parts = [b'{"jsonrpc":"2.0","id":', encoded_id, self._head]
        if arguments is not None:
            parts += (b',"arguments":', arguments)
        if stamped:
            parts += (b',"_meta":', stamped)
        parts.append(b"}}")
        return b"".join(parts)

    def headers(self, arguments: bytes | None) -> dict[str, str]:
        """What goes with a request where frames have headers."""
        if self._headers is None:
            self._headers = self._fixed_headers()
        fixed, mirrored = self._headers
        if not mirrored or arguments is None:
            return fixed
        return fixed | mcp_param_headers(mirrored, decode(arguments))

    def _fixed_headers(self) -> "tuple[dict[str, str], HeaderMap]":
        """Those of every request, and which arguments have one of their own."""
        version = {MCP_PROTOCOL_VERSION_HEADER: self._version}
        if not self._modern:
            return version, {}
        routing = {MCP_METHOD_HEADER: "tools/call", MCP_NAME_HEADER: encode_header_value(self.name)}
        return version | routing, x_mcp_header_map(self._schema)

    def result(self, raw: dict[str, Any], *, small: bool = False) -> Steps[CallToolResult]:
        """The typed result, validated; `small`: it came in a message that is seen to in one go.

        Raises:
            BadResult: It is no result of this protocol version, or not what the output schema promises.
            InputWanted: It is a question.
        """
        if nested_too_deep(raw):
            raise BadResult(TOO_DEEP)
        content = raw.get("content", ())
        if type(content) in _ARRAY and len(content) > MOST_BLOCKS:
            raise BadResult(f"more than {MOST_BLOCKS} content blocks")
        yield
        self._check_kind(raw, small=small)
        result = yield from _typed(raw, content)
        if self._output_schema is not None and not result.is_error:
            yield from self._check_output(self._output_schema, result, small=small)
        return result

    def _check_kind(self, raw: dict[str, Any], *, small: bool) -> None:
        kind = raw.get("resultType", "complete")
        if not self._modern:
            raw.pop("resultType", None)  # no such key before 2026-07-28
        elif kind == "input_required":
            if not small and more_values_than(raw, MOST_ASKED):
                raise BadResult(f"a request for input with more than {MOST_ASKED} JSON values")
            raise InputWanted(_question(raw))
        elif kind != "complete":
            raise BadResult(f"unknown resultType {kind!r:.40}")

    def _check_output(self, schema: dict[str, Any], result: CallToolResult, *, small: bool) -> Steps[None]:
        if "structured_content" not in result.model_fields_set:
            raise BadResult("the tool declares an output schema and returned no structured content")
        try:
            if self._compiled is None:
                self._compiled = OutputSchema(schema, tool=self.name)
            yield from self._compiled.check(result.structured_content, small=small)
        except SchemaViolation as error:
            raise BadResult(str(error)) from None


class PreparedTools:
    """The tools of one list, each prepared when it is first called: most of ten thousand never are.

    Args:
        tools: As the server declares them.
        protocol_version: Of this incarnation.
        stamp: What the era puts into the `_meta` of every request.
    """

    def __init__(self, tools: Iterable[Tool], *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
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


def _typed(raw: dict[str, Any], content: Any) -> Steps[CallToolResult]:
    """What the SDK makes of it, some blocks after the other.

    Raises:
        BadResult: It is no result.
    """
    if type(content) not in _ARRAY or len(content) <= _BLOCKS:
        return _model(raw)
    whole = _model({**raw, "content": []})
    for at in range(0, len(content), _BLOCKS):
        yield
        whole.content += _model({"content": content[at : at + _BLOCKS]}, first=at).content
    return whole


def _model(raw: dict[str, Any], first: int = 0) -> CallToolResult:
    try:
        return CallToolResult.model_validate(raw, by_name=False)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part + first if isinstance(part, int) else part) for part in problem["loc"])
        raise BadResult(f"not a tools/call result: {where}: {problem['msg']}") from None


def _question(raw: dict[str, Any]) -> InputRequiredResult:
    try:
        return InputRequiredResult.model_validate(raw, by_name=False)
    except ValidationError as error:
        raise BadResult(f"not a request for input: {folded(error.errors()[0]['msg'])}") from None

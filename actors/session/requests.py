"""Requests of callers, which bypass the session: written with the `_meta` of the era, their results validated once, in
the caller's task.

A tool's definition adds to that: arguments that are repeated in headers, and an output schema, which its results are
checked against.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ..errors import folded
from ..extensions import TASK_REQUESTS, TASKS, declares
from ..json_depth import TOO_DEEP, more_values_than, nested_too_deep
from ..jsonrpc.codec import decode, encode
from ..jsonrpc.incoming import MOST_ASKED
from ..messages import CALL_TOOL, Round
from ..overrides import override
from ..pieces import Steps
from ..protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    ENCODED_HEADER,
    LOG_LEVEL_META_KEY,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
    X_MCP_HEADER,
)
from .base import PARTS_AT_ONCE, BadResult, InputWanted
from .lazy_definitions import needs_task
from .schemas import OutputSchema, SchemaViolation

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult, Tool
    from pydantic import BaseModel

MOST_BLOCKS: Final = 10_000
"""Parts of a result: content blocks, contents of a resource, messages of a prompt. Validating one takes a hundredth of
a millisecond, and so does showing one that is not text."""
_NAMED: Final = {**NAME_BEARING_METHODS, **dict.fromkeys(TASK_REQUESTS, "taskId")}
"""Requests with a header for their object, and the parameter that names the object."""
_ARRAY: Final = frozenset([list])

_PARTS_MEMBER: Final[Mapping[str, str]] = {
    CALL_TOOL: "content",
    "resources/read": "contents",
    "prompts/get": "messages",
    "completion/complete": "",
}
"""Methods whose results have a type, and the member with the parts of these. Any other result stays as it came."""


class PreparedRequest:
    """The codec of one method for one incarnation."""

    def __init__(self, method: str, *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
        self._method: Final = method
        self._modern = protocol_version in MODERN_PROTOCOL_VERSIONS
        self._stamp = stamp
        # A copy: the encoder's own buffer is 4 KB, and this lasts as long as the incarnation.
        self._encoded_stamp = bytes(memoryview(encode(stamp))) if stamp else b""
        self._version = protocol_version
        self._head = b',"method":' + encode(method) + b',"params":'
        self._parts = _PARTS_MEMBER.get(method, "")
        self.promises: bool = False
        """True if results are checked against more than the protocol: see `check_promise`."""
        self.needs_task: bool = False
        """True if the tool, of 2025-11-25, is only called as a task: by a parameter."""

    def made_task(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """The task in an answer to a call, if the server was told that it may answer with one; None if it is none."""
        if self.needs_task:
            return raw["task"] if isinstance(raw.get("task"), dict) else None
        told = self._modern and declares(self._stamp.get(CLIENT_CAPABILITIES_META_KEY), TASKS)
        return raw if told and self._method == CALL_TOOL and raw.get("resultType") == "task" else None

    def frame(
        self, request_id: int | str, params: bytes, meta: Mapping[str, Any], *, wants_progress: bool = False
    ) -> bytes:
        """The whole request. The stamp of the era takes precedence over the caller's `_meta`: it cannot be forged."""
        if wants_progress:
            meta = {**meta, "progressToken": request_id}
        stamped = encode({**meta, **self._stamp}) if meta else self._encoded_stamp
        if self.needs_task:
            params = params[:-1] + b',"task":{}}'
        encoded_id = b"%d" % request_id if isinstance(request_id, int) else encode(request_id)
        parts = [b'{"jsonrpc":"2.0","id":', encoded_id, self._head]
        if stamped:
            parts += (params[:-1], b'"_meta":' if params == b"{}" else b',"_meta":', stamped, b"}}")
        else:
            parts += (params, b"}")
        return b"".join(parts)

    def headers(self, params: bytes) -> dict[str, str]:
        """The headers of a request, where frames have headers."""
        key = _NAMED.get(self._method) if self._modern else None
        return self.headers_about("" if key is None else str(decode(params).get(key, "")))

    def headers_about(self, name: str) -> dict[str, str]:
        """The headers for the tool, prompt or URI of this name."""
        version = {MCP_PROTOCOL_VERSION_HEADER: self._version}
        if not self._modern:
            return version
        routing = {MCP_METHOD_HEADER: self._method}
        if not name:
            return version | routing
        return version | routing | {MCP_NAME_HEADER: header_value(name)}

    def result(
        self, raw: dict[str, Any], *, small: bool = False, on_unchecked: Callable[[], None] | None = None
    ) -> Steps[Any]:
        """The typed result, validated; `small`: it came in a message that is processed in one go.

        `on_unchecked` is called if checking it against all that the server declared would take too long.

        Raises:
            BadResult: It is not a result of this protocol version.
            InputWanted: It is a request for input.
        """
        key = self._parts
        parts = raw.get(key, ())
        if nested_too_deep(raw):
            raise BadResult(TOO_DEEP)
        many = len(parts) if type(parts) in _ARRAY else 0
        if many > MOST_BLOCKS:
            raise BadResult(f"more than {MOST_BLOCKS} {'content blocks' if key == 'content' else key}")
        if not small:
            yield
        self._check_kind(raw, small=small)
        if self._method not in _PARTS_MEMBER:
            return raw
        try:
            result = self._typed(raw) if many <= PARTS_AT_ONCE else (yield from self._typed_in_pieces(raw, parts))
        except BadResult:
            if self._method != CALL_TOOL:
                raise
            raw = yield from _readable_result()(raw)  # the tool has run
            result = yield from self._typed_in_pieces(raw, raw[key])
        if self.promises and not (yield from self.check_promise(result, small=small)) and on_unchecked is not None:
            on_unchecked()
        return result

    def check_promise(self, result: Any, *, small: bool) -> Steps[bool]:
        """Check a result against what the server declared; False if that takes too long.

        Raises:
            BadResult: It does not fit.
        """
        del result, small
        yield
        return True

    def _check_kind(self, raw: dict[str, Any], *, small: bool) -> None:
        kind = raw.get("resultType", "complete")
        if not self._modern:
            raw.pop("resultType", None)  # no such key before 2026-07-28
        elif kind == "input_required":
            if not small and more_values_than(raw, MOST_ASKED):
                raise BadResult(f"a request for input with more than {MOST_ASKED} JSON values")
            raise InputWanted(_question(raw))
        elif kind != "complete" and not (kind == "task" and self._method in TASK_REQUESTS):  # as its examples have it
            raise BadResult(f"unknown resultType {kind!r:.40}")

    def _typed_in_pieces(self, raw: dict[str, Any], parts: list[Any]) -> "Steps[BaseModel]":
        """The result as a type of the SDK, some parts validated at a time.

        Raises:
            BadResult: It is not a valid result.
        """
        key = self._parts
        whole = self._typed({**raw, key: []})
        for at in range(0, len(parts), PARTS_AT_ONCE):
            yield
            some = self._typed({key: parts[at : at + PARTS_AT_ONCE]}, first=at)
            getattr(whole, key).extend(getattr(some, key))
        return whole

    def _typed(self, raw: dict[str, Any], first: int = 0) -> "BaseModel":
        return _typed_result()(self._method, raw, first)


class RelayedRequest(PreparedRequest):
    """The codec of a relayed request of any method, even one unknown to the protocol: the client's `_meta` takes
    precedence over ours, except for the protocol version, and the result stays as it came. Without `prepared`, the
    headers follow from the method. `stamp` has the era's members of the `_meta` of every request. With `follows_tasks`,
    its answer may be a task."""

    def __init__(
        self,
        method: str,
        prepared: PreparedRequest | None,
        *,
        protocol_version: str,
        stamp: Mapping[str, Any],
        follows_tasks: bool = False,
    ) -> None:
        version = {key: value for key, value in stamp.items() if key == PROTOCOL_VERSION_META_KEY}
        super().__init__(method, protocol_version=protocol_version, stamp=version)
        self._ours = {key: value for key, value in stamp.items() if key != LOG_LEVEL_META_KEY}
        self._prepared = prepared
        self._follows_tasks = follows_tasks
        self.needs_task = follows_tasks and prepared is not None and prepared.needs_task

    @override
    def made_task(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        if not self._follows_tasks or self._method != CALL_TOOL or not self._modern:
            return super().made_task(raw) if self.needs_task else None
        return raw if raw.get("resultType") == "task" else None  # told by its `_meta`

    def frame(
        self, request_id: int | str, params: bytes, meta: Mapping[str, Any], *, wants_progress: bool = False
    ) -> bytes:
        """The whole request."""
        return super().frame(request_id, params, {**self._ours, **meta}, wants_progress=wants_progress)

    def headers(self, params: bytes) -> dict[str, str]:
        """The headers of a request where frames have headers."""
        return super().headers(params) if self._prepared is None else self._prepared.headers(params)

    def result(
        self, raw: dict[str, Any], *, small: bool = False, on_unchecked: Callable[[], None] | None = None
    ) -> Steps[tuple[dict[str, Any], str]]:
        """The result as it came, and its version of the protocol.

        Raises:
            BadResult: It is nested too deep.
        """
        del on_unchecked
        if not small:
            yield
        if nested_too_deep(raw):
            raise BadResult(TOO_DEEP)
        return raw, self._version


@cache
def _typed_result() -> "Callable[[str, dict[str, Any], int], BaseModel]":
    from .results import typed_result  # loaded by the caller that waits for it

    return typed_result


@cache
def _readable_result() -> "Callable[[dict[str, Any]], Steps[dict[str, Any]]]":
    from .results import readable_result

    return readable_result


def round_params(again: Round) -> bytes:
    """The parameters of a call for one more round."""
    params: dict[str, Any] = decode(again.call.params)
    if again.responses is not None:
        params["inputResponses"] = again.responses
    if again.state is not None:
        params["requestState"] = again.state
    return encode(params)


def _question(raw: dict[str, Any]) -> "InputRequiredResult":
    from .results import ValidationError, typed_question

    try:
        return typed_question(raw)
    except ValidationError as error:
        raise BadResult(f"not a request for input: {folded(error.errors()[0]['msg'])}") from None


def header_value(text: str) -> str:
    """The text as a header says it: in base64 unless it is plain ASCII."""
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith(ENCODED_HEADER):
        return text
    return f"{ENCODED_HEADER}base64?{b64encode(text.encode()).decode()}?="


HeaderMap = Mapping[tuple[str, ...], str]
"""The arguments repeated in headers of their own: the path of each, and its header's name."""


class PreparedTool(PreparedRequest):
    """The codec of one tool of one incarnation, with its headers and output schema."""

    def __init__(self, definition: "Tool", *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
        super().__init__(CALL_TOOL, protocol_version=protocol_version, stamp=stamp)
        self.name: Final = definition.name
        promised = definition.output_schema
        self._output_schema = None if promised is None else OutputSchema(promised, tool=definition.name)
        self.promises: bool = promised is not None
        self._schema = definition.input_schema
        self.needs_task = not self._modern and needs_task(definition)
        self._headers: tuple[dict[str, str], HeaderMap] | None = None

    def headers(self, params: bytes) -> dict[str, str]:
        """The headers of a request, where frames have headers, including repeated arguments."""
        if self._headers is None:
            self._headers = self.headers_about(self.name), self._header_map()
        fixed, mirrored = self._headers
        if not mirrored:
            return fixed
        from mcp.shared.inbound import mcp_param_headers

        return fixed | mcp_param_headers(mirrored, decode(params).get("arguments") or {})

    def _header_map(self) -> HeaderMap:
        if not self._modern or X_MCP_HEADER not in encode(self._schema):
            return {}
        from mcp.shared.inbound import x_mcp_header_map  # loaded: the list had this keyword

        return x_mcp_header_map(self._schema)

    def check_promise(self, result: "CallToolResult", *, small: bool) -> Steps[bool]:
        """Check structured content against the output schema. See `PreparedRequest`."""
        schema = self._output_schema
        if schema is None or result.is_error:
            return True
        if "structured_content" not in result.model_fields_set:
            if (yield from schema.problem()) is not None:
                return False
            raise BadResult("the tool declares an output schema and returned no structured content")
        try:
            return (yield from schema.check(result.structured_content, small=small))
        except SchemaViolation as error:
            raise BadResult(str(error)) from None


class PreparedTools:
    """The tools of one list, each prepared when it is first called: most of ten thousand never are. `stamp` has the
    era's members of the `_meta` of every request."""

    def __init__(self, tools: "Iterable[Tool]", *, protocol_version: str, stamp: Mapping[str, Any]) -> None:
        self._definitions = {tool.name: tool for tool in tools}
        self._version = protocol_version
        self._stamp = stamp
        self._prepared: dict[str, PreparedTool] = {}

    def get(self, name: str) -> PreparedTool | None:
        """The tool of this name, if it is listed."""
        tool = self._prepared.get(name)
        if tool is None and (definition := self._definitions.get(name)) is not None:
            tool = PreparedTool(definition, protocol_version=self._version, stamp=self._stamp)
            self._prepared[name] = tool
        return tool

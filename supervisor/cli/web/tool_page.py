"""The page on which a person tries a tool."""

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from secrets import token_urlsafe
from typing import Any, Final, cast

from mcp_types import ImageContent

from mcp_nursery.actors.errors import CallError, NotApproved, NurseryError
from mcp_nursery.supervisor import Approval, Supervisor, Tool, ToolResult
from mcp_nursery.supervisor.gateway.bridge import as_object
from mcp_nursery.supervisor.tools.approval_rules import ApprovalRequest

from ..failures import message_of
from ..output import safe_text
from .acts import PATIENCE, FormFields
from .layout import LONGEST_PHRASE, ServerWords, csrf_field, document, milliseconds, pretty, short, table, url
from .markup import Html, h
from .server_page import LONGEST_SHOWN, calls_table
from .tool_form import WronglyFilled, arguments_of, fields_of
from .visitors import Visitor

LONGEST_RESULT = 100_000
"""Characters of a result that are shown."""
MOST_RESULT_ROWS = 200
"""Rows of a table in a result that are shown."""
MOST_RESULT_COLUMNS = 20
"""Columns of a table in a result: one of more is shown as JSON."""
HAS_CHANGED = "The tool has changed since this form was made. Nothing was called: look at it as it is now."
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The kinds of images that are shown: none that may hold a script."""
LARGEST_IMAGE: Final = 1 << 20
"""Bytes of an image that is shown."""
MOST_IMAGES: Final = 8
"""Images of one result that are shown."""
MOST_CONTENT = 100
"""Pieces of content that are listed."""


class ToolPage:
    """The page of one tool of a server, on which it can be tried."""

    def __init__(
        self,
        supervisor: Supervisor,
        visitor: Visitor,
        server: str,
        tool: str,
        *,
        use: Callable[[str], bool],
        keep_image: Callable[[str, bytes], str],
    ) -> None:
        self._use = use
        self._keep_image = keep_image
        self._supervisor = supervisor
        self._visitor = visitor
        self._server = server
        self.tool: Tool | None = None
        """The tool; None if no tool has this name."""
        self._problem = ""
        try:
            self.tool = supervisor.tool(tool, server=server)
        except NurseryError as error:
            self._problem = str(error)

    @property
    def status(self) -> HTTPStatus:
        """The status of the response."""
        return HTTPStatus.NOT_FOUND if self.tool is None else HTTPStatus.OK

    async def answer(self, form: FormFields) -> str:
        """Call the tool with the arguments that were filled in. Returns the page that follows: with the result, the
        reason why nothing was called, or the question whether to call it."""
        tool, sure = self.tool, form.get("sure") == "yes"
        if tool is None:
            return self.document({})
        if form.get("definition") != tool.definition_hash:
            return self.document({}, problem=HAS_CHANGED)
        try:
            arguments = arguments_of(tool.input_schema, form)
        except WronglyFilled as error:
            return self.document(form, problem=str(error))
        if tool.requires_approval and not sure:
            return self.document(form, asks=True)
        return await self._call(tool, arguments, form, sure=sure)

    async def _call(self, tool: Tool, arguments: dict[str, Any], form: FormFields, *, sure: bool) -> str:
        asks = False
        if not self._use(form.get("once", "")):
            return self.document(form, problem="This form was sent before. Nothing was called again.")

        async def approve(_request: ApprovalRequest) -> Approval:
            nonlocal asks
            asks = not sure
            return Approval.ALLOW if sure else Approval.DENY

        try:
            await self._supervisor.agree(tool.server, tool.tool, arguments, approve=approve)
            now = self._supervisor.tool(tool.tool, server=tool.server)
            if now.definition_hash != tool.definition_hash:  # while somebody was asked
                return self.document({}, problem=HAS_CHANGED)
            # A server that is away may come back with another tool: the call does not wait for it.
            result = await self._supervisor.call_tool(
                tool.tool, arguments, server=tool.server, timeout=PATIENCE, when_down="fail"
            )
        except NotApproved as error:
            return self.document(form, asks=True) if asks else self.document(form, problem=message_of(error))
        except NurseryError as error:
            delivery = f" Delivery: {error.delivery.replace('_', ' ')}." if isinstance(error, CallError) else ""
            return self.document(form, problem=f"{message_of(error)}.{delivery}")
        return self.document(form, result=result)

    def document(
        self,
        given: Mapping[str, str],
        *,
        result: ToolResult | None = None,
        problem: str | None = None,
        asks: bool = False,
    ) -> str:
        """The whole page, with the values that were filled in, by names of fields, and with the answer to a call, or
        the reason why nothing was called. With `asks`, the next press of the button confirms the call."""
        tool = self.tool
        if tool is None:
            return document("No such tool", self._visitor, h("p", short(self._problem, LONGEST_PHRASE)))
        words = ServerWords(self._supervisor, self._server)
        back = h("p", h("a", f"Back to {short(self._server)}", href=url("/server", name=self._server)))
        label = "Yes, call it" if asks else "Call"
        form = h(
            "form",
            csrf_field(self._visitor),
            h("input", type="hidden", name="server", value=self._server),
            h("input", type="hidden", name="tool", value=tool.tool),
            h("input", type="hidden", name="once", value=token_urlsafe(9)),
            h("input", type="hidden", name="definition", value=tool.definition_hash),
            h("input", type="hidden", name="sure", value="yes") if asks else None,
            fields_of(tool.input_schema, given, words),
            h("button", label, disabled=not self._visitor.may_act),
            method="post",
            action="/ui/tool",
        )
        schema = h("pre", words.json(tool.input_schema, LONGEST_SHOWN), tabindex=0)
        calls = [each for each in self._supervisor.recent_calls(self._server)[::-1] if each.tool == tool.tool]
        content = (
            back,
            h("p", words.line(tool.full_description, LONGEST_SHOWN)),
            None if tool.ui is None else h("p", "Page: ", words.line(tool.ui.summary, LONGEST_SHOWN)),
            None if problem is None else h("p", short(problem, LONGEST_SHOWN), class_="bad", role="alert"),
            h("p", _question(tool), class_="warning", role="alert") if asks else None,
            h("div", h("section", h("h2", "Arguments"), form), h("section", h("h2", "Schema"), schema), class_="sides"),
            None if result is None else result_of(result, self._keep_image),
            h("section", h("h2", "Calls"), calls_table(calls, words)),
        )
        return document(tool.tool, self._visitor, *content)


def _question(tool: Tool) -> str:
    hints = tool.hints
    said = "is said to change nothing" if hints.read_only else "may change things"
    return f"{short(tool.tool)} {said}, and the rules want somebody to agree. Call it with these arguments?"


def result_of(result: ToolResult, keep_image: Callable[[str, bytes], str]) -> Html:
    """The answer of a tool. `keep_image` returns the address of an image, by its kind and its content."""
    kinds = [short(each.type) for each in result.content[:MOST_CONTENT]]
    facts = f"Answered in {milliseconds(result.duration)} ms: {', '.join(kinds) or 'nothing'}."
    structured = None if result.structured is None else safe_text(pretty(result.structured, LONGEST_RESULT))
    return h(
        "section",
        h("h2", "The tool reports an error" if result.is_error else "Result"),
        h("p", facts, class_="bad" if result.is_error else "good", role="status"),
        _images(result, keep_image),
        _tables(result.structured),
        h("pre", safe_text(result.full_text[:LONGEST_RESULT]), id="result", tabindex=0),
        None if structured is None else h("details", h("summary", "Structured, as JSON"), h("pre", structured)),
        h("details", h("summary", "What a model sees"), h("pre", safe_text(result.text[:LONGEST_RESULT]))),
    )


def _images(result: ToolResult, keep_image: Callable[[str, bytes], str]) -> Iterator[Html]:
    """The images in content, each of at most `LARGEST_IMAGE` bytes."""
    images = [each for each in result.content if isinstance(each, ImageContent) and each.mime_type in IMAGES]
    for each in images[:MOST_IMAGES]:
        if len(each.data) <= LARGEST_IMAGE * 4 // 3 + 4:  # the last four characters may stand for one byte
            with suppress(ValueError):
                content = b64decode(each.data, validate=True)
                if 0 < len(content) <= LARGEST_IMAGE:
                    about = f"{len(content)} bytes of {each.mime_type}"
                    yield h("img", src=keep_image(each.mime_type, content), alt=about)


def _tables(structured: object) -> Iterator[Html]:
    """The lists of flat objects in structured content, as tables of `LONGEST_RESULT` characters together."""
    room = LONGEST_RESULT
    for name, value in islice(as_object(structured).items(), MOST_CONTENT):
        listed = cast("list[object]", value) if isinstance(value, list) else []
        rows = [as_object(row) for row in listed[:MOST_RESULT_ROWS]]
        heads: dict[str, None] = {}
        for row in rows:
            heads.update(dict.fromkeys(islice(row, MOST_RESULT_COLUMNS + 1)))
            if len(heads) > MOST_RESULT_COLUMNS:
                break
        cells = [[row.get(head) for head in heads] for row in rows] if len(heads) <= MOST_RESULT_COLUMNS else []
        if heads and cells and not any(isinstance(each, dict | list) for row in cells for each in row):
            shown = [[short(each, LONGEST_PHRASE) for each in row] for row in cells]
            room -= sum(len(each) for row in shown for each in row)
            if room < 0:
                return
            yield table(short(name), [short(head) for head in heads], shown, empty="")

"""A tool as the host sees it: a named definition that can be called; its forms for the APIs of models; and the
arguments that a model gives it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, cast

from mcp_nursery.actors.pieces import Steps, at_once
from mcp_nursery.actors.records import field, frozen
from mcp_nursery.actors.session.lazy_definitions import as_sdk_type

from ..security.untrusted_marks import MAX_RESULT_CHARS
from .hints import ToolHints, always_load, describe, hints_of, search_hint
from .model_schema import ModelSchema, SchemaForModels
from .pins import DefinitionChange, pinned_text
from .ui import ToolUI, ui_of

if TYPE_CHECKING:
    from mcp_types import Tool as Definition
    from mcp_types import ToolAnnotations

    from mcp_nursery.actors.reply import ProgressCallback

    from ..decisions.restart_policy import WhenDown
    from .tool_result import ToolResult


class Invoke(Protocol):
    """The function that asks for approval, then calls."""

    async def __call__(
        self,
        tool: "Tool",
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: "ProgressCallback | None",
        meta: Mapping[str, Any] | None,
        when_down: "WhenDown | None",
    ) -> "ToolResult":
        """Call a tool for a model, once it is approved."""
        ...


@frozen(
    slots=False
)  # made in a third of the time: a server may have thousands, and each that borrows it makes them again
class Tool:
    """One tool of the catalogue. A value, true when the catalogue was made."""

    name: str
    """The public name, unique in the catalogue."""
    server: str
    """The server's name."""
    tool: str
    """The server's own name of it."""
    declared: "Definition" = field(repr=False, alias="definition")
    """The declared definition: all that `definition` has, also before the SDK is loaded."""
    available: bool
    """True if its server was connected."""
    trusted_hints: bool = field(repr=False)
    """True if its hints are believed: they may then decide that a lost call is sent again."""
    requires_approval: bool = True
    """True if calls that a model asks for go through `approve`."""
    max_result_chars: int = field(default=MAX_RESULT_CHARS, repr=False)
    """Characters of a result that a model is shown."""
    change: DefinitionChange | None = field(default=None, repr=False)
    """The difference from what it was at first use; None if there is none."""
    _invoke: Invoke | None = field(default=None, repr=False, eq=False, alias="invoke")
    _forms: SchemaForModels = field(factory=SchemaForModels, repr=False, eq=False, alias="forms")

    @property
    def definition(self) -> "Definition":
        """The declared definition, in the SDK's type."""
        return as_sdk_type(self.declared)

    @cached_property
    def definition_hash(self) -> str:
        """SHA-256 of its name, title, description, schemas, hints, page and callers, in hexadecimal: `ALLOW_ALWAYS`
        holds for this."""
        return sha256(pinned_text(self.declared).encode()).hexdigest()

    def is_declared_as(self, definition: Mapping[str, Any]) -> bool:
        """True if this definition, as a server writes it, is the same in all that a model is shown."""
        from mcp_types import Tool as Definition

        try:
            declared = Definition.model_validate(definition)
        except ValueError:
            return False
        return pinned_text(declared) == pinned_text(self.declared)

    @property
    def description(self) -> str:
        """The description for a model: `[MCP: <server>]` and the server's words, in at most 2048 characters."""
        return describe(self.server, self.full_description)

    @property
    def full_description(self) -> str:
        """The server's whole description; the name if there is none."""
        return self.declared.description or self.tool

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of its arguments, as declared; that of an empty object if the server declares none."""
        return self.declared.input_schema or {"type": "object", "properties": {}}

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """JSON Schema of its structured content, if declared."""
        return self.declared.output_schema

    @cached_property
    def output_schema_problem(self) -> str | None:
        """The reason why results are not held against `output_schema`, as if none were declared: it is too complex, or
        cannot be compiled. None if they are, or if none is declared. Found out at first use, in at most 50 ms."""
        if self.output_schema is None:
            return None
        from mcp_nursery.actors.session.schemas import OutputSchema

        return at_once(OutputSchema(self.output_schema, tool=self.tool).problem())

    @property
    def annotations(self) -> "ToolAnnotations | None":
        """The server's hints about it, as declared."""
        return self.declared.annotations

    @property
    def hints(self) -> ToolHints:
        """The server's hints about it, and whether they are trusted."""
        return hints_of(self.declared, trusted=self.trusted_hints)

    @property
    def search_hint(self) -> str | None:
        """Words the server wants it to be found by, on one line."""
        return search_hint(self.declared.meta)

    @property
    def always_load(self) -> bool:
        """True if the server wants a model to have it from the start."""
        return always_load(self.declared.meta)

    @property
    def ui(self) -> ToolUI | None:
        """The page and the callers that its server declares; None if it has no page, and is for everybody."""
        return ui_of(self.declared.meta)

    @property
    def for_models(self) -> bool:
        """False if its server wants only its pages to call it. No model is offered it, and a call of a model gets the
        answer of an unknown name; `Supervisor.tools` has it, and `Supervisor.call_tool` calls it."""
        return self.ui is None or self.ui.for_models

    def as_openai(self) -> dict[str, Any]:
        """The function tool that OpenAI's chat completions take, and the many APIs like it."""
        function = {"name": self.name, "description": self.description, "parameters": self._for_models.as_dict()}
        return {"type": "function", "function": function}

    def as_anthropic(self) -> dict[str, Any]:
        """The tool that Anthropic's messages take."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self._for_models.as_dict(),
        }

    def as_gemini(self) -> dict[str, Any]:
        """The function declaration that Google's Gemini API takes, as its SDK names the members."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters_json_schema": self._for_models.as_dict(),
        }

    def as_langchain(self) -> dict[str, Any]:
        """Name, description and `args_schema`, as LangChain's `StructuredTool` takes them beside a function."""
        return {"name": self.name, "description": self.description, "args_schema": self._for_models.as_dict()}

    def declared_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments that a model gave, under the names that the server declares. Some APIs refuse names such as
        `$filter`: the forms above have `_filter` there. Calls through `Tool` and `Toolset` need nothing of this."""
        return self._for_models.with_declared_names(arguments)

    @property
    def _for_models(self) -> ModelSchema:
        return self._forms.at_once(self.input_schema)

    async def __call__(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: "ProgressCallback | None" = None,
        meta: Mapping[str, Any] | None = None,
        when_down: "WhenDown | None" = None,
    ) -> "ToolResult":
        """Call it for a model: with approval.

        Args:
            arguments: A JSON object.
            timeout: Seconds for the call, from its approval on: a person may take any time. Default: as for
                `Supervisor.call_tool`.
            on_progress: `async (progress, total, message)`, called in order, before the result.
            meta: Additional `_meta` of the request.
            when_down: As for `Supervisor.call_tool`.

        Raises:
            NotApproved: Denied, held back, or nobody to ask. The server was not touched.
            TypeError: `approve` returned no `Approval`; its own exceptions are raised, too. The server was not touched.
            NurseryError: See `Supervisor.call_tool`.
        """
        if self._invoke is None:
            raise TypeError(f"{self.name}: this tool is a description only; call the one in supervisor.tools")
        return await self._invoke(
            self, arguments, timeout=timeout, on_progress=on_progress, meta=meta, when_down=when_down
        )


def as_available(tool: Tool, *, available: bool) -> Tool:
    """The tool while its server is connected, or is not. Made for thousands at once, in half the time of `evolve`."""
    return Tool(
        tool.name,
        tool.server,
        tool.tool,
        tool.declared,
        available,
        tool.trusted_hints,
        tool.requires_approval,
        tool.max_result_chars,
        tool.change,
        tool._invoke,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        tool._forms,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    )


def prepare_for_models(tools: Iterable[Tool]) -> Steps[None]:
    """Make what the forms of these tools for models need, in pieces. The forms make it in one go otherwise."""
    for tool in tools:
        yield from tool._forms.of(tool.input_schema)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def without_placeholders(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without empty ones that the schema names and does not require.

    Models fill in optional fields with `null`, `""`, `[]` or `{}` when they mean no value.
    """
    properties = schema.get("properties")
    required = schema.get("required")
    named: Mapping[str, Any] = cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}
    kept = cast("Sequence[object]", required) if isinstance(required, list) else ()
    return {
        name: value for name, value in arguments.items() if name in kept or name not in named or not _is_empty(value)
    }


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, Mapping)) and not value)

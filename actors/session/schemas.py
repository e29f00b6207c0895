"""Checks what a tool returns, or is given, against the schema that it declared, in bounded time."""

import logging
from typing import Any, ClassVar, Final

import jsonschema_rs

from ..errors import folded
from ..json_depth import characters_of, more_values_than, size_of
from ..pieces import Steps
from .schema_cost import LIMIT, SchemaCost, steps_for_a_character

logger: Final = logging.getLogger(__name__)

_TAME: Final = 64
"""Steps for each value up to which the values of a small result are not counted."""
_DESCRIBABLE: Final = 1000
"""Steps for each value up to which an error is described, which may take a thousand times as long as to find it."""
_VALUES: Final = 20_000
"""Values in a schema up to which it is compiled: some hundredths of a second."""
_PATTERN_SIZE: Final = 16 << 10
"""Bytes of a compiled pattern: one of this size takes 1 us for each character of the worst text."""
_MESSAGE: Final = 1000
"""Characters of an error: it quotes the content."""


class SchemaViolation(Exception):
    """The content is not what the schema promises, or the schema cannot be used."""


class OutputSchema:
    """An output schema, compiled.

    What might take long to check is taken on trust, as if the tool had declared nothing, and that is logged: the schema
    is its server's own promise. That is so for content that might take more than `LIMIT` steps, for a schema that is
    too large to compile, and for one with a pattern that is not linear (lookaround, references) or becomes too large.

    Raises:
        SchemaViolation: It cannot be used.
    """

    content: ClassVar[str] = "structured content"
    """What is checked."""
    said: ClassVar[str] = "a result"
    """What that is of."""
    name: ClassVar[str] = "output schema"
    """What it is checked against."""

    def __init__(self, schema: dict[str, Any], *, tool: str) -> None:
        self._tool = tool
        self._cost = SchemaCost(schema)
        self._reading = SchemaCost(schema, steps_for_a_character)
        for cost in (self._cost, self._reading):
            cost.down_to(8)
        self._has_patterns = self._reading.most > 0 or not self._reading.over
        self._is_tame = self._cost.over and self._cost.most <= _TAME and not self._has_patterns
        compilable = self._cost.is_small and not more_values_than(schema, _VALUES)
        self._validator = self._compiled(schema) if compilable else None

    def check(self, content: object, *, small: bool = False) -> Steps[None]:
        """Check content against it; `small`: it came in a message that is processed in one go.

        Raises:
            SchemaViolation: It does not fit.
        """
        validator = self._validator
        yield
        if validator is None or not ((small and self._is_tame) or self._is_affordable(content)):
            logger.info(f"{self.said} of the tool %.100r is not checked: its {self.name} is too complex", self._tool)
            return
        yield
        try:
            if validator.is_valid(content):
                return
            if self._cost.most > _DESCRIBABLE:
                raise SchemaViolation(f"{self.content} does not fit the {self.name}, which is too complex to say how")
            yield
            validator.validate(content)
        except ValueError as error:
            raise self._violation(error) from None

    def _is_affordable(self, content: object) -> bool:
        levels, values = size_of(content)
        if self._cost.down_to(levels) * values > LIMIT:
            return False
        return not self._has_patterns or self._reading.down_to(levels) * characters_of(content) <= LIMIT

    def _compiled(self, schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
        """The compiled schema; None if a linear engine refuses a pattern in it.

        Raises:
            SchemaViolation: It is not a valid schema, or refers to another document.
        """
        linear, any_at_all = jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE), jsonschema_rs.FancyRegexOptions()
        try:
            return _validator(schema, linear)
        except ValueError:
            try:
                _validator(schema, any_at_all)
            except ValueError as error:
                raise self._violation(error) from None
        return None

    def _violation(self, error: ValueError) -> SchemaViolation:
        if isinstance(error, jsonschema_rs.ValidationError):
            where = "".join(f"/{step}" for step in error.instance_path)[:_MESSAGE]
            at = f" at {where}" if where else ""
            return SchemaViolation(
                folded(f"{self.content} does not fit the {self.name}{at}: {error.message[:_MESSAGE]}")
            )
        # Half a surrogate pair, in the schema or in what it is held against.
        return SchemaViolation(f"the {self.name} cannot be used: {folded(error)}")


class InputSchema(OutputSchema):
    """An input schema, compiled: the same for the arguments of a call."""

    content = "what was given"
    said = "a call"
    name = "input schema"


def _validator(
    schema: dict[str, Any], engine: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions
) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        schema, validate_formats=False, retriever=_refuse_retrieval, pattern_options=engine
    )


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"{uri}: references outside the schema are not fetched")

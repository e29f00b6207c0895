"""Checks what a tool returns against the schema that it declared, in bounded time."""

import logging
from typing import Any, Final

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

    def __init__(self, schema: dict[str, Any], *, tool: str) -> None:
        self._tool = tool
        self._cost = SchemaCost(schema)
        self._reading = SchemaCost(schema, steps_for_a_character)
        for cost in (self._cost, self._reading):
            cost.down_to(8)
        self._has_patterns = self._reading.most > 0 or not self._reading.over
        self._is_tame = self._cost.over and self._cost.most <= _TAME and not self._has_patterns
        compilable = self._cost.is_small and not more_values_than(schema, _VALUES)
        self._validator = _compiled(schema) if compilable else None

    def check(self, content: object, *, small: bool = False) -> Steps[None]:
        """Check content against it; `small`: it came in a message that is processed in one go.

        Raises:
            SchemaViolation: It does not fit.
        """
        validator = self._validator
        yield
        if validator is None or not ((small and self._is_tame) or self._is_affordable(content)):
            logger.info("a result of the tool %.100r is not checked: its output schema is too complex", self._tool)
            return
        yield
        try:
            if validator.is_valid(content):
                return
            if self._cost.most > _DESCRIBABLE:
                raise SchemaViolation(
                    "structured content does not fit the output schema, which is too complex to say how"
                )
            yield
            validator.validate(content)
        except ValueError as error:
            raise _violation(error) from None

    def _is_affordable(self, content: object) -> bool:
        levels, values = size_of(content)
        if self._cost.down_to(levels) * values > LIMIT:
            return False
        return not self._has_patterns or self._reading.down_to(levels) * characters_of(content) <= LIMIT


def _compiled(schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
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
            raise _violation(error) from None
    return None


def _validator(
    schema: dict[str, Any], engine: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions
) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        schema, validate_formats=False, retriever=_refuse_retrieval, pattern_options=engine
    )


def _violation(error: ValueError) -> SchemaViolation:
    if isinstance(error, jsonschema_rs.ValidationError):
        return SchemaViolation(f"structured content does not fit the output schema: {folded(error.message[:_MESSAGE])}")
    # Half a surrogate pair, in the schema or in what it is held against.
    return SchemaViolation(f"the output schema cannot be used: {folded(error)}")


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"{uri}: references outside the schema are not fetched")

"""Checks of what a tool returns, or is given, against the schemas that it declared, in bounded time."""

import logging
from typing import Any, ClassVar, Final

import jsonschema_rs

from ..errors import folded
from ..json_depth import characters_of, more_values_than, size_of
from ..pieces import Steps
from .schema_cost import (
    MOST_OF_PATTERNS,
    MOST_STEPS,
    SchemaCost,
    characters_of_patterns,
    has_inner_names,
    steps_for_a_character,
)

logger: Final = logging.getLogger(__name__)

_TAME: Final = 64
"""Steps for each value up to which the values in a small result are not counted."""
_DESCRIBABLE: Final = 1000
"""Steps for each value up to which an error is described, which may take a thousand times as long as finding it."""
_VALUES: Final = 20_000
"""Values in a schema up to which it is compiled: some hundredths of a second."""
_PATTERN_SIZE: Final = 16 << 10
"""Bytes of a compiled pattern: one of this size takes 1 us for each character of the worst text."""
_TOO_COMPLEX: Final = "it is too complex"
_MOST_ERROR_CHARACTERS: Final = 1000
"""Characters of an error: it quotes the content."""


class SchemaViolation(Exception):
    """The content is not what the schema promises."""


class OutputSchema:
    """An output schema, compiled at first use.

    What might take long to check is taken on trust, as if the tool had declared nothing, and logged: the schema is the
    server's own promise. This holds for content that might take more than `MOST_STEPS` steps, and for a schema that is
    too large to compile, has names in it (`$anchor`, `$id`), or patterns that are too long, not linear (lookaround,
    references), or invalid. The same holds for a schema that is none, or refers to another document: the tool has run,
    and its answer is not lost for its definition.
    """

    content: ClassVar[str] = "structured content"
    """The content that is checked."""
    said: ClassVar[str] = "a result"
    """The message that the content belongs to."""
    name: ClassVar[str] = "output schema"
    """The schema that it is checked against."""

    def __init__(self, schema: dict[str, Any], *, tool: str) -> None:
        self._tool = tool
        self._schema = schema
        self._problem: str | None = _TOO_COMPLEX
        self._is_prepared = False
        self._validator: jsonschema_rs.Validator | None = None

    def check(self, content: object, *, small: bool = False) -> Steps[bool]:
        """Check content against the schema; False if it is not checked. `small`: its message is processed in one go.

        Raises:
            SchemaViolation: The content does not fit.
        """
        if not self._is_prepared:
            yield from self.problem()
        validator = self._validator
        if not small:
            yield
        if self._problem not in (None, _TOO_COMPLEX):  # which was logged
            return False
        if validator is None or not ((small and self._is_tame) or self._is_affordable(content)):
            logger.info(f"{self.said} of the tool %.100r is not checked: its {self.name} is too complex", self._tool)
            return False
        if not small:
            yield
        try:
            if validator.is_valid(content):
                return True
            if self._cost.most > _DESCRIBABLE:
                raise SchemaViolation(f"{self.content} does not fit the {self.name}, which is too complex to say how")
            yield
            validator.validate(content)
        except ValueError as error:
            raise self._violation(error) from None
        raise AssertionError  # it is valid or not

    def problem(self) -> Steps[str | None]:
        """The reason why nothing is checked against the schema; None if it is."""
        if not self._is_prepared:
            yield from self._prepare()
            if self._problem not in (None, _TOO_COMPLEX):
                logger.warning(
                    "the %s of the tool %.100r counts as not declared: %s", self.name, self._tool, self._problem
                )
        return self._problem

    def _prepare(self) -> Steps[None]:
        """Compile the schema, if that is quick."""
        schema = self._schema
        if not more_values_than(schema, _VALUES):
            yield
            is_plain = not has_inner_names(schema)
            yield
            if is_plain and characters_of_patterns(schema) <= MOST_OF_PATTERNS:
                yield from self._weigh(schema)
        self._is_prepared = True

    def _weigh(self, schema: dict[str, Any]) -> Steps[None]:
        self._cost = SchemaCost(schema)
        if not self._cost.is_small:
            return
        yield
        self._reading = SchemaCost(schema, steps_for_a_character)
        for cost in (self._cost, self._reading):
            yield
            cost.down_to(8)
        self._has_patterns = self._reading.most > 0 or not self._reading.over
        self._is_tame = self._cost.over and self._cost.most <= _TAME and not self._has_patterns
        yield
        self._validator = self._compiled(schema)

    def _is_affordable(self, content: object) -> bool:
        levels, values = size_of(content)
        if self._cost.down_to(levels) * values > MOST_STEPS:
            return False
        return not self._has_patterns or self._reading.down_to(levels) * characters_of(content) <= MOST_STEPS

    def _compiled(self, schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
        """The compiled schema; None if it is none, or if the engine, which is linear, refuses a pattern in it."""
        engine = jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE)
        try:
            validator = jsonschema_rs.validator_for(
                schema, validate_formats=False, retriever=_refuse_retrieval, pattern_options=engine
            )
        except ValueError as error:
            if not _is_about_pattern(error):
                self._problem = f"it cannot be compiled{_words(error)}"
            return None
        self._problem = None
        return validator

    def _violation(self, error: ValueError) -> SchemaViolation:
        if not isinstance(error, jsonschema_rs.ValidationError):  # half a surrogate pair
            return SchemaViolation(f"{self.content} cannot be held against the {self.name}{_words(error)}")
        return SchemaViolation(f"{self.content} does not fit the {self.name}{_words(error)}")


class InputSchema(OutputSchema):
    """An input schema: the same for the arguments of a call."""

    content = "what was given"
    said = "a call"
    name = "input schema"


def _words(error: ValueError) -> str:
    """The message of an error, and the place that it is about."""
    if not isinstance(error, jsonschema_rs.ValidationError):
        return f": {folded(error)}"
    where = "".join(f"/{step}" for step in error.instance_path)[:_MOST_ERROR_CHARACTERS]
    return f"{' at ' + folded(where) if where else ''}: {folded(error.message[:_MOST_ERROR_CHARACTERS])}"


def _is_about_pattern(error: ValueError) -> bool:
    if not isinstance(error, jsonschema_rs.ValidationError):
        return False
    return isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format) and error.kind.format == "regex"


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"{uri}: references outside the schema are not fetched")

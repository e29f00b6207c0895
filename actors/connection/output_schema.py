"""Holding what a tool returns against the schema that it declared, in time that no server can draw out."""

import logging
from typing import Any, Final

import jsonschema_rs

from ..errors import folded
from ..nesting import size_of
from .schema_cost import LIMIT, SchemaCost

logger = logging.getLogger(__name__)

_TAME: Final = 64
"""Steps for each value up to which nobody counts the values: that is linear, and small beside reading them."""
_DESCRIBABLE: Final = 1000
"""Steps for each value up to which an error is described, which may take a thousand times as long as to find it."""
_BACKTRACK_LIMIT: Final = 100_000
"""Steps of a pattern that is not linear, for one text: some milliseconds."""


class SchemaViolation(Exception):
    """The content is not what the schema promises, or the schema cannot be used."""


class OutputSchema:
    """An output schema, compiled.

    Content that might take more than `LIMIT` steps, about a tenth of a second, is taken on trust, as if the tool had
    declared nothing: the schema is its server's own promise.

    Raises:
        SchemaViolation: It cannot be used.
    """

    def __init__(self, schema: dict[str, Any], *, tool: str) -> None:
        self._tool = tool
        self._cost = SchemaCost(schema)
        self._cost.down_to(8)
        self._is_tame = self._cost.over and self._cost.most <= _TAME
        try:
            self._validator = jsonschema_rs.validator_for(
                schema,
                validate_formats=False,
                retriever=_refuse_retrieval,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT),
            )
        except ValueError as error:
            raise _violation(error) from None

    def check(self, content: object) -> None:
        """Hold content against it.

        Raises:
            SchemaViolation: It does not fit.
        """
        if not self._is_tame and not self._is_affordable(content):
            logger.info("a result of the tool %.100r is not checked: its output schema is too intricate", self._tool)
            return
        try:
            if self._validator.is_valid(content):
                return
            if self._cost.most > _DESCRIBABLE:
                raise SchemaViolation(
                    "structured content does not fit the output schema, which is too intricate to say how"
                )
            self._validator.validate(content)
        except ValueError as error:
            raise _violation(error) from None

    def _is_affordable(self, content: object) -> bool:
        levels, values = size_of(content)
        return self._cost.down_to(levels) * values <= LIMIT


def _violation(error: ValueError) -> SchemaViolation:
    if isinstance(error, jsonschema_rs.ValidationError):
        return SchemaViolation(f"structured content does not fit the output schema: {folded(error.message)}")
    # Half a surrogate pair, in the schema or in what it is held against.
    return SchemaViolation(f"the output schema cannot be used: {folded(error)}")


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"{uri}: references outside the schema are not fetched")

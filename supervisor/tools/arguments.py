"""Arguments as a model gives them, made fit for a tool. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, cast


def without_placeholders(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without empty ones that the schema names and does not require.

    Models fill in optional fields with `null`, `""`, `[]` or `{}` when they mean none.
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

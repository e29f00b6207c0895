"""VS Code's `mcp.json`."""

from typing import Any

from mcp_nursery.supervisor.config.document import as_object

from .translation import Translation


def translate(written: dict[str, Any]) -> Translation:
    """In `env` a number is its digits, and null says nothing."""
    translation = Translation(dict(written))
    env = as_object(written.get("env"))
    if env is not None:
        translation.own["env"] = {name: _digits(value) for name, value in env.items() if value is not None}
    return translation


def _digits(value: object) -> object:
    return str(value).removesuffix(".0") if isinstance(value, int | float) and not isinstance(value, bool) else value

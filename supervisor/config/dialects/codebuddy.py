"""CodeBuddy: servers by name or in a list, how one is reached in an object of its own."""

from typing import Any

from mcp_nursery.supervisor.config.document import as_object
from mcp_nursery.supervisor.config.values import FieldError

from .translation import Translation


def translate(written: dict[str, Any]) -> Translation:
    """What stands in `transport` stands in the entry. `name` is the server's."""
    own = {key: value for key, value in written.items() if key not in ("name", "transport")}
    translation = Translation(own)
    nested = as_object(written.get("transport"))
    if nested is None:
        if "transport" in written:
            own["type"] = written["transport"]
            translation.words["type"] = "transport"
        return translation
    for key, value in nested.items():
        if key in own and value is not None:
            raise FieldError(f"says the same as {key}; remove one of them", f"transport.{key}")
        if value is not None:
            own[key] = value
            translation.words[key] = f"transport.{key}"
    return translation

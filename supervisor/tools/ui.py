"""The page of a tool, and who may call the tool, as its server declares them: MCP Apps, the extension
`io.modelcontextprotocol/ui`. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from mcp_nursery.actors.records import frozen

PAGE_KEYS: Final = ("ui/resourceUri", "openai/outputTemplate")
"""Keys in `_meta` of tools and results whose values are URIs of pages, besides `resourceUri` in `ui`."""
_PAGE: Final = "ui://"
_MOST_SHOWN: Final = 200
"""Characters of a URI that a person is shown."""
_CALLERS: Final = {"model": "models", "app": "pages"}
_EVERYBODY: Final = frozenset(_CALLERS)


@frozen
class ToolUI:
    """The page of a tool and its callers, as the server declares them. Its permissions and its content security policy
    are declared with the page: in `_meta` of the resource, and of its contents, which take precedence."""

    resource_uri: str | None
    """The URI of the page: `Supervisor.read_resource(uri, server=tool.server)` reads it. None: it has none."""
    visibility: frozenset[str] = _EVERYBODY
    """The callers that it is for: `"model"`, `"app"` (the pages of its server), or both, which is the default."""

    @property
    def for_models(self) -> bool:
        """True if a model may call it."""
        return "model" in self.visibility

    @property
    def for_apps(self) -> bool:
        """True if the pages of its server may call it."""
        return "app" in self.visibility

    @property
    def summary(self) -> str:
        """The page and the callers in words, for a person. The beginning of the URI is the server's, as it came."""
        page = "" if self.resource_uri is None else f"shows {self.resource_uri[:_MOST_SHOWN]}"
        callers = "" if self.visibility == _EVERYBODY else f"for {self._callers}"
        return ", ".join(filter(None, (page, callers)))

    @property
    def _callers(self) -> str:
        named = [words for caller, words in _CALLERS.items() if caller in self.visibility]
        return f"{named[0]} alone" if named else "nobody"

    def as_json(self) -> dict[str, Any]:
        """The declaration as JSON, in one form for all that mean the same."""
        return {"resourceUri": self.resource_uri, "visibility": sorted(self.visibility)}


def ui_of(meta: object) -> ToolUI | None:
    """The page and the callers in the `_meta` of a tool's definition; None if it has no page, and is for everybody.

    Whatever cannot be read is absent, and so is a page that is no `ui://` URI. But a visibility that is no list is for
    nobody: it may have been meant to keep the tool from models. Unknown callers in a list do not count.
    """
    if not isinstance(meta, Mapping) or not meta:
        return None
    known = cast("Mapping[str, object]", meta)
    declared: object = known.get("ui")
    said = cast("Mapping[str, object]", declared if isinstance(declared, Mapping) else {})
    uris = (said.get("resourceUri"), known.get("ui/resourceUri"))
    uri = next((each for each in uris if isinstance(each, str) and each.startswith(_PAGE)), None)
    callers = said.get("visibility")
    if callers is None:
        visibility = _EVERYBODY
    else:
        visibility = frozenset(each for each in _EVERYBODY if isinstance(callers, list) and each in callers)
    return None if uri is None and visibility == _EVERYBODY else ToolUI(uri, visibility)


def pages_of(meta: object) -> Iterable[str]:
    """The URIs of pages in the `_meta` of a tool's definition, however they are written there."""
    if not isinstance(meta, Mapping) or not meta:
        return ()
    known = cast("Mapping[str, object]", meta)
    declared: object = known.get("ui")
    said = cast("Mapping[str, object]", declared if isinstance(declared, Mapping) else {})
    return [each for each in (said.get("resourceUri"), *map(known.get, PAGE_KEYS)) if isinstance(each, str)]


def is_for_models(meta: object) -> bool:
    """True if a model may call the tool whose definition has this `_meta`."""
    ui = ui_of(meta)
    return ui is None or ui.for_models

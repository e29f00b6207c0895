"""URIs as a client of all servers is shown them: each names its server. Pure.

Servers choose their URIs freely, so that two may have the same one, and a hostile one any. A URI with its server in
front can be read from that server alone, whatever others list. It follows from the server and its own URI, and from
nothing else:

| server | its own URI | as it is shown |
|--------|-------------|----------------|
| maps | `ui://view.html` | `ui://maps+view.html`, since hosts want a page to have this scheme |
| notes | `note://{day}` | `mcp-server://notes/note://{day}`, so that what a template expands to is shown likewise |

The server comes first, in a part that neither an expansion nor a client that normalises a URI changes. A URI of either
form is never looked for among the servers' own ones.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from mcp_nursery.actors.pieces import Steps

from ...tools.ui import PAGE_KEYS
from ..bridge import Json

_PAGE: Final = "ui://"
_OTHER: Final = "mcp-server://"
_SHOWN: Final = re.compile(r"(?:(ui://)([\w.~%-]+)\+|mcp-server://([\w.~%-]+)/)", re.ASCII)
"""The part of a URI that names its server."""
_ALIKE: Final = re.compile(r"ui://[^/?#]*?(?:\+|%2b)|mcp-server://", re.IGNORECASE)
"""The beginning of a URI that names a server, however a client may have rewritten it."""
_WEB: Final = re.compile(r"https?:", re.IGNORECASE)
_PARTS_AT_ONCE: Final = 1000
"""Parts of a result that are looked at in a row."""


def qualify(server: str, uri: str) -> str:
    """The URI, or the template of URIs, of this server as clients of all servers are shown it."""
    name = _as_part(server)
    return f"{_PAGE}{name}+{uri[len(_PAGE) :]}" if uri.startswith(_PAGE) else f"{_OTHER}{name}/{uri}"


def split_qualified(uri: str) -> tuple[str, str] | None:
    """The server that a URI names, and the server's own URI; None if it names none. The name is empty if the URI looks
    like one that names a server, but is not written as those are shown."""
    if _ALIKE.match(uri) is None:
        return None
    if (shown := _SHOWN.match(uri)) is not None:
        page, *names = shown.groups()
        name = names[0] or names[1]
        with suppress(UnicodeDecodeError):
            server = unquote(name, errors="surrogatepass")
            if _as_part(server) == name:
                return server, (page or "") + uri[shown.end() :]
    return "", uri


def _as_part(server: str) -> str:
    return quote(server, safe="", errors="surrogatepass")


def is_web_address(uri: str) -> bool:
    """True if a host opens the URI by itself. So results keep it as it is, and none is read without its server."""
    return _WEB.match(uri) is not None


def qualify_definition(server: str, definition: Json) -> Json:
    """The definition of a tool, a resource or a template, with qualified URIs."""
    for key in ("uri", "uriTemplate"):
        definition = _qualify_member(server, definition, key)
    return _qualify_meta(server, definition)


def qualify_skill(server: str, entry: Mapping[str, Any]) -> Json:
    """The entry of a skill, with qualified URIs: a path from one of them to another stays the same."""
    files: object = entry.get("resources")
    if not isinstance(files, list):
        return _qualify_member(server, dict(entry), "uri")
    listed = cast("list[object]", files)
    fit = [_qualify_member(server, cast("Json", each), "uri") if isinstance(each, dict) else each for each in listed]
    return _qualify_member(server, {**entry, "resources": fit}, "uri")


def qualify_result(method: str, server: str, result: Json) -> Steps[Json]:
    """The result of a request, with qualified URIs where the protocol has URIs; texts and structured content are as
    they came."""
    if method == "tasks/get" and isinstance(result.get("result"), dict):
        return result | {"result": (yield from qualify_result("tools/call", server, result["result"]))}
    if method not in _PARTS:
        return result
    result = _qualify_meta(server, result)
    member, qualified = _PARTS[method]
    parts: object = result.get(member)
    if isinstance(parts, dict):
        return result | {member: qualified(server, cast("Json", parts))}
    if not isinstance(parts, list):
        return result
    made: list[object] = []
    for at in range(0, len(cast("list[object]", parts)), _PARTS_AT_ONCE):
        some = cast("list[object]", parts)[at : at + _PARTS_AT_ONCE]
        made += [qualified(server, cast("Json", each)) if isinstance(each, dict) else each for each in some]
        yield
    return result | {member: made}


def _qualify_member(server: str, said: Json, key: str) -> Json:
    uri: object = said.get(key)
    return said | {key: qualify(server, uri)} if isinstance(uri, str) else said


def _qualify_meta(server: str, said: Json) -> Json:
    meta: object = said.get("_meta")
    if not isinstance(meta, dict):
        return said
    fit = cast("Json", meta)
    for key in PAGE_KEYS:
        fit = _qualify_member(server, fit, key)
    if isinstance(fit.get("ui"), dict):
        fit = fit | {"ui": _qualify_member(server, fit["ui"], "resourceUri")}
    return said | {"_meta": fit}


def _qualify_contents(server: str, contents: Json) -> Json:
    return _qualify_member(server, contents, "uri")


def _qualify_link(server: str, said: Json) -> Json:
    uri: object = said.get("uri")
    return said if isinstance(uri, str) and is_web_address(uri) else _qualify_member(server, said, "uri")


def _qualify_block(server: str, block: Json) -> Json:
    kind: object = block.get("type")
    if kind == "resource_link":
        return _qualify_link(server, block)
    if kind == "resource" and isinstance(block.get("resource"), dict):
        return block | {"resource": _qualify_link(server, block["resource"])}
    return block


def _qualify_message(server: str, message: Json) -> Json:
    content: object = message.get("content")
    if isinstance(content, dict):
        return message | {"content": _qualify_block(server, cast("Json", content))}
    if isinstance(content, list):
        blocks = cast("list[object]", content)
        fit = [_qualify_block(server, cast("Json", each)) if isinstance(each, dict) else each for each in blocks]
        return message | {"content": fit}
    return message


_PARTS: Final[Mapping[str, tuple[str, Callable[[str, Json], Json]]]] = {
    "tools/call": ("content", _qualify_block),
    "prompts/get": ("messages", _qualify_message),
    "resources/read": ("contents", _qualify_contents),
    "resources/directory/read": ("resources", qualify_definition),
    "skills/get": ("skill", qualify_skill),
}
"""By method, the member of its result that holds parts with URIs, or is such a part, and the function that qualifies
those of one part."""

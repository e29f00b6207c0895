"""The words that no status, error, event or line of the log has: they are for people, and name no library."""

import inspect
import re
from collections.abc import Iterable
from importlib import import_module

LIBRARIES = ["anyio", "h11", "httpcore2", "httpx2", "mcp", "pydantic", "socksio.exceptions", "trio", "trio_websocket"]
LIBRARIES += ["wsproto.utilities", "cattrs", "orjson", "pydantic_core", "ssl"]
CLASSES = {
    name
    for library in LIBRARIES
    for name, kind in inspect.getmembers(import_module(library), inspect.isclass)
    if issubclass(kind, BaseException)
} | {"ImportError", "ModuleNotFoundError", "FileNotFoundError", "AssertionError"}
UNWANTED = re.compile(rf"\b(?:{'|'.join(sorted(CLASSES))})\b|crashed|[Ee]rrno|httpx|Traceback|<class|bytearray")


def unwanted(texts: Iterable[str]) -> list[str]:
    """Those of these texts that are not one line in plain words."""
    return [text for text in texts if UNWANTED.search(text) or len(text.splitlines()) > 1]

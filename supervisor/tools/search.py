"""Finding the tools that fit a few words: an index in memory, SQLite's FTS5, ranked by BM25. Pure, and made in pieces.

A query is data: it is split into words, each quoted, before it becomes a query of SQLite's.
"""

import re
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, cast

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.session.lazy_definitions import annotations_of

from .tool import Tool

_MOST_LETTERS: Final = 2_000
"""Characters of a description, of schemas or of a hint that are searched."""
_MOST_NODES: Final = 200
"""Objects and arrays of a schema that are searched."""
_MOST_CHILDREN: Final = 100
"""Names in an object, and values in an object or array, that are searched."""
_MOST_WORDS: Final = 16
"""Words that are looked for."""
_LEAST_PREFIX: Final = 3
"""Letters of a word that also matches longer ones as their beginning."""

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
"""Characters of scripts that put no spaces between words: each is looked for by itself."""
_SEARCH_WORD = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""The boundaries of words in CamelCase."""

_CREATE: Final = """
CREATE VIRTUAL TABLE tools USING fts5(
    public UNINDEXED, name, server, title, hint, description, arguments,
    tokenize = 'porter unicode61 remove_diacritics 2'
)"""
_INSERT: Final = "INSERT INTO tools VALUES (?, ?, ?, ?, ?, ?, ?)"
_FIND: Final = """
SELECT public FROM tools WHERE tools MATCH ?
ORDER BY public = ? DESC, bm25(tools, 0, 10, 4, 8, 8, 4, 1), public LIMIT ?"""
"""The query. A word is weighted by its column."""


class ToolIndex:
    """An index of tools, by name. Used by one thread; to be closed.

    Raises:
        ConfigError: The SQLite of this Python has no FTS5.
    """

    def __init__(self) -> None:
        self._closed = False
        self._tools: dict[str, tuple[int, Tool]] = {}
        """The indexed tools: the row of each name, and the tool that the row was made of."""
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        try:
            self._database.execute(_CREATE)
        except sqlite3.OperationalError as error:
            self._database.close()
            raise ConfigError(
                f"the SQLite of this Python cannot search ({error}): it needs FTS5", field="search"
            ) from error

    def close(self) -> None:
        """Free the memory. A `follow` that is under way stops."""
        self._closed = True
        self._database.close()

    def follow(self, tools: Iterable[Tool]) -> Steps[None]:
        """Index these tools and no others; those that have not changed stay. If this is left half done, it can be done
        again."""
        wanted = {tool.name: tool for tool in tools}
        for name in (*(self._tools.keys() - wanted.keys()), *wanted):
            tool, held = wanted.get(name), self._tools.get(name)
            if tool and held and held[1].declared is tool.declared and held[1].server == tool.server:
                continue
            yield
            if self._closed:
                return
            if held:
                self._database.execute("DELETE FROM tools WHERE rowid = ?", (held[0],))
                del self._tools[name]
            if tool:
                row = self._database.execute(_INSERT, _row(tool)).lastrowid
                assert row is not None  # of a row that was inserted
                self._tools[name] = row, tool

    def find(self, query: str, limit: int) -> list[str]:
        """The names of at most `limit` tools, best first; a tool whose name is the query comes before all others."""
        found = list(dict.fromkeys(words(query[:_MOST_LETTERS])))[:_MOST_WORDS]
        if not found:
            return []
        terms = [f'"{word}"' for word in found] + [f'"{word}"*' for word in found if len(word) >= _LEAST_PREFIX]
        name = query.strip().encode(errors="replace").decode()  # half a pair cannot be written
        rows = self._database.execute(_FIND, (" OR ".join(terms), name, limit))
        return [name for (name,) in rows]


def words(text: str) -> Iterator[str]:
    """The words of a text: of `getUser_byID` these are `getUser`, `get`, `User`, `byID`, `by` and `ID`."""
    for word in _SEARCH_WORD.findall(text):
        yield word
        parts = _CAMEL_CASE.split(word)
        if len(parts) > 1:
            yield from parts


def _row(tool: Tool) -> tuple[str, ...]:
    declared = tool.declared
    title = declared.title or annotations_of(declared).get("title")
    said = (
        f"{tool.name} {tool.tool}",
        tool.server,
        title or "",
        tool.search_hint or "",
        declared.description or "",
        " ".join([*_texts(tool.input_schema), *_texts(tool.output_schema or {})]),
    )
    return tool.name, *(
        " ".join(dict.fromkeys(words(text[:_MOST_LETTERS]))) for text in said
    )  # said twice is said once


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    """The names, titles and descriptions of what a schema describes, outermost first, as far as it is searched."""
    waiting: deque[Any] = deque([schema])
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        node = waiting.popleft()
        children: Iterable[Any] = node
        if isinstance(node, Mapping):
            described = cast("Mapping[str, Any]", node)
            properties = described.get("properties")
            if isinstance(properties, Mapping):
                yield from islice(cast("Mapping[str, Any]", properties), _MOST_CHILDREN)
            yield from (said for key in ("title", "description") if isinstance(said := described.get(key), str))
            children = described.values()
        waiting.extend(child for child in islice(children, _MOST_CHILDREN) if isinstance(child, (Mapping, list)))  # pyright: ignore[reportUnknownArgumentType]

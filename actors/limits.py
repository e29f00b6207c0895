"""The limits of one server's cost to its host."""

from typing import Final

from mcp_nursery.actors.records import frozen

MOST_VALUES: Final = 250_000
"""Commas, colons and opening brackets outside the texts of one message: a little more than its values and names. Where
it has long numbers, every 19 digits of a number count as one more. Reading so many takes about 30 ms, in which nothing
else runs: the parser holds the interpreter's lock."""

MOST_UNASKED: Final = 10_000
"""The same, for a message that answers no request that waits: a server may send any number of those. Twice as many as
the values that a session validates in one go."""

MOST_KEPT: Final = 16 << 20
"""Bytes that a server may make its host keep."""


MOST_DEFINITIONS: Final = 5_000
"""Tools, resources, resource templates and prompts of one server, together. Naming so many and comparing them with the
earlier ones takes 25 to 35 ms, in which nothing else runs."""

CONNECT_SETTINGS: Final = "connect_timeout, or connectSeconds"
"""The settings for the time of a connect, and of a list."""
CALL_SETTINGS: Final = "call_timeout, callSeconds in a file, serve --timeout or MCP_TOOL_TIMEOUT"
"""The settings that limit the time of a call whose caller names no limit."""


@frozen
class CostLimits:
    """Bounds for one server. Whatever goes beyond is refused, with an error that names the size and the limit."""

    values: int = MOST_VALUES
    """JSON values that one message may have: see `MOST_VALUES`."""
    definitions: int = MOST_DEFINITIONS
    """Entries of all its lists together: see `MOST_DEFINITIONS`."""
    kept: int = MOST_KEPT
    """Bytes of its definitions, of its notifications that wait, and of its requests without an answer: the limit
    holds for each of the three."""
    unasked: int = MOST_UNASKED
    """JSON values of a message that answers no request that waits: see `MOST_UNASKED`."""


USUAL: Final = CostLimits()
"""The limits of a server that sets none."""


def size_text(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count >> 20} MiB" if count and count % (1 << 20) == 0 else f"{count} bytes"


HUMAN_TIMEOUT = 600.0
"""Seconds for an answer to one question of a server."""


def unanswered(seconds: float) -> str:
    """The words about a question that got no answer in time."""
    settings = "human_timeout, humanSeconds in a file or serve --answer-within"
    return f"nobody has answered within {seconds:g} s ({settings} gives more time)"

"""What attackers may do: a table of moves for each role, and assaults, which are some of them drawn by a seed.

An assault is also a text, of a line for its cast and a line for each move. That text alone says what happens: whoever
changes the table changes what a seed means, and not what a case in `cases/` does.
"""

from collections.abc import Mapping, Sequence
from random import Random

from attrs import frozen

from ..sweeps.sweep import KINDS

SECONDS = 2.5
"""For which an assault lasts."""

Value = float | str
Choices = Mapping[str, Sequence[Value]]

_COUNTS = (1, 20, 300, 3000, 30_000)
_BRIEF, _SHORT, _LONG = (0.05, 0.3), (0.2, 0.6, 1.2), (0.5, 1.0, 2.0)

FLOODS = (
    *("ping", "long id", "elicitation", "sampling", "roots", "log", "progress", "list_changed", "updated"),
    *("unasked", "junk", "empty batch", "batch", "blank", "deep", "nested", "cancelled", "not UTF-8", "zeros"),
)
"""Messages of which a server or a client may send thousands."""

GRAMMAR: Mapping[str, Mapping[str, Choices]] = {
    "server": {
        "fault": {"row": range(10_000), "at": range(400), "over": _SHORT},
        "flood": {"what": FLOODS, "count": _COUNTS, "deaf": (0.0, 0.0, 1.0)},
        "trick": {
            "how": (
                *("twice", "another", "never", "late", "drip", "progress", "ask", "nonsense", "null", "error", "half"),
                *("gone", "notice first", "redirected", "expired", "page", "packed", "many events", "slow stream"),
            ),
            "count": (1, 3, 20),
            "seconds": (0.05, 0.3, 1.2),
        },
        "large": {
            "what": (
                *("letters", "escapes", "half characters", "bytes that are not UTF-8", "commas in a text"),
                *("words of signals", "{} without end", "{} below the budget", "names below the budget"),
                *("long integers", "NaN below the budget", "9,999 blocks", "a pattern that is not linear"),
            ),
            "mebibytes": (1, 4, 8),
            "count": (1, 1, 3),
        },
        "define": {
            "what": ("many", "changing", "pattern", "nested", "loop", "endless", "twins", "invalid", "none", "plain"),
            "count": (1, 30),
        },
        "deaf": {"seconds": _SHORT},
        "vanish": {"seconds": (0.0, 0.1, 0.5), "how": ("close", "reset")},
        "half": {"seconds": _SHORT, "then": ("close", "reset", "rest")},
        "end streams": {"count": (1, 10)},
    },
    "client": {
        "connections": {"count": (20, 100), "what": ("silent", "half a head", "half a body", "slow"), "seconds": _LONG},
        "flood": {"what": FLOODS, "count": (1, 20, 300), "version": ("old", "new")},
        "unread": {"count": (4, 12), "mebibytes": (0.1, 1, 4), "seconds": _LONG},
        "vanish": {"count": (1, 30), "seconds": _BRIEF, "how": ("close", "reset", "half")},
        "cancels": {"count": (10, 100), "seconds": _BRIEF},
        "sessions": {"count": (10, 60)},
        "listen": {"count": (5, 30), "version": ("old", "new"), "seconds": _LONG},
        "same id": {"count": (2, 20)},
        "pipelined": {"count": (10, 200), "read": ("yes", "no")},
        "lists": {"count": (10, 200)},
        "answers": {"count": (1, 100)},
        "subscribe": {"count": (10, 1500)},
        "calls": {"count": (10, 100), "version": ("old", "new")},
        "heads": {"what": ("long", "many", "wrong", "nothing", "chunks", "sizes")},
        "tokens": {"count": (10, 60), "what": ("none", "junk", "long", "unsigned", "unknown key", "another's", "old")},
    },
    "pipe": {
        "flood": {"what": FLOODS, "count": _COUNTS},
        "calls": {"count": (10, 300)},
        "cancels": {"count": (10, 300)},
        "unread": {"count": (2, 8), "mebibytes": (1, 4), "seconds": _LONG},
        "half": {"seconds": _SHORT},
        "end": {},
    },
    "issuer": {
        "tokens": {
            "what": ("hang", "moved", "refused", "busy", "page", "large", "drip", "no type", "cut"),
            "seconds": _LONG,
        },
        "metadata": {"what": ("another's", "hang", "gone", "large", "moved"), "seconds": _LONG},
        "revoke": {},
    },
    "keys": {
        "down": {"seconds": _LONG},
        "hang": {"seconds": _LONG},
        "moved": {"seconds": _LONG},
        "none": {"seconds": _LONG},
        "large": {"seconds": _LONG},
        "another's": {"seconds": _LONG},
    },
    "process": {"signal": {"what": ("KILL", "TERM", "STOP"), "seconds": _SHORT}},
    "store": {"lock": {"seconds": _LONG}, "garbage": {}, "remove": {}, "rows": {}},
}
"""By role, what it can do, and by the name of each word what it may be."""

_WEIGHTS = {"server": 10, "client": 6, "pipe": 2, "issuer": 2, "keys": 1, "process": 2, "store": 1}


@frozen
class Move:
    """One thing that is done once. `who` is a role, or a server of the cast by its name."""

    at: float
    """Seconds after the start."""
    who: str
    name: str
    words: Mapping[str, Value]

    def __str__(self) -> str:
        return " | ".join(
            [f"{self.at:.2f}", self.who, self.name, *(f"{key}={said}" for key, said in self.words.items())]
        )


@frozen
class Assault:
    """All of one run."""

    seed: int
    cast: Sequence[str]
    """Kinds of the hostile servers, which are called h0, h1 and so on."""
    moves: Sequence[Move]

    def __str__(self) -> str:
        return "\n".join([f"{self.seed} | {' '.join(self.cast)}", *map(str, self.moves)]) + "\n"


def drawn(seed: int) -> Assault:
    """The assault of this seed."""
    chance = Random(seed)
    cast = [chance.choice(sorted(KINDS)) for _ in range(chance.choice((1, 1, 2, 3)))]
    moves = [_move(chance, cast) for _ in range(chance.randint(3, 14))]
    return Assault(seed, cast, sorted(moves, key=lambda move: move.at))


def _move(chance: Random, cast: Sequence[str]) -> Move:
    role = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    who = f"h{chance.randrange(len(cast))}" if role == "server" else role
    name = chance.choice(list(GRAMMAR[role]))
    words = {word: chance.choice(choices) for word, choices in GRAMMAR[role][name].items()}
    return Move(round(chance.random() * SECONDS * 0.8, 2), who, name, words)


def parsed(text: str) -> Assault:
    """An assault from its text. Lines that begin with `#` are comments."""
    first, *rest = [line for line in text.splitlines() if line and not line.startswith("#")]
    seed, cast = first.split(" | ")
    return Assault(int(seed), cast.split(), [_parsed(line) for line in rest])


def _parsed(line: str) -> Move:
    at, who, name, *words = line.split(" | ")
    return Move(float(at), who, name, {key: _value(said) for key, _, said in (word.partition("=") for word in words)})


def _value(said: str) -> Value:
    try:
        return float(said) if "." in said else int(said)
    except ValueError:
        return said

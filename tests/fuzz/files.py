"""Configuration files that hold anything: what comes of them is an error of that file, or of one server in it."""

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from ..property import test_dialects as dialects

_nestings = st.builds(
    lambda depth, opening, closing: opening * depth + closing * depth,
    st.sampled_from([10, 100, 300, 600, 1000, 5000, 100_000]),
    st.sampled_from([b"[", b'{"mcpServers":', b'{"a":', b"a=[", b"[[x]]\n"]),
    st.sampled_from([b"", b"]", b"}", b"1}"]),
)
_documents = st.builds(
    lambda place, said, beside: (
        place,
        dialects.toml({dialects.PLACES[place]: said, "other": beside})
        if place.endswith("toml")
        else dialects.json.dumps({dialects.PLACES[place]: said, "other": beside}).encode("utf-8", "surrogatepass"),
    ),
    st.sampled_from(sorted(dialects.PLACES)),
    dialects.servers,
    dialects.values,
)


@st.composite
def _damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    place, content = draw(_documents)
    for _ in range(draw(st.integers(0, 4))):
        spot = draw(st.integers(0, 2000)) % (len(content) + 1)
        content = content[:spot] + draw(st.binary(max_size=3)) + content[spot + draw(st.integers(0, 3)) :]
    return place, content


_places = st.sampled_from(sorted(dialects.PLACES))
FILES = st.one_of(
    _damaged(),
    _damaged(),
    st.tuples(_places, _nestings),
    st.tuples(_places, st.binary(max_size=200)),
)


def read(place: str, content: bytes) -> None:
    """Read it as a file that was named, and as one that was found."""
    with tempfile.TemporaryDirectory() as folder:
        dialects.check(Path(folder), place, content)

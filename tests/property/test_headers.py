"""Headers: whatever passes our check h11 sends."""

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.http.header_rules import problem_with_header

TEXT = st.text(st.sampled_from("aB1:-_ \t\r\n\0\x0b\x0c\x1f\x7f\x85\xa0é✓") | st.characters(), max_size=8)


@given(TEXT, TEXT, st.sampled_from(["ascii", "latin-1"]))
@example("X", "", "ascii")
@example("X", "Bearer ", "ascii")
@example("X", "\x85", "latin-1")
@example("X", "a\tb", "ascii")
def test_what_passes_is_sent(name, value, encoding):
    if problem_with_header(name, value, encoding=encoding) is None:
        headers = [("host", "x"), (name.encode(encoding), value.encode(encoding))]
        if name.lower() not in ("host", "content-length", "transfer-encoding"):
            h11.Connection(h11.CLIENT).send(h11.Request(method="GET", target="/", headers=headers))

"""JSON of any size as text: what `json.dumps` writes, in pieces of bounded size."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor.tools import tool_result
from mcp_nursery.supervisor.tools.tool_result import write

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.text(min_size=66, max_size=90),
    lambda below: st.lists(below, max_size=9) | st.dictionaries(st.text(max_size=5), below, max_size=9),
    max_leaves=40,
)


@pytest.mark.slow
@given(values, st.integers(1, 4))
def test_it_is_what_json_writes(value, in_a_row):
    given_length, tool_result._IN_A_ROW = tool_result._IN_A_ROW, in_a_row
    try:
        assert at_once(write(value)) == json.dumps(value, ensure_ascii=False)
    finally:
        tool_result._IN_A_ROW = given_length


def test_a_long_text_is_written_in_pieces_wherever_it_stands():
    long = '\n"é' * 100_000
    for value in (long, [1, long], {"a": long}, {long: 1}, [*["x" * 10_000] * 100]):
        assert sum(1 for _ in write(value)) >= 5
        assert at_once(write(value)) == json.dumps(value, ensure_ascii=False)


def test_long_ones_are_written_in_pieces():
    for value in ([0.1] * 100_000, {str(number): 1 for number in range(100_000)}, [{}] * 100_000):
        assert sum(1 for _ in write(value)) >= 100

"""The order of names in what people read."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.cli.output import natural


def test_numbers_are_in_order_as_numbers():
    names = ["s10", "s2", "S1", "a", "s2b10", "s2b9", "s02", "10", "9", "s"]
    assert sorted(names, key=natural) == ["9", "10", "a", "s", "S1", "s02", "s2", "s2b9", "s2b10", "s10"]


def test_a_number_may_be_of_any_length():
    long = "9" * 10_000
    assert sorted([f"s{long}0", f"s{long}"], key=natural) == [f"s{long}", f"s{long}0"]


@given(st.text(), st.text())
def test_of_any_two_names_one_is_the_first(one, other):
    assert (natural(one) < natural(other)) + (natural(other) < natural(one)) == (one != other)


@given(st.text(), st.integers(min_value=0), st.integers(min_value=0))
def test_numbers_behind_the_same_word(word, one, other):
    if not word[-1:].isdecimal():
        assert (natural(f"{word}{one}") < natural(f"{word}{other}")) == (one < other)

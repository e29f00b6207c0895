"""The classes of `records` beside those of attrs: they compare, hash and show themselves the same."""

import attrs
import pytest

from mcp_nursery.actors import records


def point(frozen, field):
    @frozen
    class Point:
        x: int
        y: int = field(default=0, eq=False)
        _secret: str = field(default="", repr=False, alias="secret")
        words: list = field(factory=list, repr=lambda words: f"<{len(words)} words>", eq=False)

    return Point


OURS, THEIRS = point(records.frozen, records.field), point(attrs.frozen, attrs.field)
VALUES = [(1,), (1, 2), (2, 2), (1, 2, "s"), (1, 0, "", ["a", "b"])]


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("other", VALUES)
def test_values_are_equal_and_hash_as_those_of_attrs(one, other):
    assert (OURS(*one) == OURS(*other)) is (THEIRS(*one) == THEIRS(*other))
    assert len({OURS(*one), OURS(*other)}) == len({THEIRS(*one), THEIRS(*other)})


@pytest.mark.parametrize("value", VALUES)
def test_values_are_shown_as_those_of_attrs(value):
    assert repr(OURS(*value)) == repr(THEIRS(*value))


def test_no_value_equals_one_of_another_class():
    @records.frozen
    class Other(OURS):
        pass

    assert OURS(1) != THEIRS(1)
    assert OURS(1) != Other(1)
    assert Other(1) == Other(1)
    assert repr(Other(1)) == "Other(x=1, y=0, words=<0 words>)"


def test_empty_values_are_equal():
    @records.frozen
    class Empty:
        pass

    assert Empty() == Empty()
    assert {Empty(), Empty()} == {Empty()}
    assert repr(Empty()) == "Empty()"


def test_what_can_change_is_compared_and_has_no_hash():
    @records.define
    class Box:
        content: object

    box = Box(1)
    box.content = box
    assert repr(box) == "Box(content=...)"
    assert Box(1) == Box(1) != Box(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(box)


def test_what_is_not_set_yet_is_shown_as_nothing():
    @records.define
    class Late:
        value: int = records.field(init=False)

    assert repr(Late()) == "Late(value=NOTHING)"


def test_methods_of_the_class_itself_stay():
    @records.frozen
    class Own:
        value: str

        def __eq__(self, other):
            return self.value.lower() == other.value.lower()

        def __hash__(self):
            return hash(self.value.lower())

        def __repr__(self):
            return f"<{self.value}>"

    assert Own("A") == Own("a")
    assert len({Own("A"), Own("a")}) == 1
    assert repr(Own("A")) == "<A>"


@pytest.mark.parametrize("frozen", [records.frozen, attrs.frozen])
def test_a_value_is_compared_by_its_key(frozen):
    @frozen
    class Keyed:
        error: Exception = attrs.field(eq=str)
        number: int = 1

    assert Keyed(ValueError("a")) == Keyed(TypeError("a")) != Keyed(ValueError("b"))
    assert hash(Keyed(ValueError("a"))) == hash(Keyed(TypeError("a")))
    assert Keyed(ValueError("a"), 2) != Keyed(ValueError("a"))


@pytest.mark.parametrize("options", [{"repr": False}, {"eq": False}])
def test_a_class_shows_and_compares_no_more_than_its_base_unnoticed(options):
    """The shared methods read the fields of the instance's class: a secret that it adds would be shown."""
    with pytest.raises(TypeError, match="Secret would be compared or shown with the fields that it adds"):

        @records.frozen(**options)
        class Secret(OURS):
            pass


def test_an_option_that_has_no_effect_is_refused():
    with pytest.raises(TypeError, match="these classes have no order, unsafe_hash"):
        records.define(order=True, unsafe_hash=True)


def test_without_eq_each_instance_equals_itself_alone():
    @records.frozen(eq=False, repr=False)
    class Thing:
        value: int

    thing = Thing(1)
    assert thing != Thing(1)
    assert len({thing, Thing(1)}) == 2
    assert repr(thing).startswith("<")

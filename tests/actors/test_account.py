"""The account of what is kept for whoever is slow."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.account import VALUE, Account, weight

STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["answers", "news"]), st.integers(1, 60), st.booleans())
)


@given(STEPS)
def test_nothing_is_kept_beyond_the_bounds(steps):
    """But for the first of one party, or of all."""
    whole = Account(100)
    parties, mine = {name: Account(60, whole) for name in "ab"}, []
    for name, kind, count, back in steps:
        if back and mine:
            party, *charge = mine.pop(0)
            parties[party].give_back(*charge)
        elif parties[name].take(kind, count, 45):
            mine.append((name, kind, count))
        for name_, party in parties.items():
            for kind_ in ("answers", "news"):
                of_kind = [charge[2] for charge in mine if charge[:2] == (name_, kind_)]
                assert party.of(kind_) == party.kept.get(kind_, 0) == sum(of_kind) <= 45
            assert party.total == party.of("answers", "news") <= 60
        assert whole.total == sum(party.total for party in parties.values()) <= 100
        assert whole.kept == {
            kind: n for kind in ("answers", "news") if (n := sum(p.of(kind) for p in parties.values()))
        }


def test_what_is_more_than_all_of_it_is_kept_alone():
    account = Account(10, Account(20))
    assert account.take("answers", 100)
    assert not account.take("answers", 1)
    account.give_back("answers", 100)
    assert account.total == 0


def test_who_is_gone_keeps_nothing():
    whole = Account()
    gone, there = Account(whole=whole), Account(whole=whole)
    gone.charge("answers", 5)
    there.charge("answers", 3)
    gone.close()
    assert whole.kept == {"answers": 3}
    gone.give_back("answers", 5)
    assert whole.kept == {"answers": 3}
    assert gone.total == 0


def test_a_message_weighs_what_it_keeps_when_it_is_parsed():
    many, long = [[]] * 10_000, "x" * 30_000
    assert weight(many, 30_001) == 30_001 + VALUE * 10_001
    assert weight(long, 30_002) == 30_002 + VALUE
    assert weight(json.loads("[[],[]]"), 7) == 7

"""What opens as the id of a session, and for whom. Pure."""

import os
import random
import string
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.gateway import Access, Principal, SessionKeys, sealing
from mcp_nursery.supervisor.gateway.http.session_ids import SessionStart, open_session, seal_session
from mcp_nursery.supervisor.gateway.sealing import LONGEST_SEALED

ANN = Principal("Ann", key="1" * 64)
INFO = {"name": "a client", "version": "1.2.3"}
START = SessionStart(1_764_140_000.0, "2025-11-25", {"elicitation": {"form": {}}, "sampling": {}}, INFO)
OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 48
KEYS = SessionKeys([OLD_KEY])
SEALED = seal_session(KEYS, START, ANN, "lab")


def opens(session_id, keys=KEYS, owner=ANN, server="lab"):
    return open_session(keys, session_id, owner, server)


@given(
    st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.booleans(), max_size=3), max_size=3),
    st.none() | st.fixed_dictionaries({"name": st.text(max_size=20), "version": st.text(max_size=10)}),
    st.none() | st.builds(Principal, st.text(max_size=20)),
    st.none() | st.text(max_size=20),
)
def test_what_was_sealed_opens_for_the_same_client_on_the_same_path(capabilities, info, owner, server):
    """W6"""
    start = SessionStart(1_764_140_000.0, "2025-06-18", capabilities, info, "here/1")
    sealed = seal_session(KEYS, start, owner, server)
    assert open_session(KEYS, sealed, owner, server) == start
    assert set(sealed) <= set(string.ascii_letters + string.digits + "-_")


def test_an_id_has_a_moderate_length():
    assert len(SEALED) <= 220


def test_no_two_ids_are_the_same():
    assert len({seal_session(KEYS, START, ANN, "lab") for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize(
    ("owner", "server"),
    [
        (None, "lab"),
        (Principal("Bob", key=ANN.key), "lab"),
        (Principal("Ann", key="2" * 64), "lab"),
        (Principal("Ann", Access(["lab/*"]), ANN.key), "lab"),
        (ANN, None),
        (ANN, "lab2"),
    ],
)
def test_an_id_opens_for_no_other_client_and_on_no_other_path(owner, server):
    assert opens(SEALED) == START
    assert opens(SEALED, owner=owner, server=server) is None


def test_no_two_pairs_of_client_and_path_are_taken_for_each_other():
    sealed = seal_session(KEYS, START, Principal("Ann', 'x", key=""), "lab")
    assert opens(sealed, owner=Principal("Ann", key="x', ''")) is None


def test_an_id_of_which_one_bit_is_another_does_not_open():
    """Of its characters, and of what they stand for."""
    raw = urlsafe_b64decode(SEALED + "=" * (-len(SEALED) % 4))
    for place in range(len(SEALED)):
        for bit in range(8):
            changed = SEALED[:place] + chr(ord(SEALED[place]) ^ 1 << bit) + SEALED[place + 1 :]
            assert opens(changed) is None
    for place in range(len(raw)):
        for bit in range(8):
            changed = raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]
            assert opens(urlsafe_b64encode(changed).rstrip(b"=").decode()) is None
    assert opens(SEALED) == START


def test_an_id_is_written_in_one_way_alone():
    """Else a session that was ended would go on under another spelling, and one session would be two."""
    of_each_length = ((length, seal_session(KEYS, sized(length), ANN, "lab")) for length in range(1, 4))
    length, sealed = next(each for each in of_each_length if len(each[1]) % 4 == 2)  # four spare bits
    others = [sealed[:-1] + last for last in string.ascii_letters + string.digits + "-_" if last != sealed[-1]]
    padded = sealed + "=" * (-len(sealed) % 4)
    for each in (
        *others,
        padded,
        f" {sealed}",
        f"{sealed}\n",
        f"{sealed[:9]}!{sealed[9:]}",
        f"{sealed[:9]}é{sealed[9:]}",
    ):
        assert opens(each) is None
    assert opens(sealed) == sized(length)


def sized(length):
    return SessionStart(1_764_140_000.0, "2025-11-25", {}, {"name": "x" * length, "version": "1"})


def test_a_part_of_an_id_does_not_open_nor_does_one_that_goes_on():
    for length in range(len(SEALED)):
        assert opens(SEALED[:length]) is None
    assert opens(SEALED + "A") is None
    assert opens(SEALED + SEALED) is None
    assert opens("A" * (64 << 10)) is None


def test_no_id_is_read_that_is_longer_than_ours(monkeypatch):
    """Though a key has sealed it: else a client would say how much work it makes."""
    most = SessionStart(START.began, START.version, {"experimental": {"x": "y" * LONGEST_SEALED}}, INFO)
    with monkeypatch.context() as patched:
        patched.setattr(sealing, "LONGEST_SEALED", 64 << 10)
        sealed = seal_session(KEYS, most, ANN, "lab")
        assert opens(sealed) == most
    assert opens(sealed) is None


@given(st.text() | st.text(string.ascii_letters + string.digits + "-_", min_size=30) | st.binary().map(repr))
def test_nothing_that_a_client_makes_up_opens(session_id):
    assert opens(session_id) is None


def random_ids(count):
    dice = random.Random(os.urandom(8))
    for _ in range(count):
        yield urlsafe_b64encode(dice.randbytes(dice.randrange(160))).rstrip(b"=").decode()


def test_a_thousand_random_ids_do_not_open():
    assert not any(map(opens, random_ids(1_000)))


@pytest.mark.slow
def test_a_hundred_thousand_random_ids_do_not_open():
    """`benchmarks/session_ids.py` tries a million."""
    assert not any(map(opens, random_ids(100_000)))


def test_a_key_is_replaced_by_steps():
    """Each opens what another has sealed that knows its key, whichever of its own is the first."""
    both = SessionKeys([NEW_KEY, OLD_KEY])
    later = seal_session(both, START, ANN, "lab")
    new, old = SessionKeys([NEW_KEY]), SessionKeys([OLD_KEY, NEW_KEY])
    assert opens(SEALED, both) == opens(later, both) == opens(later, new) == opens(later, old) == START
    assert opens(later) is None
    assert opens(SEALED, new) is None
    old.replace([NEW_KEY])
    assert opens(SEALED, old) is None


def test_of_a_long_description_name_and_version_are_sealed():
    """A client that says more of what it can do than fits has an id that does not open elsewhere."""
    icons = {"icons": [{"src": "data:image/png;base64," + "A" * 4_000}], "title": "A client"}
    sealed = seal_session(KEYS, SessionStart(START.began, START.version, START.capabilities, INFO | icons), ANN, "lab")
    assert len(sealed) <= LONGEST_SEALED
    assert opens(sealed) == START
    most = {"experimental": {"x": {"y": "z" * LONGEST_SEALED}}}
    assert seal_session(KEYS, SessionStart(START.began, START.version, most, INFO), ANN, "lab") is None
    assert (
        seal_session(KEYS, SessionStart(START.began, START.version, {}, {"name": "n" * LONGEST_SEALED}), ANN, "lab")
        is None
    )
    assert seal_session(KEYS, SessionStart(START.began, START.version, {"x": 1 << 80}, INFO), ANN, "lab") is None


def test_what_a_later_version_seals_does_not_open():
    sealed = seal_session(KEYS, SessionStart(START.began, "2031-01-01", {}, INFO), ANN, "lab")
    assert opens(sealed) is None


@pytest.mark.parametrize("keys", [[], [b"x" * 31], [NEW_KEY, b""], [NEW_KEY] * 9])
def test_keys_that_cannot_be_used(keys):
    with pytest.raises(ValueError, match="must"):
        SessionKeys(keys)

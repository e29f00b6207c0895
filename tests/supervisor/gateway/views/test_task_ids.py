"""What opens as the id of a task, and for whom. Pure."""

import os
import random
import string
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.gateway import Access, Principal, SessionKeys
from mcp_nursery.supervisor.gateway.http.session_ids import SessionStart, seal_session
from mcp_nursery.supervisor.gateway.sealing import LONGEST_SEALED
from mcp_nursery.supervisor.gateway.views.task_ids import TaskIds, TaskPlace

ANN = Principal("Ann", key="1" * 64)
KEY = b"k" * 32
PLACE = TaskPlace("lab", "786512e2-9e0d-44bd-8f29-789f320fe840", "0123456789abcdef")


def ids(*keys):
    return TaskIds(SessionKeys(keys or [KEY]), lambda server, name: True, lambda spec: "")


IDS = ids()
SEALED = IDS.seal(PLACE, ANN)


ANY = st.text(st.characters(exclude_categories=()), max_size=30)


@given(st.builds(TaskPlace, ANY, ANY, st.just("")), st.none() | st.builds(Principal, st.text(max_size=20)))
def test_what_was_sealed_opens_for_the_same_client_at_any_gateway_with_the_key(place, owner):
    sealed = IDS.seal(place, owner)
    assert ids(b"n" * 32, KEY).open(sealed, owner) == place
    assert set(sealed) <= set(string.ascii_letters + string.digits + "-_")  # it is sent as a header


@pytest.mark.parametrize(
    "owner",
    [
        None,
        Principal("Bob", key=ANN.key),
        Principal("Ann", key="2" * 64),
        Principal("Ann", Access(["lab/*"]), ANN.key),
    ],
)
def test_an_id_opens_for_no_other_client(owner):
    assert IDS.open(SEALED, ANN) == PLACE
    assert IDS.open(SEALED, owner) is None


def test_an_id_of_which_one_bit_is_another_does_not_open():
    """Of its characters, and of what they stand for."""
    raw = urlsafe_b64decode(SEALED + "=" * (-len(SEALED) % 4))
    for place in range(len(SEALED)):
        for bit in range(8):
            assert IDS.open(SEALED[:place] + chr(ord(SEALED[place]) ^ 1 << bit) + SEALED[place + 1 :], ANN) is None
    for place in range(len(raw)):
        for bit in range(8):
            changed = raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]
            assert IDS.open(urlsafe_b64encode(changed).rstrip(b"=").decode(), ANN) is None


def no_random_id_opens(count):
    dice = random.Random(os.urandom(8))
    texts = (urlsafe_b64encode(dice.randbytes(dice.randrange(160))).rstrip(b"=").decode() for _ in range(count))
    assert not any(IDS.open(text, ANN) for text in texts)


def test_no_random_id_opens():
    no_random_id_opens(20_000)


@pytest.mark.night
def test_none_of_a_million_random_ids_opens():
    no_random_id_opens(1_000_000)


@given(st.none() | st.integers() | st.binary() | st.lists(st.text()) | st.text())
def test_nothing_that_a_client_makes_up_opens(task_id):
    assert IDS.open(task_id, ANN) is None


def test_the_id_of_a_session_is_that_of_no_task():
    start = SessionStart(1_764_140_000.0, "2025-11-25", {}, {"name": "a client", "version": "1"})
    for server in ("lab", None):
        assert IDS.open(seal_session(SessionKeys([KEY]), start, ANN, server), ANN) is None


def test_without_keys_ids_open_as_long_as_the_gateway_lasts():
    one, other = (TaskIds(None, lambda server, name: True, lambda spec: "") for _ in range(2))
    sealed = one.seal(PLACE, None)
    assert one.open(sealed, None) == PLACE
    assert other.open(sealed, None) is None


def test_a_long_id_of_a_server_is_sealed_as_far_as_it_fits_into_a_header():
    assert len(IDS.seal(TaskPlace("lab", "x" * 600), ANN)) <= LONGEST_SEALED
    assert IDS.seal(TaskPlace("lab", "x" * 1_000), ANN) is None

"""Requests in flight: whose answer is this, and what does it say?"""

from itertools import pairwise

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.jsonrpc import pending
from mcp_nursery.actors.jsonrpc.pending import CallTable, outcome_of
from mcp_nursery.actors.outcomes import Answered, Loss, Rejected
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import error, result

LOSS = Loss("gone")


class Listener(ReplySlot):
    """Keeps what was reported to it."""

    __slots__ = ("reports",)

    def __init__(self):
        super().__init__(wants_progress=True)
        self.reports = []

    def report(self, progress, total, message):
        self.reports.append((progress, total, message))


def take(table, message):
    """The slot that is answered, and no longer in flight."""
    slot = table.find(message)
    if slot is not None:
        table.forget(slot)
    return slot


def test_ids_go_up_by_steps_that_nobody_can_guess_and_the_slot_knows_its_own():
    table, slots = CallTable(), [ReplySlot() for _ in range(1000)]
    used = [table.open(slot) for slot in slots]
    assert [slot.request_id for slot in slots] == used
    steps = [later - earlier for earlier, later in pairwise([0, *used])]
    assert all(1 <= step <= 1 << 20 for step in steps)
    assert len(set(steps)) > 900  # of a million
    assert max(steps) > 900_000
    assert len(table) == 1000


def test_ids_of_two_connections_are_not_the_same():
    one, other = CallTable(), CallTable()
    assert [one.open(ReplySlot()) for _ in range(3)] != [other.open(ReplySlot()) for _ in range(3)]


def test_ids_stay_numbers_that_every_peer_can_read():
    """A float of JSON, which is all that some know, holds integers up to 2**53."""
    assert 8_000_000_000 * pending._STRIDE < 1 << 53


@pytest.mark.parametrize("brought", [2, "2", " 2"])
def test_an_id_that_was_brought_is_skipped_while_it_is_in_flight(brought, monkeypatch):
    monkeypatch.setattr(pending, "_STRIDE", 1)  # else they would hardly ever meet
    table = CallTable()
    assert table.open(theirs := ReplySlot(), brought) == brought
    assert theirs.request_id == brought
    assert [table.open(ReplySlot()) for _ in range(2)] == [1, 3]


@pytest.mark.parametrize(("first", "second"), [("9", 9), (9, "9"), ("listen-1", "listen-1"), (9, 9)])
def test_an_id_in_flight_cannot_be_brought_again(first, second):
    table, slot = CallTable(), ReplySlot()
    table.open(slot, first)
    with pytest.raises(ValueError, match="already in flight"):
        table.open(ReplySlot(), second)
    assert take(table, result(second)) is slot
    assert table.open(ReplySlot(), second) == second


def test_a_number_that_was_brought_as_text_may_come_again_once_it_is_answered(monkeypatch):
    monkeypatch.setattr(pending, "_STRIDE", 1)
    table, slot = CallTable(), ReplySlot()
    table.open(slot, "1")
    take(table, result("1"))
    assert table.open(ReplySlot()) == 1


@pytest.mark.parametrize(("asked", "answered"), [(None, int), (None, str), ("1", int), ("1", str), ("a", str)], ids=str)
def test_an_answer_finds_its_slot_once(asked, answered):
    table, slot = CallTable(), ReplySlot()
    used = answered(table.open(slot, asked))
    assert take(table, result(used)) is slot
    assert take(table, result(used)) is None
    assert len(table) == 0


@pytest.mark.parametrize("request_id", [None, True, 1.0, 2, "b", "", [1], {"id": 1}])
def test_an_answer_to_nobody_is_nobodys(request_id):
    table = CallTable()
    table.open(ReplySlot(), 1)
    assert take(table, {"jsonrpc": "2.0", "id": request_id, "result": {}}) is None
    assert take(table, {"jsonrpc": "2.0", "result": {}}) is None
    assert len(table) == 1


def test_what_is_forgotten_has_no_answer():
    table, slot, other = CallTable(), ReplySlot(), ReplySlot()
    forgotten, kept = table.open(slot), table.open(other)
    table.forget(slot)
    table.forget(slot)
    table.forget(ReplySlot())  # one that was never opened
    assert take(table, result(forgotten)) is None
    assert take(table, result(kept)) is other


def test_forgetting_an_answered_slot_leaves_the_next_owner_of_its_id_alone(monkeypatch):
    monkeypatch.setattr(pending, "_STRIDE", 1)
    table, early, late = CallTable(), ReplySlot(), ReplySlot()
    table.open(early, "1")
    take(table, result(1))
    assert table.open(late) == 1
    table.forget(early)
    assert take(table, result(1)) is late


def test_the_loss_decides_all_that_wait_and_no_other():
    table, slots = CallTable(), [ReplySlot() for _ in range(3)]
    _, second, _ = [table.open(slot) for slot in slots]
    take(table, result(second))
    table.fail_all(LOSS)
    assert [slot.outcome for slot in slots] == [LOSS, None, LOSS]
    assert len(table) == 0
    table.fail_all(Loss("again"))
    assert slots[0].outcome is LOSS


# progress


@pytest.mark.parametrize("kind", [int, str])
def test_progress_goes_to_the_call_it_names(kind):
    table, slot, other = CallTable(), Listener(), Listener()
    token = kind(table.open(slot))
    table.open(other)
    table.report({"progressToken": token, "progress": 1, "total": 2, "message": "half"})
    table.report({"progressToken": token, "progress": 1.5})
    assert slot.reports == [(1.0, 2.0, "half"), (1.5, None, None)]
    assert other.reports == []


def test_a_long_message_of_progress_is_cut():
    """A thousand of them may wait for a slow callback."""
    table, slot = CallTable(), Listener()
    table.report({"progressToken": table.open(slot), "progress": 1, "message": "x" * 100_000})
    assert slot.reports == [(1.0, None, "x" * 10_000)]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"progress": 1},
        {"progressToken": True, "progress": 1},
        {"progressToken": [1], "progress": 1},
        {"progressToken": 2, "progress": 1},
        {"progressToken": 1},
        {"progressToken": 1, "progress": "1"},
        {"progressToken": 1, "progress": True},
        {"progressToken": 1, "progress": None},
        {"progressToken": 1, "progress": 10**400},
    ],
)
def test_progress_that_says_nothing_is_dropped(params):
    table, slot = CallTable(), Listener()
    table.open(slot, 1)
    table.report(params)
    assert slot.reports == []


@pytest.mark.parametrize("total", ["9", True, 10**400])
def test_what_is_odd_about_the_rest_of_a_report_is_left_out(total):
    table, slot = CallTable(), Listener()
    table.open(slot, 1)
    table.report({"progressToken": 1, "progress": 1, "total": total, "message": 7})
    assert slot.reports == [(1.0, None, None)]


# what an answer says


def test_a_result_is_an_answer():
    raw = {"content": []}
    assert outcome_of(result(1, raw)) == Answered(raw)
    assert outcome_of(result(1, raw)).result == raw


def test_an_error_keeps_its_data():
    assert outcome_of(error(1, -32602, "bad", data={"why": [1]})) == Rejected(-32602, "bad", {"why": [1]})
    assert outcome_of(error(1, 0)) == Rejected(0, "no", None)
    assert outcome_of({"id": 1, "error": {"code": -1}}) == Rejected(-1, "", None)
    assert outcome_of({"id": 1, "error": {"code": -1, "message": 5}}) == Rejected(-1, "5", None)


def test_an_error_goes_before_a_result():
    assert outcome_of(error(1, -1) | {"result": {"content": []}}) == Rejected(-1, "no", None)
    for none in (None, "no", {}):
        assert outcome_of({"id": 1, "result": {}, "error": none}) == Answered({})


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1},
        {"id": 1, "result": None},
        {"id": 1, "result": []},
        {"id": 1, "result": "ok"},
        {"id": 1, "error": "no"},
        {"id": 1, "error": None},
        {"id": 1, "error": {}},
        {"id": 1, "error": {"code": "-1"}},
        {"id": 1, "error": {"code": True}},
        {"id": 1, "error": {"code": 1.5}},
    ],
)
def test_an_answer_that_is_neither_is_an_internal_error_of_the_peer(message):
    assert outcome_of(message) == Rejected(-32603, "malformed response", {"keys": sorted(message)})


# against a model


@frozen
class Earlier:
    """An id that the table has given out, as a number or as text."""

    number: int
    kind: type

    def among(self, given_out):
        return self.kind(given_out[self.number]) if self.number < len(given_out) else None


ids = st.one_of(st.none(), st.integers(0, 6), st.integers(0, 6).map(str), st.sampled_from(["a", "b"]))
earlier = st.builds(Earlier, st.integers(0, 6), st.sampled_from([int, str]))
steps = st.sampled_from(["open", "open", "answer", "forget"])


@given(st.lists(st.tuples(steps, st.one_of(ids, earlier)), max_size=40))
def test_every_answer_goes_to_the_one_that_asked_last_under_that_id(script):
    table, waiting, given_out = CallTable(), {}, []
    for operation, drawn in script:
        request_id = drawn.among(given_out) if isinstance(drawn, Earlier) else drawn
        match operation:
            case "open":
                slot = ReplySlot()
                if request_id is not None and _key(request_id) in waiting:
                    with pytest.raises(ValueError, match="in flight"):
                        table.open(slot, request_id)
                    continue
                used = table.open(slot, request_id)
                assert _key(used) not in waiting
                if request_id is None:
                    given_out.append(used)
                waiting[_key(used)] = slot
            case "answer":
                assert take(table, result(request_id)) is waiting.pop(_key(request_id), None)
            case "forget" if request_id is not None and _key(request_id) in waiting:
                table.forget(waiting.pop(_key(request_id)))
        assert len(table) == len(waiting)


def _key(request_id):
    return int(request_id) if isinstance(request_id, str) and request_id.isdigit() else request_id

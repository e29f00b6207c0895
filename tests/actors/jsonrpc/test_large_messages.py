"""Large frames: read like small ones, in pieces of bounded size, or refused before anything is made of them."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.jsonrpc import codec, large_messages
from mcp_nursery.actors.pieces import at_once

MOST = 1000
ENVELOPE = b'{"jsonrpc":"2.0","id":7,"result":{"v":%s}}'

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\,:[{'), max_size=20),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=4), below, max_size=4),
    max_leaves=20,
)


def read(value, most=MOST):
    message = at_once(large_messages.read(ENVELOPE % value, most=most))
    assert message["id"] == 7
    return message["result"]["v"]


def steps(work):
    """How many pieces it takes."""
    count = 0
    try:
        while True:
            next(work)
            count += 1
    except (StopIteration, ValueError):
        return count


@given(values, st.booleans(), st.booleans())
def test_what_is_read_is_what_the_small_ones_are_read_as(value, ascii_only, long):
    """Also by the other parser, which reads what is long."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_messages, "_LONG", 0 if long else 1 << 30)
        assert read(text) == codec.message(ENVELOPE % text)["result"]["v"] == value


MEBIBYTE = 1 << 20
SAMPLE = 64 << 10


@pytest.mark.parametrize(
    ("unlike", "is_plain"),
    [(rb"\n", False), (rb"\"", False), (b"aa", True)],
    ids=["escapes of line ends", "escaped quotes", "plain"],
)
def test_no_peer_can_choose_the_parser_that_is_slow_with_escapes(unlike, is_plain, monkeypatch):
    """By a text that is without any at the beginning of each piece that is looked at."""
    used = []
    monkeypatch.setattr(
        large_messages, "_lenient", lambda frame, real=large_messages._lenient: used.append(1) or real(frame)
    )
    begin = ENVELOPE.index(b"%")
    text = b"a" * (2 * SAMPLE - begin) + unlike * ((MEBIBYTE - 2 * SAMPLE) // 2)
    pieces = [text, *[b"a" * 2 * SAMPLE + unlike * ((MEBIBYTE - 2 * SAMPLE) // 2)] * 7]
    assert len(read(b'"%s"' % b"".join(pieces))) > 4 * MEBIBYTE
    assert bool(used) is is_plain


@pytest.mark.parametrize(
    ("value", "read_as"),
    [
        (b"[NaN, 1]", None),
        (b"-Infinity", float("-inf")),
        (b"18446744073709551617", 2**64 + 1),
        (b'["\xff", 12345678901234567890123]', ["\ufffd", 12345678901234567890123]),
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\uDE00\ud83d"', "\ufffd\ufffd"),
        (rb'"\ud83d\ude00\ud83d"', "\U0001f600\ufffd"),
        (rb'"\\ud83d \"\ud83d"', '\\ud83d "\ufffd'),
        (rb'{"\ud800": NaN}', None),
        (b'"' + b"1" * 5000 + b'"', "1" * 5000),
        (b"[" * 500 + b"]" * 500, None),
    ],
)
@pytest.mark.parametrize("least", [0, 4 << 20])
def test_what_strict_json_refuses_is_read_all_the_same(monkeypatch, value, read_as, least):
    """And what the lenient parser refuses, as it is nested deeply."""
    monkeypatch.setattr(large_messages, "_LONG", least)
    found = read(value)
    json.dumps(found, ensure_ascii=False).encode()
    assert read_as is None or found == read_as


def test_digits_across_a_border_are_one_number():
    """A long integer is found wherever the pieces meet."""
    for before in range(large_messages._EXAMINED_BYTES - 60, large_messages._EXAMINED_BYTES, 7):
        assert read(b'["' + b"x" * before + b'", 12345678901234567890123]')[1] == 12345678901234567890123


structure = st.lists(st.sampled_from([b",", b"[{", b"1", b" "]), max_size=4).map(b"".join)
texts = st.lists(st.sampled_from([b"\\\\", b'\\"', b"\\n", b",", b"x" * 9]), max_size=9).map(b"".join)


@given(st.lists(st.tuples(structure, texts), max_size=9), st.integers(1, 9))
def test_texts_are_told_from_structure_wherever_the_pieces_meet(parts, size):
    frame = b"".join(said + b'"' + text + b'"' for said, text in parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_messages, "_EXAMINED_BYTES", size)
        without = b"".join(large_messages.without_texts(frame))
    assert without == b"".join(said + b'"' + bytes(len(text)) + b'"' for said, text in parts)


spaces = st.text(" \t\r\n", max_size=2)


@given(st.lists(st.tuples(spaces, values | st.builds(dict, v=values), spaces), max_size=5), st.integers(1, 99))
def test_a_batch_is_split_into_its_messages_wherever_the_pieces_meet(parts, size):
    """What is no object is null."""
    frame = "[" + ",".join(before + json.dumps(each) + after for before, each, after in parts) + "] "
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_messages, "_EXAMINED_BYTES", size)
        found = at_once(large_messages.split(frame.encode(), most=MOST))
    assert [json.loads(each) for each in found] == [each if isinstance(each, dict) else None for _, each, _ in parts]


@pytest.mark.parametrize("frame", [b"[", b'[{"id":1}', b'[{"id":1]}', b"[INFO] listening", b'[{"id":1}]]', b'["[{}]'])
def test_a_batch_whose_brackets_do_not_match_is_none(frame):
    work = large_messages.split(frame, most=MOST)
    if frame == b'[{"id":1]}':  # only what is inside it shows that: it is read as a frame
        assert at_once(work) == [b'{"id":1]']
    else:
        with pytest.raises(ValueError, match="not JSON"):
            at_once(work)


def test_a_batch_is_split_in_pieces_of_bounded_size():
    """However many messages it has, and however long they are."""
    many = b"[" + b",".join([b"{}"] * 100_000) + b"]"
    assert steps(large_messages.split(many, most=250_000)) >= 300_000 // large_messages._MARKS
    long = b'[{"a":"' + b"[]," * 1_000_000 + b'"}]'
    assert steps(large_messages.split(long, most=MOST)) >= 3_000_000 // large_messages._EXAMINED_BYTES
    with pytest.raises(large_messages.MessageTooCostly):
        at_once(large_messages.split(many, most=199_999))


def test_as_many_values_as_there_may_be_are_read():
    assert len(read(b"[" + b",".join([b"1"] * 990) + b"]")) == 990


@pytest.mark.parametrize("value", [b"{}", b"[]", b"1", b'"a"', b'{"a":1}'])
def test_more_are_refused_before_any_is_made(value):
    frame = ENVELOPE % (b"[" + b",".join([value] * 1_000_000) + b"]")
    work = large_messages.read(frame, most=250_000)
    tracemalloc.start()
    try:
        with pytest.raises(
            large_messages.MessageTooCostly, match=r"^a message of \d+\.\d MiB with more than 250000 JSON values"
        ):
            at_once(work)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b",[{:", b'\\"', b"\\\\", b'\\",'])
def test_a_text_full_of_marks_is_a_text(text):
    assert len(read(b'"' + text * 500_000 + b'"')) >= 500_000


def test_a_number_that_takes_long_to_read_is_refused():
    with pytest.raises(large_messages.MessageTooCostly, match="a number of more than 1000 digits"):
        read(b"9" * 1001)
    assert read(b"9" * 1000) == int("9" * 1000)


@pytest.mark.parametrize(
    "number", [b"9" * 30, b"0.%s" % (b"3" * 30), b"9" * 900], ids=["integers", "floats", "longest"]
)
def test_long_numbers_take_longer_and_count_for_more(number):
    """To read a number takes the longer the more digits it has."""
    each = 1 + len(number) // 19
    values = [number] * (MOST // each - 1 - MOST // 100 // each)
    assert len(read(b"[" + b",".join(values) + b"]")) == len(values)
    with pytest.raises(
        large_messages.MessageTooCostly, match=r"more than 1000 JSON values, .*: every 19 digits of a number"
    ):
        read(b"[" + b",".join([*values, *values]) + b"]")


def test_what_is_to_a_large_part_not_utf_8_is_refused():
    """Each such byte becomes three to parse."""
    assert read(b'"' + b"abcd\xff" * (8 << 18) + b'"') == "abcd\ufffd" * (8 << 18)
    assert read(b'"' + b"\xff" * (3 << 20) + b'"') == "\ufffd" * (3 << 20)
    with pytest.raises(
        large_messages.MessageTooCostly, match=r"a message of 8\.0 MiB of which more than a quarter is not UTF-8"
    ):
        read(b'"' + b"\xff" * (8 << 20) + b'"')


def test_what_is_no_json_is_a_value_error():
    for value in (b"", b"[", b'"', b"[NaN", b"[" * 2000):
        with pytest.raises(ValueError):  # noqa: PT011  # the parser's own words
            read(value)


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"abcd\xff", rb"\ud800", rb"\n\ud800", b"x,", b"9"])
def test_every_piece_is_bounded(text):
    """Twice the frame, twice the pieces: none grows with it but the parser's own."""
    small, big = (ENVELOPE % (b'"' + text * (size // len(text)) + b'"') for size in (2 << 20, 4 << 20))
    assert steps(large_messages.read(big, most=MOST)) >= 1.7 * steps(large_messages.read(small, most=MOST)) > 2


NESTED = b'{"a":[1,{"id":9}],"b":"\\"id\\":3"}'


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":%s}', {"jsonrpc": "2.0", "id": 7}),
        (b' {"id" : "x-1" ,"jsonrpc":"2.0","result":%s}', {"jsonrpc": "2.0", "id": "x-1"}),
        (b'{"result":%s,"id":7,"jsonrpc":"2.0"}\r', {"jsonrpc": "2.0", "id": 7}),
        (b'{"jsonrpc":"2.0","result":%s,"id":7}', {"jsonrpc": "2.0", "id": 7}),
        (b'{"jsonrpc":"2.0","method":"a/b","params":%s}', {"jsonrpc": "2.0", "method": "a/b"}),
        (b'{"method":"a/b","params":%s,"id":null}', {"method": "a/b", "id": None}),
        (b'{"jsonrpc":"2.0","result":%s}', {"jsonrpc": "2.0"}),
        (b'[{"jsonrpc":"2.0","id":7,"result":%s}]', {}),
        (b"rubbish %s", {}),
        (b'rubbish %s,"id":7}', {}),
    ],
)
def test_what_an_unread_frame_is_about(frame, said):
    """Only what stands in the message itself counts, not what a result holds."""
    assert large_messages.members(frame % (b'{"id":5,"a":[%s]}' % b",".join([NESTED] * 1000))) == said


def test_what_is_not_json_and_has_nothing_to_mend_is_given_up_after_one_look():
    """Zeros that a small packed answer unpacks to: the host copied 64 MiB twice, and searched them in one turn."""
    pieces = []
    with pytest.raises(ValueError, match="not JSON"):
        pieces.extend(large_messages.read(bytes(8 << 20), most=100))
    assert 0 < len(pieces) < 40  # each MiB is counted, four times at most; to mend it takes 128 pieces

"""Frames: what leaves equals what the SDK would send, what cannot be sent says so, and what comes in is messages."""

import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import sys
import uuid
from collections import namedtuple
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolRequest, CallToolRequestParams, JSONRPCRequest
from pydantic import BaseModel

from mcp_nursery.actors.jsonrpc import codec


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Price(enum.Enum):
    LOW = decimal.Decimal("1.5")


class Inner(BaseModel):
    when: dt.datetime
    note: str | None = None


class Outer(BaseModel):
    inner: list[Inner]
    extra: dict[str, int] = {}


@dataclasses.dataclass
class Point:
    x: int
    y: float | None = None


class Text(str):
    __slots__ = ()


Pair = namedtuple("Pair", "left right")  # noqa: PYI024
NOON = dt.datetime(2026, 7, 28, 12, 0, 0, 123400, tzinfo=dt.UTC)

VALUES = {
    "text": 'naïve 🎺 \x00\u2028 "quoted" \\',
    "numbers": [0, -1, 1.5, -0.0, 1e22, 5e-324],
    "wide integers": [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)],
    "big integers": [2**64, -(2**63) - 1, 10**40],
    "constants": [True, False],
    "aware time": NOON,
    "time elsewhere": NOON.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "naive time": NOON.replace(tzinfo=None),
    "date": NOON.date(),
    "time of day": dt.time(12, 30),
    "duration": dt.timedelta(days=1, seconds=30),
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=7),
    "path": pathlib.Path("/tmp/x"),
    "address": ipaddress.ip_address("::1"),
    "bytes": b"plain",
    "enum": [Colour.RED, Size.BIG, Price.LOW],
    "model": Outer(inner=[Inner(when=NOON)]),
    "dataclass": [Point(1, 2.5), Point(1)],
    "tuple": (1, (2, 3)),
    "named tuple": Pair(1, 2),
    "set": {1},
    "frozen set": frozenset({"a"}),
    "str of a kind": Text("t"),
    "integer keys": {1: "a", 2: {3: 4}},
    "other keys": {1.5: "a", True: "b", dt.date(2026, 7, 28): "c", uuid.UUID(int=7): "d", Colour.RED: "e"},
    "no number": [math.nan, math.inf, -math.inf],
    "nested": {"a": [{"b": ({"c": NOON},)}]},
    "deep": json.loads("[" * 200 + "]" * 200),
}


def as_the_sdk_sends_it(arguments):
    """The two steps of the SDK's session and its stdio transport."""
    request = CallToolRequest(params=CallToolRequestParams(name="t", arguments=arguments))
    params = request.model_dump(by_alias=True, mode="json", exclude_none=True)["params"]
    line = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=params).model_dump_json(
        by_alias=True, exclude_unset=True
    )
    return parsed(line)["params"]["arguments"]


def parsed(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_is_encoded_as_the_sdk_does(value):
    assert parsed(codec.encode({"v": value})) == as_the_sdk_sends_it({"v": value})


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_big_integer_changes_nothing_of_its_neighbours(value):
    """Another encoder takes over when an integer has more than 64 bits."""
    arguments = {"big": 2**70, "v": value}
    assert parsed(codec.encode(arguments)) == as_the_sdk_sends_it(arguments)


def endless():
    ring = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value",
    [object(), b"\xff", {"f": open}, "\ud800", {"\ud800": 1}, [2**70, "\udfff"], endless(), {(1, 2): object()}],
    ids=["object", "bytes", "function", "surrogate", "surrogate key", "surrogate and integer", "endless", "key"],
)
def test_what_has_no_json_form_is_a_type_error(value):
    with pytest.raises(TypeError):
        codec.encode({"v": value})


def test_a_type_error_names_the_type():
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        codec.encode({"v": object()})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(json_values)
def test_json_values_come_back_as_they_were(value):
    assert parsed(codec.encode(value)) == value


@pytest.mark.slow
@given(json_values)
def test_a_frame_is_one_line(value):
    """Newlines end a frame on stdio."""
    assert b"\n" not in codec.notification("m", {"v": value})


# messages of ours


def test_a_request_leaves_out_empty_params():
    for params in (None, {}):
        assert parsed(codec.request(1, "ping", params)) == {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert parsed(codec.request("a", "m", {"b": 1})) == {
        "jsonrpc": "2.0",
        "id": "a",
        "method": "m",
        "params": {"b": 1},
    }


def test_a_notification_keeps_empty_params_that_were_given():
    assert parsed(codec.notification("m", None)) == {"jsonrpc": "2.0", "method": "m"}
    assert parsed(codec.notification("m", {})) == {"jsonrpc": "2.0", "method": "m", "params": {}}


def test_a_response_is_a_result_or_an_error():
    assert parsed(codec.result(0, {"a": 1})) == {"jsonrpc": "2.0", "id": 0, "result": {"a": 1}}
    assert parsed(codec.error("x", -1, "no")) == {"jsonrpc": "2.0", "id": "x", "error": {"code": -1, "message": "no"}}
    for data in (0, "", {}, False):
        assert parsed(codec.error(1, -1, "no", data))["error"]["data"] == data


# messages of the peer


def test_a_frame_holds_one_message():
    assert codec.message(b' {"id": 1} ') == {"id": 1}


@pytest.mark.parametrize(
    "frame", [b"", b"hello", b"{", b"5", b"null", b'"text"', b"[1]", b"[[]]", b"\xff\xfe", b'{"a": 1} {"b": 2}']
)
def test_what_is_no_message_is_a_value_error(frame):
    with pytest.raises(ValueError):  # noqa: PT011  # orjson's own words, or ours
        codec.message(frame)


LENIENT = {
    "what Python calls a number": b"NaN",
    "what Python calls infinite": b"-Infinity",
    "half of a pair, as Node writes it": b'"\\ud83d"',
    "a byte that is not UTF-8": b'"\xff"',
    "not UTF-8 beside a long integer": b'["\xff", 12345678901234567890123]',
}


@pytest.mark.parametrize("value", LENIENT.values(), ids=LENIENT)
def test_an_answer_that_only_strict_json_refuses_is_still_an_answer(value):
    """Dropped as noise it would leave its caller waiting for ever: nothing else will answer the id."""
    assert codec.message(b'{"jsonrpc":"2.0","id":1,"result":{"v":' + value + b"}}")["id"] == 1


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "number", [2**53 + 1, 10**18, 2**63 - 1, 2**63 + 1, 2**64 - 1, 2**64, 10**19, 2**70 + 1, 10**40]
)
def test_an_integer_of_any_size_comes_in_as_it_is(number, sign):
    frame = b'{"id": 1, "result": {"text": "%d", "number": %d, "float": %d.5e3}}' % (number, sign * number, number)
    result = codec.message(frame)["result"]
    assert result == {"text": str(number), "number": sign * number, "float": float(f"{number}.5e3")}
    assert type(result["number"]) is int


@pytest.mark.parametrize("number", [b"", b"9" * 25 + b","])
def test_what_is_nested_without_end_is_noise(number):
    with pytest.raises(ValueError):  # noqa: PT011
        codec.message(b"[" + number + b"[" * 200_000)


@given(json_values)
def test_json_values_come_in_as_the_standard_library_reads_them(value):
    frame = json.dumps({"v": value}).encode()
    assert codec.message(frame) == {"v": value}


@pytest.mark.parametrize("before", range(13))
@pytest.mark.parametrize("digits", [18, 19, 20, 40])
def test_long_integers_are_found_wherever_they_stand(before, digits):
    """Exact to the last digit, at every distance from the beginning."""
    number = -int("9" * digits)  # 19 digits fit into 64 bits without a sign
    assert codec.decode(b'{"' + b"x" * before + b'":%d}' % number) == {"x" * before: number}


@pytest.mark.parametrize("others", [1, 99, 100, 101, 1000])
@pytest.mark.parametrize("before", range(4))
def test_a_long_integer_is_found_behind_many_shorter_ones(before, others):
    """Behind as many timestamps as there may be."""
    value = ["x" * before, *[20261122100000123] * others, 2**64 + 1, *[20261122100000123] * others]
    assert codec.decode(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r'"\ud83d"', "\ufffd"),
        (r'"\uDE00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ude00\ud83d"', "\U0001f600\ufffd"),
        (r'"\ud83d\ud83d\uDE00"', "\ufffd\U0001f600"),
        (r'"\\ud83d \"\ud83d"', '\\ud83d "\ufffd'),
        (r'{"\ud800": NaN}', None),
    ],
)
def test_half_a_character_is_replaced(text, read):
    """A description cut in the middle of one cost a server all its tools; a result with one could not be written."""
    decoded = codec.decode(text.encode())
    json.dumps(decoded, ensure_ascii=False).encode()
    assert read is None or decoded == read


def test_an_integer_that_python_does_not_read_answers_its_call_all_the_same():
    """It was dropped as noise, and its caller waited for ever."""
    assert codec.decode(b'{"id":1,"result":{"a":%s}}' % (b"9" * 5000)) == {"id": 1, "result": {"a": math.inf}}


@pytest.mark.parametrize("module", [None, ModuleType("opentelemetry.context")])
def test_where_no_trace_was_begun_there_is_none_to_inject(monkeypatch, module):
    """Also while a thread is still importing OpenTelemetry: its module is there, and has no functions yet."""
    if module is None:
        monkeypatch.delitem(sys.modules, "opentelemetry.context", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "opentelemetry.context", module)
    meta = {"a": 1}
    codec.inject_trace(meta)
    assert meta == {"a": 1}

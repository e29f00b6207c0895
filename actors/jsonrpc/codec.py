"""JSON-RPC 2.0 frames: values in, bytes out, and back; and the trace of a caller in the `_meta` of a request. No I/O
and no state.
"""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from mcp_nursery.actors.records import frozen

from ..enums import Delivery
from ..json_depth import may_be_nested_too_deep, nested_too_deep
from ..json_parsing import parse_json, refuse_constant

if TYPE_CHECKING:
    from opentelemetry.context import Context

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS

DIGITS = bytes(ord("0") if ord("0") <= byte <= ord("9") else 0 for byte in range(256))
"""Every digit as a zero, for `bytes.translate`."""
_TWO = rb"[0-9a-fA-F]{2}"
ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]%b\\u[dD][c-fC-F]%b|(u[dD][89a-fA-F]%b)|.)" % (_TWO, _TWO, _TWO), re.DOTALL)
"""An escape in a JSON text; in the group if it is half of a surrogate pair without the other half."""
NO_CHARACTER = rb"\ufffd"
"""The replacement for such a half, with which a text cannot be encoded, and for bytes that are not UTF-8."""
LONG_INTEGER = b"0" * 19
"""As many digits as 2**63 has: an integer with fewer fits into 64 bits. Found at the speed of memory, unlike a
pattern."""
_OBJECT: Final = frozenset([dict])
_MOST_CANDIDATES = 100
"""Candidates that are checked one by one before a full search is faster."""


@frozen
class Encoded:
    """A value that is JSON already."""

    json: bytes


def encode(value: object) -> bytes:
    """JSON as the SDK would send it.

    Raises:
        TypeError: Something in `value` cannot be written as JSON.
    """
    try:
        return orjson.dumps(value, default=_jsonable, option=_OPTIONS)
    except TypeError as refused:
        return _encode_big(value, refused)


def encode_exactly(value: object) -> bytes:
    """JSON as `encode` writes it, which writes null for NaN and the infinities.

    Raises:
        TypeError: Something in `value` cannot be written as JSON.
        NoJsonNumber: There is a number in it that JSON does not have.
    """
    try:  # each call comes through here, so that `encode` is not called
        encoded = orjson.dumps(value, default=_jsonable, option=_OPTIONS)
    except TypeError as refused:
        encoded = _encode_big(value, refused)
    if b"null" in encoded or b'"None"' in encoded:  # the name of a key that is no text
        _check_numbers(value)
    return encoded


def _check_numbers(value: object) -> None:
    waiting = [value]
    while waiting:
        match each := waiting.pop():
            case float():
                if not math.isfinite(each):
                    refuse_constant(json.dumps(float(each)))
            case Mapping():
                waiting += [*cast("Mapping[object, object]", each), *cast("Mapping[object, object]", each).values()]
            case list() | tuple():
                waiting += cast("Sequence[object]", each)
            case str() | int() | None | Encoded():
                pass
            case _:
                waiting.append(_plain(each))


def _plain(value: object) -> object:
    """An object of Python's in the types that JSON has."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="constants", exclude_none=True, fallback=str)


def _encode_big(value: object, refused: TypeError) -> bytes:
    """Encode integers beyond 64 bits too, which orjson refuses."""
    from pydantic_core import to_json

    try:
        return to_json(value, inf_nan_mode="null", exclude_none=True, fallback=_decoded)
    except (ValueError, RecursionError):
        raise TypeError(str(refused.__cause__ or refused)) from None


def _decoded(value: object) -> object:
    if isinstance(value, Encoded):
        return json.loads(value.json)
    raise ValueError(f"{type(value).__name__} cannot be written as JSON")


def _jsonable(value: object) -> object:
    if isinstance(value, Encoded):
        return orjson.Fragment(value.json)
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, exclude_none=True)
    except ValueError as error:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON") from error


def request(request_id: int | str, method: str, params: Mapping[str, Any] | None) -> bytes:
    """A request; `params` is left out when empty."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return encode(body | {"params": params} if params else body)


def notification(method: str, params: Mapping[str, Any] | Encoded | None) -> bytes:
    """A notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return encode(body if params is None else body | {"params": params})


def result(request_id: int | str, value: Mapping[str, Any] | Encoded) -> bytes:
    """A successful response."""
    return encode({"jsonrpc": "2.0", "id": request_id, "result": value})


def error(request_id: int | str | None, code: int, message: str, data: Any = None) -> bytes:
    """An error response, whose id is null for a message that shows none; `data` is left out when None."""
    described: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        described["data"] = data
    return encode({"jsonrpc": "2.0", "id": request_id, "error": described})


def refusal(request_id: int | str | None, code: int, message: str, **data: Any) -> bytes:
    """The error response to a request that nothing was done about."""
    return error(request_id, code, message, {"delivery": Delivery.NOT_SENT.value} | data)


def message(frame: bytes) -> dict[str, Any]:
    """The message in a frame.

    Members that are nested too deep are left out, except results: the caller's task refuses those.

    Raises:
        ValueError: The frame is not JSON, or no object.
    """
    decoded, deep = decode(frame), may_be_nested_too_deep(frame)
    return decoded if type(decoded) in _OBJECT and not deep else as_message(decoded, deep=deep)


def as_message(decoded: object, *, deep: bool) -> dict[str, Any]:
    """The message that was decoded; `deep`: it may be nested too deep.

    Raises:
        ValueError: It is no object.
    """
    if type(decoded) is not dict:
        raise ValueError(f"not a JSON-RPC message: {type(decoded).__name__}")
    whole = cast("dict[str, Any]", decoded)
    return {key: it for key, it in whole.items() if key == "result" or not nested_too_deep(it)} if deep else whole


def _whole_character(escape: re.Match[bytes]) -> bytes:
    return escape[0] if escape[1] is None else NO_CHARACTER


def _integer(digits: str) -> int | float:
    """The number; a float beyond 4300 digits, which Python refuses: they take quadratic time."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def may_hold_a_long_integer(frame: bytes) -> bool:
    """True if 19 digits stand in a row. Of every fourth byte, four in a row are then digits, which is rare
    otherwise."""
    fourths = frame[::4].translate(DIGITS)
    at = fourths.find(b"0000")  # `in` is slow for bytes: it tries them as a number first
    looks = 0
    while at >= 0 and looks < _MOST_CANDIDATES:
        if LONG_INTEGER in frame[max(0, 4 * at - 6) : 4 * at + 19].translate(DIGITS):
            return True
        at = fourths.find(b"0000", at + 1)
        looks += 1
    return at >= 0 and LONG_INTEGER in frame.translate(DIGITS)


def decode(frame: bytes) -> Any:
    """The JSON in a frame, read leniently where strictness would lose an answer that its caller waits for.

    Raises:
        ValueError: It is not JSON.
    """
    if not may_hold_a_long_integer(frame):  # orjson would silently make a float of it
        try:
            return orjson.loads(frame)
        except orjson.JSONDecodeError:
            pass  # NaN, half a surrogate pair, a byte that is not UTF-8: what careless servers write
    try:
        text = ESCAPE.sub(_whole_character, frame).decode(errors="replace")
        return parse_json(text, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def inject_trace(meta: dict[str, Any], context: "Context | None" = None) -> None:
    """Add the trace of this context, or of the current task, if any.

    Where a trace was begun, OpenTelemetry's API is loaded; elsewhere it is not loaded here either, since it searches
    all installed packages.
    """
    if context is None:
        # A module that a thread has begun to import is in `sys.modules` without its functions: no trace was begun yet.
        get_current = getattr(sys.modules.get("opentelemetry.context"), "get_current", None)
        context = None if get_current is None else get_current()
    if context:  # an empty context has nothing to inject, and the propagators take longer to find that out
        from opentelemetry.propagate import inject

        inject(meta, context)

"""No garbage is collected while a text is parsed."""

import gc
import json
import sys
from contextlib import suppress

import pytest

from mcp_nursery.actors.json_parsing import parse_json


class Garbage:
    """An object in a cycle, whose finalizer needs some stack."""

    def __init__(self, finalized):
        self.itself, self.finalized = self, finalized

    def __del__(self):
        def needs(levels):
            return levels and needs(levels - 1)

        needs(sys.getrecursionlimit() // 2)
        self.finalized.append(True)


@pytest.mark.parametrize("options", [{}, {"parse_int": int}, {"parse_constant": float}])
def test_no_finalizer_runs_where_there_is_no_stack_left(options):
    finalized, threshold = [], gc.get_threshold()
    for _ in range(100):
        Garbage(finalized)
    gc.set_threshold(sys.getrecursionlimit() * 3 // 4)  # containers that the parser makes until garbage is collected
    try:
        with pytest.raises(RecursionError):
            parse_json("[" * 100_000, **options)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()
    gc.collect()
    assert len(finalized) == 100


@pytest.mark.parametrize("text", ["[1]", "[1"])
def test_collection_is_as_it_was_after_a_text_is_parsed(text):
    gc.disable()
    try:
        with suppress(json.JSONDecodeError):
            parse_json(text)
        assert not gc.isenabled()
    finally:
        gc.enable()

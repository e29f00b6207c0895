"""A fixed number of examples, the same in every run. For an hour, and others each time: `python -m tests.fuzz`."""

import pytest

from .targets import TARGETS, fuzz

WAITING = {"http-json", "http-json-handshake", "http-stream", "http-stream-handshake", "sse"}


@pytest.mark.parametrize(
    "target", [target for target in TARGETS.values() if target.name not in WAITING], ids=lambda target: target.name
)
def test_fuzz(target):
    """Q4, Q25, L1, K1: nothing that a server or a file may hold crashes, stops or bloats who reads it."""
    fuzz(target, target.quick)

"""A fixed number of examples, the same in every run. For an hour, and others each time: `python -m tests.fuzz`."""

import pytest

from .targets import TARGETS, fuzz

pytestmark = pytest.mark.night


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_fuzz(target):
    """Q4, Q25, L1, K1: nothing that a server or a file may hold crashes, stops or bloats who reads it."""
    fuzz(target, target.quick)

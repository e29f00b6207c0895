"""What is fuzzed: for each target what is generated, and what must come through it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from attrs import frozen
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.testing import run_virtual

from ..lab.hostile import HostileServer, Plan, plans
from ..property.test_hostile_servers import CALLBACKS, Host
from .environments import ENVIRONMENTS, live_in
from .files import FILES, read
from .issuers import ISSUERS, ask
from .oracles import clean_log
from .schemas import SCHEMAS, hold
from .wires import WIRES, come_through


@frozen
class Target:
    """One thing that hears anything."""

    name: str
    generated: st.SearchStrategy[Any]
    check: Callable[[Any], object]
    quick: int
    """Examples for a run of the tests, in which all targets together have half a minute."""


def _on_wire(kind: str, said: Any) -> None:
    trio.run(come_through, kind, said)


def _frames(generated: tuple[Plan, str, bool]) -> None:
    plan, pins, asks = generated
    with clean_log():
        run_virtual(Host(HostileServer(plan), pins=pins, callbacks=CALLBACKS if asks else Callbacks()).run)


def _files(generated: tuple[str, bytes]) -> None:
    read(*generated)


TARGETS = {
    target.name: target
    for target in [
        *(Target(kind, said, partial(_on_wire, kind), quick=12) for kind, said in WIRES.items()),
        # The quick run of this one is tests/property/test_hostile_servers.py.
        Target("messages", st.tuples(plans, st.sampled_from(["report", "block"]), st.booleans()), _frames, quick=1),
        Target("files", FILES, _files, quick=250),
        Target("schemas", SCHEMAS, hold, quick=40),
        Target("issuers", ISSUERS, ask, quick=20),
        Target("environments", ENVIRONMENTS, live_in, quick=20),
    ]
}


def fuzz(target: Target, examples: int, *, seed: int | None = None) -> None:
    """Try so many examples, the same each time unless there is a seed. Raises what the smallest bad one raises."""
    profile = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        verbosity=Verbosity.normal,
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )

    def check(example: Any, schedule: object) -> None:
        del schedule  # of Trio's own dice
        target.check(example)

    test = profile(given(target.generated, st.random_module())(check))
    if seed is not None:
        test._hypothesis_internal_use_seed = seed
    test()

"""A few assaults, the same in every run. For an hour, and others each time: `python -m tests.attack`."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..lab.token_issuer import TokenIssuer
from .__main__ import PLANTS
from .clients import Crowd, Pipe
from .grammar import GRAMMAR, drawn, parsed
from .others import Keys, Processes, StateFile, Tokens
from .servers import Hostile

ROOT = Path(__file__).parents[2]
CASES = sorted(Path(__file__).with_name("cases").iterdir())
ACTORS = {
    "server": Hostile,
    "client": Crowd,
    "pipe": Pipe,
    "issuer": Tokens,
    "keys": Keys,
    "store": StateFile,
}
"""Who does the moves of a role, by their names."""


def attack(*options):
    """The command, and what it prints. It forks, which a process of pytest had better not do."""
    command = [sys.executable, "-m", "tests.attack", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=280, check=False)


@pytest.mark.parametrize("role", ACTORS)
def test_every_move_of_the_grammar_can_be_made(role):
    for name in GRAMMAR[role]:
        assert callable(getattr(ACTORS[role], f"do_{name.replace(' ', '_').replace(chr(39), '')}"))


def test_every_role_is_somebodys():
    assert {*ACTORS, "process"} == {*GRAMMAR}
    assert callable(Processes.move)
    assert all(hasattr(Hostile, f"_{how.replace(' ', '_')}") for how in GRAMMAR["server"]["trick"]["how"])


def test_every_token_of_the_grammar_can_be_made():
    with TokenIssuer() as issuer:
        made = Crowd(0, 0, issuer).tokens()
        assert [*made] == [*GRAMMAR["client"]["tokens"]["what"]]
        assert all(isinstance(make(), str) for make in made.values())


@pytest.mark.parametrize("seed", range(50))
def test_the_text_of_an_assault_says_all_of_it(seed):
    assert parsed(str(drawn(seed))) == drawn(seed)
    assert parsed(f"# why\n{drawn(seed)}") == drawn(seed)


@pytest.mark.night
def test_what_is_promised_holds_under_attack():
    """Q38, Q14, Q15: a neighbour waits for nobody, turns are short, memory and files bounded, each outcome is true."""
    ran = attack("--seed", 1, "--count", 3)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.night
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_what_broke_something_once_does_not_again(case):
    ran = attack("--replay", case)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.night
def test_a_fault_is_found_in_each_figure():
    """A long turn, much memory, files that stay open, and calls that are executed twice are planted."""
    ran = attack("--seed", 1, "--count", 1, "--tries", 1, *(f"--plant={each}" for each in PLANTS))
    assert ran.returncode == 1, ran.stdout
    found = [line.strip() for line in ran.stdout.splitlines() if line.startswith("  ")]
    assert {line.partition(":")[0] for line in found} == {"neighbour", "turn", "memory", "files", "outcome"}
    assert any(line.startswith("outcome: executed 2 times") for line in found)
    assert "_plant_" in next(line for line in found if line.startswith("turn"))
    assert parsed(ran.stdout.partition("\n\n")[2].partition("\n\n")[0]) == drawn(1)

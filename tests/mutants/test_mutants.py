"""The list of mutants is about the code as it stands, and who is tried in a copy gets the verdict that is true."""

import pytest

from .__main__ import is_wrong
from .mutant import REPOSITORY, Mutant
from .mutants import MUTANTS
from .tree import Tree, Verdict


def test_each_line_stands_once_in_its_file():
    assert len(MUTANTS) > 100
    for mutant in MUTANTS:
        text = (REPOSITORY / mutant.file).read_text()
        assert mutant.applied_to(text) != text, mutant


def test_all_tests_that_are_named_are_there():
    named = {test for mutant in MUTANTS for test in mutant.tests}
    for test in named:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (REPOSITORY / file).read_text() if name else (REPOSITORY / file).is_file(), test


def test_a_line_that_is_not_there_or_twice_is_none():
    mutant = Mutant("a.py", "x = 1", "x = 2", ())
    assert mutant.applied_to("  x = 1\ny = 1\n") == "  x = 2\ny = 1\n"
    for text in ("y = 1\n", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match="times: x = 1"):
            mutant.applied_to(text)


@pytest.mark.parametrize(
    ("verdict", "wanted", "equivalent"),
    [
        (Verdict.KILLED, True, False),
        (Verdict.STUCK, True, False),
        (Verdict.SURVIVED, False, True),
        (Verdict.BROKEN, False, False),
        (Verdict.UNSOUND, False, False),
    ],
)
def test_what_the_list_says_is_what_becomes_of_it(verdict, wanted, equivalent):
    assert is_wrong(Mutant("a.py", "x", "y", ()), verdict) is not wanted
    assert is_wrong(Mutant("a.py", "x", "y", (), "the same"), verdict) is not equivalent


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree.copied_to(tmp_path_factory.mktemp("copy") / "tree")


@pytest.mark.night
@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ("return len(self.delays)", Verdict.KILLED),
        ("return 1 + len(self.delays)", Verdict.SURVIVED),
        ("while True: pass", Verdict.STUCK),
        ("return len(self.delays", Verdict.BROKEN),
    ],
)
def test_a_mutant_is_tried_on_a_copy(tree, other, verdict):
    assert tree.loads_its_own()
    file, line = "supervisor/decisions/restart_policy.py", "return len(self.delays) + 1"
    before = (tree.folder / file).read_text()
    mutant = Mutant(file, line, other, ("tests/supervisor/decisions/test_restart_policy.py",))
    assert tree.verdict(mutant, seconds=10 if verdict is Verdict.STUCK else 100) is verdict
    assert (tree.folder / file).read_text() == before == (REPOSITORY / file).read_text()

"""The official conformance suite, with a supervisor as the client. `python -m tests.conformance` prints the table."""

from pathlib import Path

import pytest

from ..interop.installing import needed_by_test
from . import suite
from .scenarios import ALL, NOT_YET, OPTIONAL, REQUIRED, table

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "conformance.md"


@pytest.fixture(scope="session")
def installed():
    with needed_by_test("the suite"):
        suite.suite()


def test_the_documentation_has_the_table():
    assert table() in PAGE.read_text()


def each_in_its_lane():
    """All scenarios. Those of the older revision that the newer one has as well, those that the suite does not require,
    and of a family of authorization, as auth/iss-supported and auth/iss-unexpected, all but the first are for the
    night."""
    *_, newest = REQUIRED
    families = set[str]()
    for revision, scenario in ALL:
        is_for_push = scenario not in OPTIONAL and (revision == newest or (newest, scenario) not in ALL)
        if is_for_push and scenario.startswith("auth/"):
            family, _, _ = scenario.partition("-")
            is_for_push = family not in families
            families.add(family)
        yield pytest.param(revision, scenario, marks=[] if is_for_push else [pytest.mark.night])


@pytest.mark.interop
@pytest.mark.push
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("revision", "scenario"), list(each_in_its_lane()))
async def test_a_scenario(revision, scenario):
    result = await suite.run(revision, scenario)
    if scenario in NOT_YET:
        assert not result.passed, f"no longer waits for {NOT_YET[scenario]}: take it off the list"
    else:
        assert result.passed, result.output


@pytest.mark.interop
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("revision", REQUIRED)
def test_no_required_scenario_is_left_out(revision):
    assert set(suite.required(revision)) == set(REQUIRED[revision])


@pytest.mark.interop
@pytest.mark.usefixtures("installed")
def test_no_scenario_of_an_extension_is_left_out():
    assert suite.of_extensions("client") <= set(OPTIONAL)

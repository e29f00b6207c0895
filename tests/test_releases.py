"""What a release is made by: workflows that GitHub can read and nobody can change, the changelog, and the tag."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from mcp_nursery.actors.version import VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
HEADING = re.compile(r"## \[(?:Unreleased\]|(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d))")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def steps():
    return [
        step for workflow in WORKFLOWS.values() for job in workflow["jobs"].values() for step in job.get("steps", ())
    ]


# -- workflows --------------------------------------------------------------------------------------------------------


def test_the_workflows_are_what_github_reads():
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        *map(str, FILES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_error_in_a_workflow_is_found(tmp_path):
    (tmp_path / "ci.yml").write_text((ROOT / ".github/workflows/ci.yml").read_text().replace("runs-on:", "runs-at:"))
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        tmp_path / "ci.yml",
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_actions_are_pinned_and_each_to_one_commit():
    """By the hash of a commit, which nobody can move, with its version for people."""
    pinned = {}
    for file in FILES:
        for used in re.findall(r"\buses: (.*)", file.read_text()):
            if used.startswith("./"):
                assert (ROOT / used).is_file()
                continue
            action, commit, version = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", used).groups()
            pinned.setdefault(action, set()).add((commit, version))
    assert len(pinned) > 5
    assert {action: found for action, found in pinned.items() if len(found) > 1} == {}


def test_each_job_may_do_what_it_needs_and_no_more():
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    more = {
        (name, job): given["permissions"]
        for name, workflow in WORKFLOWS.items()
        for job, given in workflow["jobs"].items()
        if "permissions" in given
    }
    assert more == {
        ("release", "attest"): {"attestations": "write", "id-token": "write"},
        ("release", "publish"): {"id-token": "write"},
        ("release", "announce"): {"contents": "write"},
    }
    checkouts = [step for step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_no_command_has_words_of_others_in_it():
    """An expression in a script is replaced before the shell reads it: only what these files say may be there."""
    allowed = {"matrix.command"}
    found = {each.strip() for step in steps() for each in re.findall(r"\$\{\{(.*?)\}\}", step.get("run", ""))}
    assert found - allowed == set()


def test_every_python_and_system_is_tested():
    matrix = WORKFLOWS["ci"]["jobs"]["set-up"]["strategy"]["matrix"]
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert {each.partition("-")[0] for each in matrix["os"]} == {"ubuntu", "macos"}


def test_ci_has_the_lines_of_the_readme():
    """The demo and the tests, on each system and Python; `.ci/run` builds the documentation besides."""
    lines = [step["run"] for step in WORKFLOWS["ci"]["jobs"]["set-up"]["steps"] if "run" in step]
    set_up = re.findall(r"^    (python3 -m venv .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(set_up) == 3
    assert [line for line in set_up if line not in lines] == set_up[2:]


def test_what_workflows_run_is_there():
    commands = [*WORKFLOWS["nightly"]["jobs"]["long"]["strategy"]["matrix"]["command"]]
    commands += [line for step in steps() for line in step.get("run", "").splitlines()]
    ours = [
        word for command in commands for word in re.findall(r"(?<!\S)(tests\.\w+|benchmarks/\S+|\.ci/\S+)", command)
    ]
    assert len(ours) > 5
    for word in ours:
        path = ROOT / (f"{word.replace('.', '/')}/__main__.py" if word.startswith("tests.") else word)
        assert path.is_file(), word


def test_a_release_goes_by_trusted_publishing():
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    order = {name: job.get("needs") for name, job in jobs.items()}
    assert order == {"checks": None, "build": "checks", "attest": "build", "publish": "attest", "announce": "publish"}


# -- the changelog ----------------------------------------------------------------------------------------------------


def test_no_line_of_the_changelog_stands_twice():
    """As after a merge that has gone wrong."""
    for section in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        lines = [line for line in section.splitlines() if len(line) > 40]
        assert sorted(set(lines)) == sorted(lines)


def test_the_changelog_is_kept_as_one():
    titles = re.findall(r"^## .*$", CHANGELOG, re.MULTILINE)
    found = [HEADING.fullmatch(title) for title in titles]
    assert all(found), titles
    assert titles[0] == "## [Unreleased]"
    releases = [tuple(map(int, each.groups()[:3])) for each in found[1:]]
    assert releases == sorted(set(releases), reverse=True)
    assert ".".join(map(str, releases[0])) == VERSION
    for section in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], section.partition("\n")[0]


def notes(tag):
    command = [sys.executable, str(ROOT / ".ci" / "release-notes"), tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_notes_of_a_release_are_its_section():
    done = notes(f"v{VERSION}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("### Added\n")
    assert "\n## " not in done.stdout


@pytest.mark.parametrize("tag", ["v9.9.9", VERSION, f"v{VERSION}-rc1", "main"])
def test_a_tag_that_is_not_the_version_makes_no_release(tag):
    done = notes(tag)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"the tag is {tag}, and the version {VERSION}: actors/version.py\n"


def test_the_policy_names_this_release():
    minor = VERSION.rpartition(".")[0]
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()

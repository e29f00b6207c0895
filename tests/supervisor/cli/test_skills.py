"""`skills` and `skill`, with a server of another program."""

import sys

import pytest

from ...lab import PROGRAMS
from ...lab.command_line import LAB, MISSING


def skills(*args):
    return {"command": sys.executable, "args": ["-I", str(PROGRAMS / "skill_server.py"), *(args or ["modern"])]}


def test_skills(cli, config):
    ran = cli("skills", "--json", "--config", config(one=skills(), lab=LAB, missing=MISSING))
    assert (ran.code, ran.err) == (0, "")
    git, refunds = ran.json["skills"]
    assert (git["name"], git["server"], git["uri"]) == ("git-workflow", "one", "skill://git-workflow/SKILL.md")
    assert [file["uri"].rpartition("/")[2] for file in git["files"]] == ["SKILL.md", "GUIDE.md"]
    assert refunds["frontmatter"] == {"name": "refunds", "description": "Pay back", "license": "MIT"}
    assert list(ran.json["errors"]) == ["missing"]


@pytest.mark.slow
def test_skills_in_words(cli, config):
    ran = cli("skills", "--config", config(one=skills("handshake"), missing=MISSING))
    rows = [line.split("\t")[:2] for line in ran.out.splitlines()]
    assert rows == [["NAME", "SERVER"], ["git-workflow", "one"], ["refunds", "one"]]
    assert ran.err.startswith("mcp-nursery: missing: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["refunds", "one/refunds", "skill://acme/refunds/SKILL.md"])
def test_a_skill(cli, config, name):
    ran = cli("skill", name, "--config", config(one=skills()))
    assert (ran.code, ran.err) == (0, "")
    assert "Be kind." in ran.out


@pytest.mark.slow
def test_a_file_of_a_skill(cli, config, tmp_path):
    file = config(one=skills())
    ran = cli("skill", "git-workflow", "references/GUIDE.md", "--json", "--config", file)
    assert (ran.code, ran.json["contents"][0]["text"]) == (0, "Commit often.\n")
    ran = cli("skill", "git-workflow", "references/GUIDE.md", "--output", tmp_path / "guide", "--config", file)
    assert (ran.code, ran.out, (tmp_path / "guide").read_text()) == (0, "", "Commit often.\n")
    ran = cli("skill", "git-workflow", "../refunds/SKILL.md", "--json", "--config", file)
    assert (ran.code, ran.json["error"]["type"]) == (1, "SkillMismatch")
    assert ran.json["error"]["server"] == "one"


@pytest.mark.slow
def test_a_skill_that_is_not_as_listed_or_not_there_or_not_one(cli, config):
    ran = cli("skill", "refunds", "--config", config(one=skills("modern", "changes")))
    assert (ran.code, ran.out) == (1, "")
    assert "its digest is sha256:" in ran.err
    assert ran.err.count("\n") == 1
    file = config(one=skills(), two=skills())
    ran = cli("skill", "refunds", "--config", file)
    assert (ran.code, ran.out) == (2, "")
    assert "skill://acme/refunds/SKILL.md of one, skill://acme/refunds/SKILL.md of two" in ran.err
    assert cli("skill", "two/refunds", "--config", file).code == 0
    ran = cli("skill", "refund", "--config", file)
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'refunds'" in ran.err


def test_a_skill_that_a_server_may_have_which_could_not_be_asked(cli, config):
    file = config(one=skills(), two=skills("modern", "refuses"), missing=MISSING)
    ran = cli("skill", "refunds", "--config", file)
    assert (ran.code, ran.out) == (2, "")
    assert "skill://acme/refunds/SKILL.md of one; two could not be asked: " in ran.err
    assert "missing" not in ran.err.replace("mcp-nursery: missing: ", "")
    assert "give the URI and --server" in ran.err
    for named in (["one/refunds"], ["refunds", "--server", "one"]):
        assert "Be kind." in cli("skill", *named, "--config", file).out

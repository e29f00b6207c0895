"""`token`: who may come to a gateway in a network. What stands in the file: see the tests of the gateway."""

from datetime import UTC, datetime


def test_there_and_back(cli, tmp_path):
    file = tmp_path / "tokens.toml"
    cli("token", "add", "ann", "--file", file, "--allow", "a/*", "--allow", "b/c", "--days", "1")
    cli("token", "add", "bob", "--token-file", file)  # as `serve` calls it
    cli("token", "add", "old", "--file", file, "--days", "0")
    ann, bob, old = cli("token", "list", "--file", file, "--json").json["tokens"]
    assert datetime.fromisoformat(ann.pop("expires")) > datetime.now(UTC)
    assert ann == {"name": "ann", "allow": ["a/*", "b/c"], "expired": False}
    assert bob == {"name": "bob", "allow": None, "expires": None, "expired": False}
    assert old["expired"]
    lines = cli("token", "list", "--file", file).out.splitlines()
    assert lines[2] == "bob\teverything\tnever"
    assert lines[1].startswith("ann\ta/* b/c\t20")
    assert lines[3].endswith(" (over)")
    run = cli("token", "remove", "ann", "--file", file)
    assert (run.code, run.out) == (0, "ann: removed; a running gateway admits it for one or two seconds more\n")
    assert cli("token", "remove", "bob", "--file", file, "--json").json == {"name": "bob", "removed": True}
    assert [each["name"] for each in cli("token", "list", "--file", file, "--json").json["tokens"]] == ["old"]


def test_what_is_not_there(cli, tmp_path):
    run = cli("token", "remove", "ann", "--file", tmp_path / "nowhere.toml")
    assert (run.code, run.out) == (2, "")
    assert "cannot be read: No such file or directory" in run.err

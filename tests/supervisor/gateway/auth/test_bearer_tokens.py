"""Files of tokens: what may stand in them, who a token is, and what edits leave alone."""

import os
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.gateway.auth.bearer_tokens import BearerTokenFile, add_token, remove_token

DIGEST = "0" * 64


def written(tmp_path, content):
    path = tmp_path / "tokens.toml"
    path.write_text(content, errors="surrogateescape")
    return path


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "1" * 5_000, "too many digits"),
        (f"[tokens.a]\nsha256 = '{DIGEST}'\nexpires = 0001-01-01\n", "'tokens.a.expires': must be a date"),
        (f"[tokens.a]\nsha256 = '{DIGEST}'\nexpires = 0001-01-01T00:00:00\n", "'tokens.a.expires': must be a date"),
        (
            f"[tokens.a]\nsha256 = '{DIGEST}'\n[tokens.b]\nsha256 = '{DIGEST}'\n",
            "'tokens.b.sha256': is that of tokens.a",
        ),
        (f"[tokens.'a b']\nsha256 = '{DIGEST}'\n", "field 'tokens.a b': the name must be letters"),
        (f'[tokens."a\\nb"]\nsha256 = "{DIGEST}"\n', "the name must be letters"),
        (f"[tokens.a]\nsha256 = '{DIGEST}0'\n", "'tokens.a.sha256': must be 64 hexadecimal digits"),
        (f"[tokens.a]\nsha256 = '{DIGEST}'\nallow = 'a/*'\n", "'tokens.a.allow': must be a list of globs"),
        (f"[tokens.a]\nsha256 = '{DIGEST}'\nexpire = 1\n", "'tokens.a.expire': unknown; it has allow, expires, sha256"),
        ("tokens = 1", "'tokens': must be a table"),
        ("[tokens]\na = 1", "'tokens.a': must be a table"),
        ("# \udce4", "is not UTF-8"),
    ],
)
def test_whatever_stands_in_it_the_only_error_is_one_of_configuration(tmp_path, content, problem):
    """A gateway that runs goes on with what it has read before."""
    with pytest.raises(ConfigError) as caught:
        BearerTokenFile(written(tmp_path, content))
    assert problem in str(caught.value)


def test_a_token_is_its_own_client_s_and_any_other_is_nobody_s(tmp_path):
    path = tmp_path / "tokens.toml"
    tokens = {name: add_token(path, name) for name in ("ann", "bob")}
    file = BearerTokenFile(path)
    assert {name: file.find(token).name for name, token in tokens.items()} == {"ann": "ann", "bob": "bob"}
    for other in ("", tokens["ann"][:-1], tokens["ann"] + "x", tokens["ann"].upper(), DIGEST):
        assert file.find(other) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_can_write_lets_nobody_in(tmp_path, mode):
    path = written(tmp_path, "")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others can write it, and so give themselves tokens: chmod 600"):
        BearerTokenFile(path)


def test_nobody_waits_for_a_pipe(tmp_path):
    path = tmp_path / "tokens.toml"
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        BearerTokenFile(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        add_token(path, "ann")


def test_a_link_to_itself_is_no_file(tmp_path):
    path = tmp_path / "tokens.toml"
    path.symlink_to(path)
    for use in (BearerTokenFile, lambda path: add_token(path, "ann")):
        with pytest.raises(ConfigError, match="symbolic links"):
            use(path)


def test_a_token_is_over_at_the_second_that_is_named(tmp_path, monkeypatch):
    path, ends = tmp_path / "tokens.toml", datetime(2030, 1, 1, tzinfo=UTC)
    token = add_token(path, "ann", expires=ends)
    for before, lets_in in ((1, True), (0.001, True), (0, False), (-1, False)):
        monkeypatch.setattr(time, "time", lambda before=before: ends.timestamp() - before)
        assert (BearerTokenFile(path).find(token) is not None) == lets_in


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [(None, None, True), (None, 1, False), (2, 1, False), (1, 2, True), (1, None, True), (1, 1, True)],
)
def test_what_belongs_to_a_token_goes_on_unless_that_ends_sooner(tmp_path, before, after, holds):
    path, now = tmp_path / "tokens.toml", datetime.now(UTC)
    found = {}
    for which, days in (("before", before), ("after", after)):
        ends = "" if days is None else f"expires = {(now + timedelta(days)).isoformat()}\n"
        path.write_text(f"[tokens.ann]\nsha256 = '{sha256(b'x').hexdigest()}'\n{ends}")
        found[which] = BearerTokenFile(path)
    assert found["after"].holds(found["before"].find("x")) == holds


@pytest.mark.parametrize("other", [{"token": "y"}, {"allow": ["a/*", "b/*"]}, {"allow": None}])
def test_another_use_or_another_token_of_the_name_is_another_client(tmp_path, other):
    found = []
    for given in ({"token": "x", "allow": ["a/*"]}, {"token": "x", "allow": ["a/*"]} | other):
        allow = "" if given["allow"] is None else f"allow = {given['allow']}\n"
        digest = sha256(given["token"].encode()).hexdigest()
        found.append(BearerTokenFile(written(tmp_path, f"[tokens.ann]\nsha256 = '{digest}'\n{allow}")))
    assert not found[1].holds(found[0].find("x"))


def test_a_token_is_removed_and_the_rest_stays(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text("# ours\n")
    path.chmod(0o640)
    add_token(path, "ann", allow=["a/*"])
    before = path.read_text()
    add_token(path, "bob")
    path.write_text(path.read_text() + "\n# bob leaves in May\n")
    remove_token(path, "bob")
    assert path.read_text() == before + "\n# bob leaves in May\n"
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ConfigError, match="no token of this name"):
        remove_token(path, "bob")
    remove_token(path, "ann")
    assert BearerTokenFile(path).principals == []
    assert path.read_text().startswith("# ours\n")


def test_what_is_added_is_what_is_read(tmp_path):
    """Or nothing is."""
    path, allow = tmp_path / "tokens.toml", ('a\\b/"x"*', "c/*")
    with pytest.raises(ConfigError, match="must be globs"):
        add_token(path, "ann", allow=["x"])
    assert not path.exists()
    token = add_token(path, "ann", allow=allow)
    before = path.read_text()
    for name, globs, problem in (
        ("ann", (), "remove it first"),
        ("b c", (), "letters"),
        ("bob", ["a/\n*"], "printable"),
    ):
        with pytest.raises(ConfigError, match=problem):
            add_token(path, name, allow=globs)
    assert path.read_text() == before
    found = BearerTokenFile(path).find(token)
    assert (found.name, found.access.allow) == ("ann", allow)
    path.write_text(f"{before}expires = 2030-01-01\n")
    assert BearerTokenFile(path).find(token).expires == datetime(2030, 1, 1).timestamp()


def test_what_cannot_be_taken_out_by_lines_stays(tmp_path):
    path = written(tmp_path, f"tokens = {{ ann = {{ sha256 = '{DIGEST}' }} }}\n")
    before = path.read_text()
    with pytest.raises(ConfigError, match="edit the file"):
        remove_token(path, "ann")
    assert path.read_text() == before

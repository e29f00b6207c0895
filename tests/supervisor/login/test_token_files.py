"""Tokens that outlast a run: in a keyring or in a file, whole or not at all, and nobody's but this user's."""

import json
import os
import threading

import keyring
import pytest
import trio
from attrs import evolve
from keyring.backend import KeyringBackend
from keyring.backends import null

from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensUnreadable
from mcp_nursery.supervisor import OAuth
from mcp_nursery.supervisor.login import token_files
from mcp_nursery.supervisor.login.token_files import TokenFolder

KEY = TokenKey("https://far.example/mcp")
TOKENS = Tokens(
    "access-5ecret",
    "refresh-5ecret",
    expires_at=5.0,
    scope="read",
    issuer="https://issuer.example",
    token_endpoint="https://issuer.example/token",
    client={"client_id": "me", "client_secret": "client-5ecret"},
    proof_key="5ec2e7" * 8,
)


class Ring(KeyringBackend):
    """A keyring in memory; `waits` for an event, or `fails`."""

    priority = 1
    viable = False  # or it would be the keyring of every later test of this process that asks for one

    def __init__(self):
        self.kept = {}
        self.fails = False
        self.waits = None

    def _do(self):
        if self.waits is not None:
            self.waits.wait()
        if self.fails:
            raise RuntimeError("access-5ecret is locked")

    def get_password(self, service, username):
        self._do()
        return self.kept.get((service, username))

    def set_password(self, service, username, password):
        self._do()
        self.kept[service, username] = password

    def delete_password(self, service, username):
        self._do()
        del self.kept[service, username]


@pytest.fixture
def ring():
    before = keyring.get_keyring()
    ring = Ring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


@pytest.fixture
def no_ring(ring):
    keyring.set_keyring(null.Keyring())


@pytest.fixture
def store(tmp_path):
    tmp_path.chmod(0o700)
    return TokenFolder(tmp_path / "tokens").store(KEY)


async def test_with_a_keyring_no_file_holds_a_secret(ring, store, tmp_path):
    await store.write(TOKENS)
    assert await store.read() == TOKENS
    everything = "".join(path.read_text() for path in (tmp_path / "tokens").iterdir())
    assert "5ecret" not in everything
    assert TOKENS.proof_key not in everything
    assert len(ring.kept) == 1
    kept = await store.kept()
    assert (kept.where, kept.issuer, kept.scope, kept.renewable) == ("keyring", TOKENS.issuer, "read", True)
    assert await store.remove()
    assert (ring.kept, await store.read(), await store.remove()) == ({}, None, False)


async def test_without_one_a_file_of_this_user_alone_does(no_ring, store, tmp_path):
    await store.write(TOKENS)
    assert await store.read() == TOKENS
    (path,) = (tmp_path / "tokens").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "5ecret" not in repr(TOKENS)
    assert TOKENS.proof_key not in repr(TOKENS)
    path.chmod(0o644)
    with pytest.raises(TokensUnreadable, match="not a file of this user's alone"):
        await store.read()


async def test_a_keyring_that_takes_nothing_is_none(ring, store):
    """What an issuer has just renewed must not be lost."""
    ring.fails = True
    await store.write(TOKENS)
    assert (await store.kept()).where == "file"
    assert await store.read() == TOKENS


async def test_a_keyring_that_is_locked_loses_nothing(ring, store):
    await store.write(TOKENS)
    ring.fails = True
    with pytest.raises(TokensUnreadable, match="the keyring does not give them: RuntimeError") as caught:
        await store.read()
    assert "5ecret" not in str(caught.value)
    with pytest.raises(TokensUnreadable):
        await store.remove()
    ring.fails = False
    assert await store.read() == TOKENS


async def test_a_keyring_that_never_answers_holds_nobody_up(ring, store, monkeypatch):
    await store.write(TOKENS)
    monkeypatch.setattr(token_files, "DISK_TIMEOUT", 0.2)
    ring.waits = threading.Event()
    with trio.fail_after(5), pytest.raises(TokensUnreadable, match=r"no answer within 0\.2 s"):
        await store.read()
    ring.waits.set()


def with_tokens(**other):
    said = {"access": "a", "issuer": None, "scope": None, "expires_at": None, **other}
    return json.dumps({"format": 1, "where": "file", "renewable": True, "tokens": said}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"format": 1}',
        b'{"format": 1, "where": "file", "tokens": 5}',
        with_tokens(access=5),
        with_tokens(access=None),
        with_tokens(refresh=["r"]),
        with_tokens(client="me"),
        with_tokens(client={"client_id": {}}),
        *(with_tokens(proof_key=key) for key in (5, "", "0", "f" * 64, "5ec-" * 9)),
        with_tokens(token_endpoint=None),
        with_tokens(expires_at="soon"),
        with_tokens(wanted={}),
        b" " * (2 << 20) + with_tokens(),
    ],
)
async def test_a_damaged_file_is_no_answer(no_ring, store, tmp_path, content):
    await store.write(TOKENS)
    (path,) = (tmp_path / "tokens").glob("*.json")
    path.write_bytes(content)
    with pytest.raises(TokensUnreadable):
        await store.read()
    await store.write(TOKENS)
    assert await store.read() == TOKENS


@pytest.mark.parametrize("said", [{"expires_at": "soon"}, {"expires_at": float("inf")}, {"issuer": 5}, {"scope": []}])
async def test_what_is_known_of_damaged_tokens_is_no_answer(no_ring, store, tmp_path, said):
    """Whoever shows it would have to check it."""
    await store.write(TOKENS)
    (path,) = (tmp_path / "tokens").glob("*.json")
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "tokens": {**document["tokens"], **said}}))
    with pytest.raises(TokensUnreadable, match="what is kept is damaged; log in again"):
        await store.kept()


async def test_one_at_a_time_is_alone_with_them(no_ring, tmp_path):
    tmp_path.chmod(0o700)
    folder = TokenFolder(tmp_path / "tokens")
    inside = []

    async def enter():
        async with folder.store(KEY).locked():
            inside.append(1)
            assert len(inside) == 1
            await trio.sleep(0.02)
            inside.pop()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(enter)


async def test_who_waits_for_too_long_gives_up_and_who_is_cancelled_leaves(no_ring, store, monkeypatch):
    monkeypatch.setattr(token_files, "LONGEST_RENEWAL", 0.2)
    async with store.locked():
        with pytest.raises(TokensUnreadable, match="another process is renewing them"):
            async with store.locked():
                pass
        with trio.move_on_after(0.05) as scope:
            async with store.locked():
                pass
        assert scope.cancelled_caught
    async with store.locked():
        pass


@pytest.mark.slow
async def test_what_another_host_writes_is_noticed(no_ring, tmp_path):
    tmp_path.chmod(0o700)
    one, other = (TokenFolder(tmp_path / "tokens").store(KEY) for _ in range(2))
    assert await one.read() is None
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.changed)
            await other.write(TOKENS)
    await one.write(TOKENS)
    await other.write(evolve(TOKENS, access="renewed-5ecret"))
    with trio.move_on_after(0.5) as scope:
        await one.changed()
    assert scope.cancelled_caught, "what it has written itself is no news to it, nor what is but renewed"
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.changed)
            await other.write(evolve(TOKENS, login="another"))
        assert (await one.read()).login == "another"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.changed)
            await other.remove()


async def test_keys_do_not_share(no_ring, tmp_path):
    """Another client, another issuer, another server: none of them is shown the tokens of one."""
    tmp_path.chmod(0o700)
    folder = TokenFolder(tmp_path / "tokens")
    await folder.store(KEY).write(TOKENS)
    for other in (
        TokenKey(KEY.resource, "me"),
        TokenKey(KEY.resource, "", "https://i"),
        TokenKey("https://far.example/"),
    ):
        assert await folder.store(other).read() is None


@pytest.mark.parametrize("made", ["link", "pipe", "folder"])
@pytest.mark.parametrize("end", ["json", "lock"])
async def test_what_is_no_file_is_not_opened(no_ring, store, tmp_path, made, end):
    """Whoever put it there: nobody waits for a pipe, and no link leads elsewhere."""
    await store.write(TOKENS)
    path = tmp_path / "tokens" / f"{KEY.digest}.{end}"
    elsewhere = tmp_path / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.touch(0o600)
    {"link": lambda: path.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(path, 0o600), "folder": path.mkdir}[made]()
    with trio.fail_after(5), pytest.raises(TokensUnreadable):
        async with store.locked():
            await store.read()


async def test_a_file_is_replaced_as_a_whole(no_ring, store, tmp_path):
    """Whoever reads it meanwhile, or after a crash, has the old ones or the new ones."""
    await store.write(TOKENS)
    (path,) = (tmp_path / "tokens").glob("*.json")
    before = tmp_path / "before"
    os.link(path, before)
    said = before.read_bytes()
    await store.write(evolve(TOKENS, access="renewed-5ecret"))
    assert before.read_bytes() == said
    assert sorted(each.suffix for each in (tmp_path / "tokens").iterdir()) == [".json"]


def test_what_makes_a_key_another():
    """Tokens of one client, issuer or server are never another's."""
    url = "https://far.example/mcp"
    wanted = [{}, {"client_id": "a"}, {"client_id": "b"}, {"client_metadata_url": "https://me.example/c"}]
    wanted += [{"issuer": "https://i.example"}, {"client_id": "a", "issuer": "https://i.example"}]
    keys = [TokenKey.of(url, OAuth(**words)) for words in wanted] + [TokenKey.of(f"{url}/more", OAuth())]
    assert len({key.digest for key in keys}) == len(set(keys)) == len(keys)
    assert TokenKey.of(url, OAuth(scopes=["read"])) == keys[0], "what was granted to a client is asked for again by it"

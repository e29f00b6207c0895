"""Tokens in a database that machines share. Against a real server."""

from contextlib import closing

import pytest
import trio
from attrs import evolve

from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensUnreadable
from mcp_nursery.supervisor.login.token_table import TokenTable
from mcp_nursery.supervisor.storage.postgres_connection import StateDatabase

pytestmark = pytest.mark.slow

KEY = TokenKey("https://far.example/mcp")
TOKENS = Tokens(
    "access-5ecret", "refresh-5ecret", 2e9, "read", "https://issuer.example", client={"client_id": "me"}, login="one"
)


@pytest.fixture
def replicas(database):
    """The same tokens as two replicas see them."""
    return [TokenTable(StateDatabase(database)).store(KEY) for _ in range(2)]


async def test_what_one_writes_the_other_reads(replicas, database):
    one, other = replicas
    assert (await one.read(), await one.kept(), await one.remove()) == (None, None, False)
    await one.write(TOKENS)
    assert await other.read() == TOKENS
    with closing(StateDatabase(database)) as db:
        (document,) = db.run(lambda it: it.execute("SELECT document FROM mcp_nursery.tokens").fetchone())
    assert "proof_key" not in document, "an older version reads no row with a key that it does not know"
    bound = evolve(TOKENS, proof_key="5ec2e7" * 8)
    await one.write(bound)
    assert await other.read() == bound
    await other.write(evolve(TOKENS, access="renewed-5ecret", refresh=None))
    assert (await one.read()).access == "renewed-5ecret"
    kept = await one.kept()
    assert (kept.where, kept.issuer, kept.scope, kept.renewable) == ("database", TOKENS.issuer, "read", False)
    for other_key in (TokenKey(KEY.resource, "me"), TokenKey(KEY.resource, "", "https://i")):
        assert await TokenTable(StateDatabase(database)).store(other_key).read() is None
    assert await one.remove()
    assert await other.read() is None


async def test_one_renews_and_the_others_wait(replicas):
    """Also where whoever waits gives up, or whoever holds the lock is cancelled."""
    one, other = replicas
    order = []

    async def renew(*, task_status):
        async with one.locked():
            task_status.started()
            await released.wait()
            order.append("renewed")

    released = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(renew)
        with trio.move_on_after(0.3) as scope:
            async with other.locked():
                order.append("too early")
        assert scope.cancelled_caught
        released.set()
        async with other.locked():
            order.append("taken")
    assert order == ["renewed", "taken"]
    with trio.CancelScope() as cancelled:
        async with one.locked():
            cancelled.cancel()
            await trio.lowlevel.checkpoint()
    with trio.fail_after(30):
        async with other.locked():
            pass


async def test_a_lock_ends_with_its_process(database_server, database, replicas):
    """A machine that is gone keeps nobody from renewing: the database ends its connection."""
    one, other = replicas
    name = database.partition("?")[0].rpartition("/")[2]
    async with one.locked():
        database_server.do(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with trio.fail_after(30):
            async with other.locked():
                pass


async def test_who_has_lost_the_lock_leaves_what_another_has_renewed(database_server, database, replicas):
    one, other = replicas
    name = database.partition("?")[0].rpartition("/")[2]
    async with one.locked():
        await one.write(TOKENS)
        assert await other.read() == TOKENS
        database_server.do(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with trio.fail_after(30):
            async with other.locked():
                await other.write(evolve(TOKENS, access="of-the-other"))
                with pytest.raises(TokensUnreadable, match="the lock on them was lost"):
                    await one.write(evolve(TOKENS, access="of-who-lost-it"))
        with pytest.raises(TokensUnreadable, match="the lock on them was lost"):
            await one.write(evolve(TOKENS, access="of-who-lost-it"))
    assert (await other.read()).access == "of-the-other"
    await one.write(TOKENS)


async def test_another_login_is_noticed(replicas):
    one, other = replicas
    await one.write(TOKENS)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.changed)
            await other.write(evolve(TOKENS, login="two"))


async def test_a_database_that_is_away(database_server, database, replicas):
    """Nothing is said of what is kept, and no secret."""
    await replicas[0].write(TOKENS)
    name = database.partition("?")[0].rpartition("/")[2]
    database_server.do(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
    for ask in (replicas[0].read, replicas[0].remove, replicas[0].kept, lambda: replicas[0].write(TOKENS)):
        with pytest.raises(TokensUnreadable, match="the state database cannot be used") as caught:
            await ask()
        assert "5ecret" not in str(caught.value)

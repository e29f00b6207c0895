"""A database that is stopped, frozen, slow or read-only: what a store says of it then, and that it is used again."""

import json
import os
import signal
from contextlib import closing

import httpx2
import psycopg
import pytest
import trio

from mcp_nursery.actors.enums import Era
from mcp_nursery.supervisor.storage import postgres_connection as module
from mcp_nursery.supervisor.storage.postgres import PostgresStore
from mcp_nursery.supervisor.storage.store import EraNote, StoreUnreadable

from ...lab.command_line import LAB, until
from ...lab.databases import new_server
from ...lab.gateways import served_over_http
from ...lab.processes import lab, supervised
from .samples import CHANGED, DECLARED, REQUEST

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stopped_server():
    """A server that only tests of this module use, and may stop."""
    server = new_server()
    yield server
    server.end()


@pytest.fixture
def server(stopped_server):
    """The same, running; it is started again when a test is over."""
    stopped_server.start()
    yield stopped_server
    stopped_server.start()


@pytest.fixture
def url(server, database_patience):
    """An empty database there."""
    return server.url(server.new_database())


def usable(store):
    try:
        return store.agreed("digest")
    except StoreUnreadable:
        return False


def test_one_that_is_stopped_and_started(server, url, caplog):
    """Eras are forgotten, trust and pins refuse; it is said once, and once when it is back, and all is as it was."""
    with closing(PostgresStore(url)) as store:
        store.agree(REQUEST)
        store.pin("s", "d", DECLARED)
        store.remember_era("s", "d", Era.MODERN, answered=True)
        assert store.problem is None
        server.stop()
        for _ in range(3):
            assert store.era("s", "d") is None
            store.remember_era("s", "d", Era.MODERN, answered=True)
        for ask in (lambda: store.agreed("digest"), lambda: store.pin("s", "d", DECLARED), store.open_changes):
            with pytest.raises(StoreUnreadable, match=f"^{store.database.label}: the state database cannot be used: "):
                ask()
        assert store.problem is not None
        server.start()
        until(lambda: usable(store))
        assert store.problem is None
        assert store.era("s", "d") == EraNote(Era.MODERN)
        assert store.pin("s", "d", CHANGED) == DECLARED
    said = [record.getMessage().rpartition("; ")[2] for record in caplog.records]
    assert said == [
        "nothing is remembered until it can",
        f"{store.database.label}: the state database can be used again",
    ]


def test_one_that_was_restarted_meanwhile(server, url):
    """The connection is lost, and nobody notices."""
    with closing(PostgresStore(url)) as store:
        store.agree(REQUEST)
        server.stop()
        server.start()
        assert store.agreed("digest")


def test_one_that_is_frozen(database, monkeypatch):
    """It has a process that does nothing any more, and answers for nothing: it is left, and another one answers."""
    with closing(PostgresStore(database)) as store:
        store.agree(REQUEST)
        frozen = store.database.run(lambda db: db.info.backend_pid)
        monkeypatch.setattr(module, "UNDER_WAY", 1)
        os.kill(frozen, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnreadable, match="no answer within 1 s"):
                store.agreed("digest")
            monkeypatch.setattr(module, "UNDER_WAY", 120)
            until(lambda: usable(store))
            assert store.database.run(lambda db: db.info.backend_pid) != frozen
        finally:
            os.kill(frozen, signal.SIGCONT)


def test_one_that_is_slow(database, monkeypatch):
    """Whoever asks waits for a second, and who comes after that not at all until the next try, whatever it is about."""
    monkeypatch.setattr(module, "RETRY", 3600)
    with closing(PostgresStore(database)) as known:
        known.agree(REQUEST)
        known.remember_era("s", "d", Era.MODERN, answered=True)
    monkeypatch.setattr(module, "STATEMENT", 1)
    with closing(PostgresStore(database)) as store:
        assert store.problem is None
        with psycopg.connect(database) as other:
            other.execute("LOCK TABLE mcp_nursery.consents")
            with pytest.raises(StoreUnreadable, match="canceling statement due to"):
                store.agreed("digest")
            assert store.era("s", "d") is None
        with pytest.raises(StoreUnreadable, match="canceling statement due to"):
            store.agreed("digest")
    monkeypatch.setattr(module, "STATEMENT", 120)
    with closing(PostgresStore(database)) as store:
        assert store.agreed("digest")
        assert store.era("s", "d") == EraNote(Era.MODERN)


def test_one_that_is_read_only(database_server, database):
    """What is known is known: a standby that has not been promoted yet. Nothing new is written down."""
    name = database.partition("?")[0].rpartition("/")[2]
    with closing(PostgresStore(database)) as store:
        store.agree(REQUEST)
        store.pin("s", "d", DECLARED)
        store.remember_era("s", "d", Era.MODERN, answered=True)
    database_server.do(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with closing(PostgresStore(database)) as store:
        with pytest.raises(StoreUnreadable, match="read-only transaction"):
            store.agree(REQUEST)
        store.remember_era("s", "d", Era.HANDSHAKE, answered=True)
        assert store.agreed("digest")
        assert store.pin("s", "d", DECLARED) == DECLARED
        assert store.era("s", "d") == EraNote(Era.MODERN)
        with pytest.raises(StoreUnreadable, match="read-only transaction"):
            store.pin("s", "d", CHANGED)


async def test_servers_run_and_calls_go_on(server, url):
    """Also a server that is started meanwhile; the figures say that the state cannot be used, and that it can again."""
    async with supervised(lab(), state=url) as supervisor:
        assert supervisor.statistics().state.usable
        server.stop()
        await supervisor.call_tool("mcp_lab_pid")
        await supervisor.reconnect("lab")
        await supervisor.call_tool("mcp_lab_pid")
        assert not supervisor.statistics().state.usable
        assert supervisor.statistics().state.refused > 0
        server.start()
        while not supervisor.statistics().state.usable:
            await supervisor.reconnect("lab")


async def test_a_gateway_starts_and_is_ready(server, url, tmp_path):
    """Its metrics say that the state cannot be used, and nothing that is shown says how to get there."""
    server.stop()
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    url = url.replace("postgres@", "postgres:hunter2@")
    serving = served_over_http("--config", str(file), env={**os.environ, "MCP_NURSERY_STATE": url})
    async with serving as (_, address), httpx2.AsyncClient(timeout=60) as http:

        async def shown(path):
            return (await http.get(address.replace("/mcp", path))).text

        with trio.fail_after(60):
            while 'mcp_nursery_server_connected{server="lab"} 1.0' not in await shown("/metrics"):  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert (await http.get(address.replace("/mcp", "/readyz"))).status_code == 200
        metrics = await shown("/metrics")
        assert "mcp_nursery_state_usable 0.0" in metrics
        assert "hunter2" not in metrics

"""The shared store: how its database is reached, what stands in it, and what is said of it. Against a real server."""

import re
import subprocess
import sys
from contextlib import closing
from urllib.parse import quote

import pytest
import trio

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.storage import postgres_connection as module
from mcp_nursery.supervisor.storage.named import store_named
from mcp_nursery.supervisor.storage.postgres import PostgresStore
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.storage.store import EraNote, StoreUnreadable

from ...lab.processes import lab, supervised
from .places import DatabasePlace, FilePlace
from .samples import CHANGED, DECLARED, REQUEST

PASSWORD = "s3cr/t p@ss%wörd:#?"


# -- what a user names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_names_a_database(scheme):
    with closing(
        store_named(f"{scheme}://u:{quote(PASSWORD, safe='')}@db.example:5433/fleet?sslmode=disable")
    ) as store:
        assert repr(store) == "PostgresStore('postgresql://db.example:5433/fleet')"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@[h/db",
        "postgresql://u:hunter2@h/db?hunter2=1",
        "postgresql://u:hunter2%zz@h/db",
        "postgresql://u:hunter2/x@h/db",
        "postgresql://u:1/hunter2@h/db",
        "postgresql://u:x@hunter2@h/db",
    ],
)
def test_a_url_that_is_none_is_refused_and_not_quoted(url):
    """A password that was not encoded ends up in other parts of the URL."""
    with pytest.raises(ConfigError, match="field 'state': is no URL as PostgreSQL has them") as caught:
        store_named(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_database_of_another_kind_is_no_file():
    with pytest.raises(ConfigError, match="field 'state': must be a file, or a database as postgresql://HOST/DATABASE"):
        async with open_supervisor([], state="mysql://h/db"):
            pass


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=re.escape("psycopg is missing: pip install 'mcp-nursery[postgres]'")):
        store_named("postgresql://h/db")


def test_psycopg_is_loaded_for_a_url_alone():
    program = """
import sys
from mcp_nursery.supervisor.storage.named import store_named
for name in ("/tmp/state", "postgresql:///x"):
    store_named(name)
    print("psycopg" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said == "False\nTrue\n"


# -- what stands in the database ------------------------------------------------------------------------------------

WRITERS = """
import os, sys
from mcp_nursery.actors.enums import Era
from mcp_nursery.supervisor.config import TrustRequest
from mcp_nursery.supervisor.storage import postgres_connection
from mcp_nursery.supervisor.storage.postgres import PostgresStore

postgres_connection.CONNECTING = 60  # a machine may be slow
postgres_connection.STATEMENT = postgres_connection.MIGRATING = 60.0

def write(number):
    store = PostgresStore(sys.argv[1])
    os.read(ready, 1)
    for turn in range(20):
        store.agree(TrustRequest("s", "f", (), {}, f"{number} {turn}"))
        store.remember_era("s", str(turn if number % 2 else 19 - turn), Era.MODERN, answered=True)
        names = [f"t{n}" for n in range(20)]
        store.pin("s", "d", dict.fromkeys(names if number % 2 else reversed(names), "{}"))
        assert store.agreed(f"{number} {turn}")
    store.close()

ready, go = os.pipe()
children = []
for number in range(10):
    child = os.fork()
    if not child:
        write(number)
        os._exit(0)
    children.append(child)
os.write(go, b"x" * 10)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 10
"""


@pytest.mark.slow
def test_ten_processes_that_start_at_once(database):
    """One of them makes the tables, the others wait for it; nobody loses anything, in whatever order they write."""
    writers = subprocess.run([sys.executable, "-c", WRITERS, database], check=False, stderr=subprocess.PIPE, text=True)
    assert (writers.stderr, writers.returncode) == ("", 0)
    with closing(PostgresStore(database)) as store:
        assert all(store.agreed(f"{number} {turn}") for number in range(10) for turn in range(20))
    numbers = DatabasePlace(database).do("SELECT number FROM migrations ORDER BY number")
    assert numbers == [(number,) for number in range(1, len(module.MIGRATIONS) + 1)]


@pytest.mark.slow
def test_replicas_are_upgraded_one_by_one(database, monkeypatch):
    """An older version goes on beside a newer one, until a migration needs it to know more; none is undone."""
    known = module.MIGRATIONS
    with closing(PostgresStore(database)) as older:
        older.agree(REQUEST)
        newer = (*known, (1, ("CREATE TABLE mcp_nursery.more (id text)",)))
        monkeypatch.setattr(module, "MIGRATIONS", newer)
        with closing(PostgresStore(database)) as store:
            assert store.agreed("digest")
        assert DatabasePlace(database).do("SELECT * FROM more") == []
        monkeypatch.setattr(module, "MIGRATIONS", known)
        with closing(PostgresStore(database)) as again:
            assert again.agreed("digest")
        monkeypatch.setattr(module, "MIGRATIONS", (*newer, (len(newer), ("DROP TABLE mcp_nursery.more",))))
        with closing(PostgresStore(database)) as store:
            assert store.agreed("digest")
        monkeypatch.setattr(module, "MIGRATIONS", known)
        with (
            closing(PostgresStore(database)) as again,
            pytest.raises(StoreUnreadable, match="a newer version of mcp-nursery has changed its tables"),
        ):
            again.agreed("digest")


@pytest.mark.slow
def test_a_migration_that_fails_leaves_nothing(database, monkeypatch):
    known = module.MIGRATIONS
    broken = (*known, (1, ("CREATE TABLE mcp_nursery.half (id text)", "CREATE TABLE nowhere.at_all (id text)")))
    monkeypatch.setattr(module, "MIGRATIONS", broken)
    with (
        closing(PostgresStore(database)) as store,
        pytest.raises(StoreUnreadable, match='the state database cannot be used: schema "nowhere" does not exist'),
    ):
        store.agree(REQUEST)
    monkeypatch.setattr(module, "MIGRATIONS", known)
    with closing(PostgresStore(database)) as store:
        assert not store.agreed("digest")


@pytest.fixture
def role(database_server, database):
    """The URL of the database for a role that has no rights at all, and who grants it some."""
    name = database.partition("?")[0].rpartition("/")[2]
    role = f"role_{name}"
    database_server.do(f"CREATE ROLE {role} LOGIN")
    yield database_server.url(name, role), lambda *grants: DatabasePlace(database).grant(role, *grants)
    DatabasePlace(database).grant(role)
    database_server.do(f"DROP DATABASE {name} WITH (FORCE)", f"DROP ROLE {role}")


@pytest.mark.slow
def test_the_rights_that_a_role_needs(role, database):
    """To make the tables it needs a schema; to use them the rights on rows."""
    url, grant = role
    with closing(PostgresStore(url)) as store, pytest.raises(StoreUnreadable, match="permission denied for database"):
        store.agree(REQUEST)
    with closing(PostgresStore(database)) as owner:
        owner.agree(REQUEST)
    rows = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mcp_nursery"
    grant("USAGE ON SCHEMA mcp_nursery", rows)
    with closing(PostgresStore(url)) as store:
        assert store.agreed("digest")
        assert store.pin("s", "d", DECLARED) == DECLARED
        assert store.pin("s", "d", CHANGED) == DECLARED
        store.remember_era("s", "d", Era.MODERN, answered=True)
        assert store.era("s", "d") == EraNote(Era.MODERN)


@pytest.mark.slow
def test_a_role_that_may_make_the_tables_in_a_schema_of_its_own(role, database):
    url, grant = role
    DatabasePlace(database).do("CREATE SCHEMA mcp_nursery")
    grant("USAGE, CREATE ON SCHEMA mcp_nursery")
    with closing(PostgresStore(url)) as store:
        store.agree(REQUEST)
        assert store.agreed("digest")


# -- what is said of it ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_password_is_in_no_error_log_or_repr(database_server, database, caplog):
    """Also not where it is wrong, and the server says so."""
    name = database.partition("?")[0].rpartition("/")[2]
    with_password = database.replace("postgres@", f"postgres:{quote(PASSWORD, safe='')}@")
    database_server.do(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
    nowhere = f"postgresql://u:{quote(PASSWORD, safe='')}@127.0.0.1:1/{quote('s3cr', safe='')}"
    for url in (with_password, nowhere):
        with closing(PostgresStore(url)) as store:
            store.remember_era("s", "d", Era.MODERN, answered=True)
            with pytest.raises(StoreUnreadable) as caught:
                store.agree(REQUEST)
            for said in (str(caught.value), repr(caught.value), repr(store), repr(store.database), caplog.text):
                assert PASSWORD not in said
                assert quote(PASSWORD, safe="") not in said
            assert "\n" not in str(caught.value)
            assert str(caught.value).startswith(f"{store.database.label}: the state database cannot be used: ")


@pytest.mark.slow
async def test_processes_are_recorded_on_the_machine_they_run_on(database):
    """Signals are sent to what is recorded there: who can write in a shared database could have anything ended."""
    with closing(SqliteStore()) as local:
        own = FilePlace(local.path)
    async with supervised(lab(), state=database):
        assert len(own.do("SELECT marker FROM processes")) == 1
        assert DatabasePlace(database).do("SELECT server FROM eras") == [("lab",)]
        assert own.do("SELECT * FROM eras") == []
    assert own.do("SELECT marker FROM processes") == []


async def test_processes_are_recorded_while_the_database_is_away(user_folders):
    """So that they are ended if this process is killed; and nothing that is told has the password."""
    seen = []
    with closing(SqliteStore()) as local:
        own = FilePlace(local.path)
    away = "postgresql://u:hunter2@127.0.0.1:1/db"
    async with supervised(lab(), state=away) as supervisor, supervisor.events() as events:
        assert len(own.do("SELECT marker FROM processes")) == 1
        await supervisor.reconnect("lab")
        with trio.fail_after(60):
            async for event in events:
                seen.append(repr(event))
                if "connected" in seen[-1]:
                    break
        seen += map(repr, (supervisor.status(), supervisor.statistics(), supervisor))
    assert own.do("SELECT marker FROM processes") == []
    assert "hunter2" not in "".join(seen)


# -- reports of replicas --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replicas_see_each_others_reports_for_as_long_as_they_count(database):
    with closing(PostgresStore(database)) as one, closing(PostgresStore(database)) as two:
        assert one.report("one", "first", 60) == {"one": "first"}
        assert two.report("two", "hello", 60) == {"one": "first", "two": "hello"}
        assert one.report("one", "second", 60) == {"one": "second", "two": "hello"}
        DatabasePlace(database).do("UPDATE replicas SET at = at - 100 WHERE replica = 'two'")
        assert one.report("one", "third", 60) == {"one": "third"}
        assert DatabasePlace(database).do("SELECT replica FROM replicas") == [("one",)]


def test_a_report_without_a_database_is_lost():
    with closing(PostgresStore("postgresql://127.0.0.1:1/x?connect_timeout=1")) as store:
        assert store.report("one", "first", 60) is None

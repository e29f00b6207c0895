"""Where stores keep what lasts, and a way past them to what stands there."""

import sqlite3
from contextlib import closing

import psycopg

from mcp_nursery.supervisor.storage.postgres import PostgresStore
from mcp_nursery.supervisor.storage.sqlite import SqliteStore


class FilePlace:
    """A state file, and what stands in it."""

    def __init__(self, file):
        self.file = file

    def open(self):
        return SqliteStore(self.file)

    def do(self, statement, *values):
        with closing(sqlite3.connect(self.file)) as other, other:
            return other.execute(statement, values).fetchall()


class DatabasePlace:
    """A database, and what stands in it."""

    def __init__(self, url):
        self.url = url

    def open(self):
        return PostgresStore(self.url)

    def do(self, statement, *values):
        options = "-c search_path=mcp_nursery"
        with psycopg.connect(self.url, options=options, autocommit=True) as other:
            cursor = other.execute(statement.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    def grant(self, role, *rights):
        """Give a role exactly these rights, in place of those it had."""
        with psycopg.connect(self.url, autocommit=True) as other:
            other.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER".encode())
            other.execute(f"DROP OWNED BY {role}".encode())
            for each in rights:
                other.execute(f"GRANT {each} TO {role}".encode())

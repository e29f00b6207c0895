"""The rest of who means harm: issuers of tokens and of keys, who kills processes, and who spoils the state file."""

import itertools
import os
import signal
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import trio

from ..lab.hostile_issuer import METADATA, Issuer, answer
from ..lab.processes import LAB
from ..lab.token_issuer import TokenIssuer
from .servers import Guarded


class Tokens:
    """Issues the tokens with which a server is called, for a second each."""

    def __init__(self, issuer: Issuer, server: Guarded) -> None:
        self._issuer, self._server = issuer, server
        self._numbers = itertools.count()
        server.origin = issuer.origin
        self.calm()

    def calm(self) -> None:
        """Be honest."""
        self._issuer.behave()
        self._issuer.says["/token"] = lambda _: self._issue()

    def _issue(self, **more: Any) -> bytes:
        token = f"access-{next(self._numbers)}-5ecret"
        self._server.good.add(token)
        return answer(200, self._issuer.token(access_token=token, expires_in=1, **more))

    async def move(self, name: str, said: dict[str, Any]) -> None:
        await getattr(self, f"do_{name}")(**said)

    async def do_revoke(self) -> None:
        self._server.good.clear()

    async def do_tokens(self, what: str, seconds: float) -> None:
        self._server.good.clear()
        await self._for(seconds, "/token", what)

    async def do_metadata(self, what: str, seconds: float) -> None:
        self._server.good.clear()
        await self._for(seconds, METADATA, what)

    async def _for(self, seconds: float, path: str, what: str) -> None:
        before = self._issuer.says[path]
        self._issuer.says[path] = self._said(what, path)
        await trio.sleep(seconds)
        self._issuer.says[path] = before

    def _said(self, what: str, path: str) -> Any:
        async def hang(_: Any) -> bytes:
            await trio.sleep(3)
            return answer(503)

        async def drip(_: Any) -> bytes:
            await trio.sleep(0.5)
            return self._issue()

        return {
            "hang": hang,
            "drip": drip,
            "moved": answer(307, {}, more=f"location: {path}\r\n"),
            "refused": answer(400, {"error": "invalid_client"}),
            "busy": answer(503, {"error": "temporarily_unavailable"}),
            "page": answer(200, body=b"<html>" * 1000),
            "large": answer(200, body=b'{"access_token":"' + b"a" * (8 << 20) + b'"}'),
            "no type": answer(200, {"access_token": "access-5ecret"}),
            "cut": self._issue()[:-20],
            "another's": answer(200, self._issuer.metadata(issuer="http://127.0.0.1:1")),
            "gone": answer(404),
        }[what]


class Keys:
    """Issues the tokens of the gateway's own clients, and lies about its keys."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer

    async def move(self, name: str, said: dict[str, Any]) -> None:
        getattr(self, f"do_{name.replace(chr(39), '')}")()
        await trio.sleep(said["seconds"])
        self.calm()

    def calm(self) -> None:
        """Be honest."""
        self._issuer.down, self._issuer.body = False, None
        self._issuer.statuses.clear()
        self._issuer.answers.set()

    def do_down(self) -> None:
        self._issuer.down = True

    def do_hang(self) -> None:
        self._issuer.answers.clear()

    def do_moved(self) -> None:
        self._issuer.statuses |= {"/keys": 302, "/moved": 302}

    def do_none(self) -> None:
        self._issuer.body = b'{"keys": []}'

    def do_large(self) -> None:
        self._issuer.body = b'{"keys": [' + b"1," * 4_000_000 + b"1]}"

    def do_anothers(self) -> None:
        self._issuer.body = b'{"keys": [{"kty": "RSA", "kid": "rsa", "n": "AQAB", "e": "AQAB"}, 7, null]}'


class Processes:
    """Signals to a server that is a process."""

    def __init__(self, host: int) -> None:
        self._host = host
        self._stopped = set[int]()

    async def move(self, name: str, said: dict[str, Any]) -> None:
        for process in await trio.to_thread.run_sync(self._found):
            await self._send(process.pid, **said)

    async def _send(self, pid: int, what: str, seconds: float) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[f"SIG{what}"])
        if what == "STOP":
            self._stopped.add(pid)
            await trio.sleep(seconds)
            self.calm()

    def calm(self) -> None:
        """Let all go on."""
        while self._stopped:
            with suppress(ProcessLookupError):
                os.kill(self._stopped.pop(), signal.SIGCONT)

    def _found(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [child for child in psutil.Process(self._host).children() if str(LAB) in child.cmdline()]
        return []


class StateFile:
    """What others may do to the state file of a user while it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def move(self, name: str, said: dict[str, Any]) -> None:
        await getattr(self, f"do_{name}")(**said)

    async def do_lock(self, seconds: float) -> None:
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(self._path, timeout=0.1, isolation_level=None)
            try:
                connection.execute("BEGIN EXCLUSIVE")
                await trio.sleep(seconds)
            finally:
                connection.close()

    async def do_garbage(self) -> None:
        self._path.write_bytes(b"no database" * 1000)

    async def do_remove(self) -> None:
        self._path.unlink(missing_ok=True)

    async def do_rows(self) -> None:
        """Values of every table that are none."""
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(self._path, timeout=0.1)
            try:
                tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
                for table in tables:
                    columns = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
                    for column in columns:
                        with suppress(sqlite3.Error):
                            connection.execute(f'UPDATE "{table}" SET "{column}" = 4611686018427387904')
                connection.commit()
            finally:
                connection.close()

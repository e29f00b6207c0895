"""Issuers of tokens and keys, and servers that want tokens, which say anything; and who has to do with them."""

import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio
from attrs import evolve
from hypothesis import strategies as st

from mcp_nursery.actors.oauth import renewal
from mcp_nursery.actors.oauth.tokens import MemoryVault
from mcp_nursery.supervisor import NurseryError, ServerSpec, open_supervisor
from mcp_nursery.supervisor.gateway import OAuthResource, Refused
from mcp_nursery.supervisor.login.login import log_in
from mcp_nursery.supervisor.login.vault import vault_of
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from ..lab.hostile_issuer import SECRETS, Issuer, agree, issuing
from ..lab.token_issuer import TokenIssuer
from . import words
from .oracles import check_words, clean_log, short_turns

BOUND = 60.0
"""Seconds until it is over, on a machine that is very busy elsewhere."""
CONNECT = 2.0
"""Seconds of a start."""
KEYS = TokenIssuer()
"""Makes the tokens that clients bring. It does not listen: others are asked for keys."""
KEYS.url = ""


async def _log_in(issuer: Issuer, folder: Path) -> str:
    del folder
    return await _problem(lambda: log_in(issuer.spec(), MemoryVault(), agree))


async def _connect(issuer: Issuer, folder: Path) -> str:
    spec = issuer.spec(
        grant="client_credentials", client_id="mine", client_secret="client-5ecret", issuer=issuer.origin
    )
    return await _start(spec, SqliteStore(folder / "state.db"))


async def _renew(issuer: Issuer, folder: Path) -> str:
    """Tokens that were granted before are refused."""
    store, said = SqliteStore(folder / "state.db"), issuer.says.copy()
    issuer.behave()
    await log_in(issuer.spec(), vault_of(store), agree)
    issuer.says |= said
    return await _start(issuer.spec(), store)


async def _start(spec: ServerSpec, store: SqliteStore) -> str:
    async with open_supervisor([], state=store, gate=0) as supervisor:
        await supervisor.add_server(evolve(spec, connect_timeout=CONNECT))
        problem = await _problem(lambda: supervisor.reconnect(spec.name))
        return "\n".join({problem, *(status.error or "" for status in supervisor.status())})


async def _admit(issuer: Issuer, folder: Path) -> str:
    """A gateway's client brings a token."""
    del folder
    resource, token = OAuthResource(issuer.origin, "https://tools.example.com"), KEYS.token("x", iss=issuer.origin)
    scope = {"path": "/mcp", "headers": [(b"authorization", b"Bearer " + token.encode())]}
    try:
        await resource.authenticate(scope)
    except Refused as refused:
        return str(refused)
    raise AssertionError("it came in")


FLOWS = {"login": _log_in, "credentials": _connect, "renewal": _renew, "keys": _admit}
ISSUERS = st.tuples(st.sampled_from(sorted(FLOWS)), words.issuers)


def ask(generated: tuple[str, Mapping[str, bytes]]) -> None:
    """Hear what it says, and be well afterwards."""
    flow, said = generated
    with clean_log(*SECRETS), _impatient(), tempfile.TemporaryDirectory() as folder:
        trio.run(_ask, flow, said, Path(folder))


async def _ask(flow: str, said: Mapping[str, bytes], folder: Path) -> None:
    with trio.fail_after(BOUND):
        async with issuing() as issuer:
            filling = {words.ORIGIN: issuer.origin.encode(), words.ID: b"1", words.ANSWER: b"{}", words.SECRET: b"x"}
            for place, piece in said.items():
                for name, value in filling.items():
                    piece = piece.replace(name, value)  # noqa: PLW2901 - it grows
                issuer.says[place] = piece
            with short_turns():
                problem = await FLOWS[flow](issuer, folder)
            for line in problem.split("\n"):
                check_words(line, SECRETS)
            issuer.behave()
            tokens = await log_in(issuer.spec(), vault_of(SqliteStore(folder / "state.db")), agree)
            assert tokens.access == "access-5ecret"


async def _problem(work: Callable[[], Awaitable[object]]) -> str:
    try:
        await work()
    except NurseryError as error:
        return str(error)
    return ""


@contextmanager
def _impatient() -> Iterator[None]:
    before = renewal._RENEWAL_PAUSES
    renewal._RENEWAL_PAUSES = (0.01, 0.01)
    try:
        yield
    finally:
        renewal._RENEWAL_PAUSES = before

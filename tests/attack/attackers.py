"""The process of everybody who is hostile: it has servers ready, makes the moves, and hands in the ledger."""

import itertools
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define

from ..lab.hostile_issuer import issuing
from ..lab.raw_clients import NEW, OLD
from ..lab.token_issuer import TokenIssuer
from ..sweeps.peers import HANDSHAKE
from .channel import Channel
from .clients import AUDIENCE, Crowd, Pipe
from .grammar import Assault
from .others import Keys, Processes, StateFile, Tokens
from .servers import Guarded, Hostile, made, place_of


@define
class Camp:
    """Everybody hostile, by the name that moves have for them."""

    servers: dict[str, Hostile]
    tokens: Tokens
    keys: Keys
    crowd: Crowd
    pipes: itertools.cycle
    processes: Processes
    state: StateFile

    def of(self, who: str) -> Any:
        others = {
            "client": self.crowd,
            "issuer": self.tokens,
            "keys": self.keys,
            "process": self.processes,
            "store": self.state,
        }
        return next(self.pipes) if who == "pipe" else self.servers.get(who) or others[who]

    async def calm(self) -> None:
        """All of them are honest from now on, or gone."""
        for server in self.servers.values():
            await server.calm()
        for other in (self.tokens, self.keys, self.processes):
            other.calm()


async def attack(
    assault: Assault, channel: Channel, pipes: list[tuple[int, int]], folder: Path, plants: AbstractSet[str]
) -> None:
    """Wait for each word of who runs this, and do it."""
    servers: dict[str, Hostile] = {f"h{number}": made(kind) for number, kind in enumerate(assault.cast)}
    guarded = servers["guarded"] = Guarded(HANDSHAKE)
    async with AsyncExitStack() as stack:
        issuer, keys = await stack.enter_async_context(issuing()), stack.enter_context(TokenIssuer())
        tokens = Tokens(issuer, guarded)
        for server in servers.values():
            server.twice = "twice" in plants
            await stack.enter_async_context(server.serving())
        places = {name: place_of(server) for name, server in servers.items()}
        said = {"places": places, "issuer": keys.url, "token": keys.token(AUDIENCE)}
        host = await channel.ask(said)
        async with trio.open_nursery() as nursery:
            camp = Camp(
                servers,
                tokens,
                Keys(keys),
                Crowd(host["port"], host["guarded"], keys),
                itertools.cycle([Pipe(*pair, era) for pair, era in zip(pipes, (OLD, NEW), strict=True)]),
                Processes(host["pid"]),
                StateFile(folder / "state.db"),
            )
            for server in servers.values():
                server.moving = await nursery.start(_field)
            for pipe in (next(camp.pipes), next(camp.pipes)):
                nursery.start_soon(pipe.run)
            await channel.ask("ready")
            async with trio.open_nursery() as moves:
                moves.start_soon(_make, camp, assault, trio.current_time())
                await channel.hear()
                moves.cancel_scope.cancel()
            await camp.calm()
            await channel.ask("calm")
            nursery.cancel_scope.cancel()
    await channel.tell({name: dict(server.ledger) for name, server in servers.items()})


async def _field(task_status: Any) -> None:
    """Where the moves of a server go on."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


async def _make(camp: Camp, assault: Assault, began: float) -> None:
    async with trio.open_nursery() as nursery:
        for move in assault.moves:
            await trio.sleep_until(began + move.at)
            who = camp.of(move.who)
            field = who.moving if isinstance(who, Hostile) else nursery
            field.start_soon(partial(who.move, move.name, dict(move.words)))

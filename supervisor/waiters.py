"""Who waits for what becomes of a server: the commands that its keeper has taken and not answered yet."""

from mcp_nursery.actors.messages import ServerState

from .orders import Command
from .status import Snapshot


class Waiters:
    """Unanswered commands, by what answers them. Each event of the server's life is one method, and answers some."""

    def __init__(self) -> None:
        self.for_outcome: list[Command] = []
        """Of the attempt under way, or about to begin."""
        self.for_tools: list[Command] = []
        """That are being fetched from the connection there is."""
        self.for_next_tools: list[Command] = []
        """That the next connection brings: they are fresh enough."""
        self.for_closing: list[Command] = []
        """Of everything the incarnation owns."""

    def connected(self, now: Snapshot) -> None:
        """The attempt has succeeded, and brought tools."""
        _answer(self.for_next_tools, now)
        _answer(self.for_outcome, now)

    def relisted(self, now: Snapshot) -> None:
        """The tools were fetched again, or could not be."""
        _answer(self.for_tools, now)

    def begins_anew(self) -> None:
        """Another connection takes the place of this one, and fetches the tools anyway."""
        self.for_next_tools += self.for_tools
        self.for_tools.clear()

    def ended(self, now: Snapshot) -> None:
        """An incarnation has ended, and nobody had asked for that."""
        _answer(self.for_next_tools, now)
        if now.state is ServerState.WAITING:
            self.begins_anew()
        _answer(self.for_tools, now)
        _answer(self.for_outcome, now)

    def stopped(self, now: Snapshot) -> None:
        """No attempt will bring what they wait for."""
        _answer(self.for_tools, now)
        _answer(self.for_next_tools, now)
        _answer(self.for_outcome, now)

    def closed(self, now: Snapshot) -> None:
        """Nothing of an earlier connection is left."""
        _answer(self.for_closing, now)

    def left(self, now: Snapshot) -> None:
        """The keeper ends, and answers nobody any more."""
        self.stopped(now)
        self.closed(now)


def _answer(commands: list[Command], now: Snapshot) -> None:
    for command in commands:
        command.settle(now)
    commands.clear()

"""A host that answers whatever servers ask of it."""

import trio
from attrs import field, frozen
from mcp_types import CreateMessageResult, ElicitRequestURLParams, ElicitResult, TextContent

from mcp_nursery.supervisor.callbacks import Callbacks


@frozen
class Host:
    """Answers, and keeps what was asked."""

    asked: list = field(factory=list)
    """The parameters of each question."""
    logged: tuple = field(factory=lambda: trio.open_memory_channel(100))
    """Log messages: both ends of a channel."""

    @property
    def callbacks(self):
        return Callbacks(elicit=self._elicit, sample=self._sample, log=self._log)

    async def line(self, wanted):
        """The next log message that is wanted."""
        while not wanted(line := await self.logged[1].receive()):
            pass
        return line

    async def _elicit(self, message):
        self.asked.append(message.params)
        if isinstance(message.params, ElicitRequestURLParams):
            return ElicitResult(action="accept")
        return ElicitResult(action="accept", content={"name": "Ada", "check": True, "integer": 42})

    async def _sample(self, message):
        self.asked.append(message.params)
        said = f"I heard {message.params.messages[0].content.text}"
        content = TextContent(type="text", text=said)
        return CreateMessageResult(role="assistant", content=content, model="parrot", stop_reason="endTurn")

    async def _log(self, message):
        self.logged[0].send_nowait(message.params)

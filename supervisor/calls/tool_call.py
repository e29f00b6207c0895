"""A call of a tool."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import NotApproved, NurseryError, UnknownTool
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import CALL_TOOL
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import Factory, define, field

from ..tools.tool import Tool
from ..tools.tool_result import ToolResult, tool_result
from .approvals import check_agreed
from .call import ActiveCall, encode_arguments

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_encoded: Final = lru_cache(maxsize=1024)(encode)
"""A name as JSON."""


@define(eq=False, repr=False)
class ToolCall(ActiveCall[Tool, ToolResult]):
    """One tool call under way.

    Raises:
        InvalidArguments: `asked.arguments` is not a JSON object.
    """

    method = CALL_TOOL
    awaited: ClassVar[str | None] = None
    lists: ClassVar[Collection[ListKind]] = frozenset([ListKind.TOOLS])

    arguments: bytes | None = field(
        default=Factory(
            lambda call: encode_arguments(call.asked.arguments, call.asked.name, call.asked.server), takes_self=True
        ),
        init=False,
    )
    """The arguments, encoded once."""

    @property
    def tool(self) -> Tool:
        """The tool that is called, once it was found."""
        assert self.found is not None
        return self.found

    def find(self) -> Tool | None:
        """The tool, as it is known now.

        Raises:
            NotApproved: It is not the one that was agreed to.
            UnknownServer: Its server was removed after the agreement.
            SupervisorClosed: The block was left after the agreement.
        """
        tool = self.servers.catalogue.value.find(self.asked.name, self.asked.server)
        if self.agreed is not None and tool is not None:
            check_agreed(self.agreed, tool, self.servers)
        return tool

    @override
    def find_again(self) -> Tool | None:
        tool = self.servers.catalogue.value.find(self.tool.tool, self.tool.server)  # its public name may be another now
        if self.agreed is not None and tool is not None:
            check_agreed(self.agreed, tool, self.servers)
        return tool

    @override
    def former_owner(self) -> str | None:
        departed = self.servers.catalogue.value.departed(self.asked.name)
        return None if departed is None else departed[0]

    @override
    def check_allowed(self) -> None:
        if held := self.servers.catalogue.value.held_back(self.asked.name, self.asked.server):
            raise NotApproved(held.server, held.tool, held.why)

    def listers(self) -> Sequence[str]:
        """The servers that can have a tool of this public name; or the one that was named, unless its user does not
        want this tool."""
        server = self.asked.server
        if server is None:
            return self.possible_owners()
        return [server] if self.servers.snapshot(server).value.spec.offers(self.asked.name) else []

    @override
    def possible_owners(self) -> Sequence[str]:
        return self.servers.owners_of(self.asked.name, self.servers.snapshots)

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """`UnknownTool`, with near names."""
        asked = self.asked
        near = self.servers.catalogue.value.near(asked.name, asked.server)
        return UnknownTool(asked.name, server=asked.server, near=near, down=down)

    @property
    @override
    def tool_name(self) -> str | None:
        return None if self.found is None else self.found.tool

    @property
    def repeatable(self) -> bool:
        """True if trusted hints allow it."""
        return self.tool.hints.repeatable

    @property
    def name(self) -> str:
        """The server's own name of the tool, or else the caller's name of it."""
        if self.found is not None:
            return self.found.tool
        departed = self.servers.catalogue.value.departed(self.asked.name, self.asked.server)
        return self.asked.name if departed is None else departed[1]

    def params(self) -> bytes:
        """Name and arguments."""
        assert self.found is not None  # it was found
        name = _encoded(self.found.tool)
        return (
            b'{"name":%b}' % name if self.arguments is None else b'{"name":%b,"arguments":%b}' % (name, self.arguments)
        )

    def given(self, result: "CallToolResult", incarnation: int, *, small: bool) -> Steps[ToolResult]:
        """The result, rendered and scanned."""
        tool = self.tool
        return tool_result(
            result,
            server=tool.server,
            tool=tool.tool,
            max_chars=tool.max_result_chars,
            duration=self.duration,
            incarnation=incarnation,
            small=small,
        )

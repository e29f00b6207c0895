"""The approval of a model's call, by a person or a standing decision, before it is made."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from mcp_nursery.actors.errors import NotApproved, UnknownTool
from mcp_nursery.actors.jsonrpc.codec import decode
from mcp_nursery.actors.records import field, frozen

from ..servers.view import ServerView
from ..tools.approval_rules import Agreement, Approval, ApprovalRequest, ApprovalRules, Approve
from ..tools.tool import Tool, without_placeholders
from ..transports import Transport
from .call import encode_arguments

logger: Final = logging.getLogger(__name__)

_NO_RULES: Final = ApprovalRules()


@frozen(eq=False)
class Approvals:
    """The decisions about the calls of models, with a memory of what was allowed for good."""

    _approve: Approve | None
    """The callback that asks; None: calls that need approval are refused."""
    _standing: ApprovalRules | None
    """Standing decisions, which take precedence; None if none were given."""
    _drop_placeholders: bool = field(kw_only=True, alias="drop_placeholders")
    """True if empty optional arguments are left out."""
    _allowed: dict[tuple[str, str], Transport] = field(factory=dict[tuple[str, str], Transport], init=False, repr=False)
    """The servers and definitions that were allowed for good, and the transport of each server then. By another one it
    may be quite another server."""
    _warned_of: set[str] = field(factory=set[str], init=False)
    """Servers for which it was logged that there is nobody to ask."""

    @property
    def given(self) -> bool:
        """True if its host has given `approve` or rules."""
        return self._standing is not None or self._approve is not None

    async def approved(
        self, tool: Tool, arguments: Mapping[str, Any] | None, servers: ServerView
    ) -> tuple[Agreement, Mapping[str, Any] | None]:
        """The agreement to the tool as it is declared now, and the arguments as they are to be sent, whatever becomes
        of the given ones meanwhile.

        Raises:
            InvalidArguments: The arguments cannot be sent: nobody is asked.
            NotApproved: Denied, held back, or nobody to ask.
            TypeError: `approve` returned no `Approval`.
            UnknownServer: Its server was removed: nobody is asked.
            UnknownTool: It is not for models.
        """
        encoded = encode_arguments(arguments, tool.tool, tool.server)
        arguments = None if encoded is None else decode(encoded)
        servers.snapshot(tool.server)
        if arguments:
            arguments = tool.declared_arguments(arguments)  # of the tool that the model was shown
        tool = _as_declared_now(tool, servers)
        if not tool.for_models:
            raise UnknownTool(tool.name, near=servers.catalogue.value.near(tool.name))
        if arguments and self._drop_placeholders:
            arguments = without_placeholders(arguments, tool.input_schema)
        agreed = await self.agree(tool, arguments, servers, declared=lambda: _as_declared_now(tool, servers))
        return agreed, arguments

    async def agree_for(
        self, tool: Tool, arguments: Mapping[str, Any] | None, servers: ServerView, approve: Approve
    ) -> Agreement:
        """Have a call agreed to that is made on behalf of a client: where the host has no `approve`, this one is asked.

        Raises:
            InvalidArguments, NotApproved: As for `approved`.
        """
        encode_arguments(arguments, tool.tool, tool.server)
        declared = partial(_as_declared_now, tool, servers)
        return await self.agree(tool, arguments, servers, declared=declared, approve=self._approve or approve)

    async def agree(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        servers: ServerView,
        *,
        declared: Callable[[], Tool] | None = None,
        approve: Approve | None = None,
    ) -> Agreement:
        """Have this call agreed to, by a standing decision or a person, who is asked again if the server is reached in
        another way by then; `declared`: returns the tool as its server declares it by then; `approve`: asked in place
        of the host's.

        Raises:
            NotApproved: Denied, held back, changed meanwhile, or nobody to ask.
            TypeError: `approve` returned no `Approval`.
            UnknownServer: Its server was removed.
        """
        rules = self._standing or _NO_RULES
        allowed = tool.server, tool.definition_hash
        while True:
            transport = _transport_of(tool, servers)
            remembered = allowed in self._allowed and self._allowed[allowed] == transport
            decision = rules.decide(tool, remembered=remembered)
            if decision is None:
                decision = await self._ask(tool, arguments, servers, approve or self._approve)
                if declared is not None and declared().definition_hash != tool.definition_hash:
                    raise NotApproved(tool.server, tool.tool, "its definition changed while it was asked about")
                if decision is not Approval.DENY and _transport_of(tool, servers) != transport:
                    continue
            break
        if decision is Approval.DENY:
            raise NotApproved(tool.server, tool.tool, "denied")
        if decision is Approval.ALLOW_ALWAYS:
            self._allowed[allowed] = transport
        return Agreement(tool.server, tool.tool, tool.definition_hash, transport)

    async def _ask(
        self, tool: Tool, arguments: Mapping[str, Any] | None, servers: ServerView, approve: Approve | None
    ) -> Approval:
        if approve is None:
            if tool.server not in self._warned_of:
                self._warned_of.add(tool.server)
                logger.warning(
                    "%s: tool %r needs approval, and there is nobody to ask: open_supervisor takes approve= and "
                    "approval_rules= (logged once a server)",
                    tool.server,
                    tool.tool,
                )
            raise NotApproved(tool.server, tool.tool, "nobody to ask", advice="open_supervisor was given no approve=")
        given: dict[str, Any] = decode(encode_arguments(arguments, tool.tool, tool.server) or b"{}")
        shown = servers.redactor(tool.server).value(given)
        answer = await approve(ApprovalRequest(tool, given, shown))
        try:
            return Approval(answer)
        except ValueError:
            raise TypeError(f"approve= returned {answer!r:.80}, not an Approval; nothing was called") from None


def _transport_of(tool: Tool, servers: ServerView) -> Transport:
    """The transport by which the tool's server is reached now.

    Raises:
        UnknownServer: Its server was removed.
    """
    return servers.snapshot(tool.server).value.spec.transport


def _as_declared_now(tool: Tool, servers: ServerView) -> Tool:
    """The server's present tool of this name: the person is asked about this one, as it would be called.

    Raises:
        NotApproved: It is held back.
    """
    catalogue = servers.catalogue.value
    if held := catalogue.held_back(tool.tool, tool.server):
        raise NotApproved(held.server, held.tool, held.why)
    return catalogue.find(tool.tool, tool.server) or tool


def check_agreed(agreed: Agreement, tool: Tool | None, servers: ServerView) -> None:
    """Refuse another definition of the tool than the one that was agreed to, or none.

    Raises:
        NotApproved: The tool is not declared so now, or its server is reached in another way.
        UnknownServer: Its server was removed.
        SupervisorClosed: The block was left.
    """
    check_transport(agreed, servers)
    if agreed.definition_hash is None:
        return
    if tool is None:
        raise NotApproved(agreed.server, agreed.tool, "its server does not declare it any more")
    if tool.definition_hash != agreed.definition_hash:
        raise NotApproved(agreed.server, agreed.tool, "its definition has changed since it was agreed to")


def check_transport(agreed: Agreement, servers: ServerView) -> None:
    """Refuse another transport of the server than the one that was agreed to.

    Raises:
        NotApproved: The server is reached in another way.
        UnknownServer: The server was removed.
        SupervisorClosed: The block was left.
    """
    if servers.snapshot(agreed.server).value.spec.transport != agreed.transport:
        raise NotApproved(agreed.server, agreed.tool, "its server is reached in another way since it was agreed to")

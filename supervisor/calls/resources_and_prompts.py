"""Calls other than of tools: a resource is read, a prompt is filled in, an argument is completed. All are safe to
repeat."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import trio

from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import ContestedResource, NurseryError, UnknownPrompt, UnknownResource
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps, at_once
from mcp_nursery.actors.records import define

from ..decisions.suggestions import near_names
from ..resources import (
    Completion,
    Prompt,
    PromptResult,
    ResourceResult,
    ResourceTemplate,
    prompt_result,
    resource_result,
)
from ..servers.view import ServerView
from ..tools.approval_rules import Agreement
from .approvals import check_transport
from .attempts import deliver
from .call import Call
from .destination import Destination, DestinationCall

if TYPE_CHECKING:
    from mcp_types import CompleteResult, GetPromptResult, ReadResourceResult


@define(eq=False, repr=False)
class ResourceRead(DestinationCall[ResourceResult]):
    """One resource that is being read."""

    method = "resources/read"
    lists: ClassVar[Collection[ListKind]] = frozenset([ListKind.RESOURCES, ListKind.TEMPLATES])

    def find(self) -> Destination | None:
        """The server that was named; else the only one that claims the URI.

        Raises:
            NotApproved: The server is reached in another way since the agreement.
        """
        if self.agreed is not None:
            check_transport(self.agreed, self.servers)
        uri = self.asked.name
        server = self.asked.server or self.former_owner()
        return None if server is None else self.place(server, uri)

    def _claimants(self) -> Steps[list[str]]:
        return self.servers.claimants_of(self.asked.name)

    @override
    def prepare(self) -> Steps[None]:
        if self.asked.server is None:
            yield from self._claimants()

    @override
    def check_allowed(self) -> None:
        snapshots, claimants = self.servers.snapshots, [] if self.asked.server else at_once(self._claimants())
        if len([name for name in claimants if not snapshots[name].value.is_unknown]) > 1:
            raise ContestedResource(self.asked.name, claimants)

    @override
    def former_owner(self) -> str | None:
        claimants = at_once(self._claimants())
        return claimants[0] if len(claimants) == 1 else None

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """`UnknownResource`, with near URIs; `ContestedResource` if a server in its first start may have it,
        too."""
        if self.asked.server is None and len(claimants := at_once(self._claimants())) > 1:
            return ContestedResource(self.asked.name, claimants)
        uri, listed = self.asked.name, self.servers.catalogue.value.resources
        near = near_names(uri, (resource.uri for resource in listed))
        return UnknownResource(uri, server=self.asked.server, near=near, down=down)

    @override
    def encode(self) -> bytes:
        return self.as_json({"uri": self.asked.name})

    def params(self) -> bytes:
        """The URI."""
        return self.encoded

    def given(self, result: "ReadResourceResult", incarnation: int, *, small: bool) -> Steps[ResourceResult]:
        """The contents, rendered and scanned. Its server may be forgotten by now."""
        assert self.found is not None  # it was found
        return resource_result(
            result,
            uri=self.name,
            server=self.server_name,
            duration=self.duration,
            incarnation=incarnation,
            max_chars=self.found.max_result_chars,
            asked=self.was_asked,
            small=small,
        )


async def owner_of(call: Call, servers: ServerView) -> str:
    """The server that a read is for: the one that was named, or the only one that has the resource, now or once every
    first attempt is over. Waits for the time of the call at most, and sends nothing.

    Raises:
        ContestedResource: Several servers have the resource, and none was named.
        UnknownResource: No server has the resource.
        SupervisorClosed: The block is being left.
    """
    read = ResourceRead(call, servers)
    await by_turns(read.prepare())
    owner = call.server or read.former_owner()
    if owner is None:
        read.check_allowed()
        with trio.move_on_after(servers.default_timeout if call.timeout is None else call.timeout):
            await servers.update_lists(None, read.lists)
        await by_turns(read.prepare())
        owner = read.former_owner()
    if owner is None:
        read.check_allowed()
        snapshots = servers.snapshots.items()
        raise read.unknown([name for name, one in snapshots if one.value.state is not ServerState.CONNECTED])
    return owner


async def read_resource(
    call: Call, servers: ServerView, agreed: Agreement | None = None, *, refresh: bool = False
) -> ResourceResult:
    """Read a resource: from memory, as long as it stays true by its server's word, unless the caller wants it read
    anew.

    Raises:
        NurseryError: See `Supervisor.read_resource`.
    """
    read = ResourceRead(call, servers, agreed=agreed)
    await by_turns(read.prepare())
    place = read.find()
    reads = None if place is None or not place.available or call.meta else servers.registry.reads_of(place.server)
    if reads is not None and place is not None and not refresh:
        known = reads.find(call.name, place.max_result_chars)
        if known is not None:
            await trio.lowlevel.checkpoint()
            servers.check_open()
            return known
    result = await deliver(read)
    if reads is not None:
        answer = read.slot.outcome
        reads.keep(result, answer.size if isinstance(answer, Answered) else 0)
    return result


@define(eq=False, repr=False)
class PromptGet(DestinationCall[PromptResult]):
    """One prompt that is being filled in."""

    method = "prompts/get"
    lists: ClassVar[Collection[ListKind]] = frozenset([ListKind.PROMPTS])

    def find(self) -> Destination | None:
        """The prompt, as it is known now."""
        prompt = self.servers.catalogue.value.find_prompt(self.asked.name, self.asked.server)
        return None if prompt is None else self.place(prompt.server, prompt.prompt)

    @override
    def former_owner(self) -> str | None:
        departed = self._departed()
        return None if departed is None else departed[0]

    @property
    @override
    def name(self) -> str:
        departed = self._departed() if self.found is None and self.asked.server is None else None
        return super().name if departed is None else departed[1]

    def _departed(self) -> tuple[str, str] | None:
        return self.servers.catalogue.value.departed_prompt(self.asked.name)

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """`UnknownPrompt`, with near names."""
        asked, prompts = self.asked, self.servers.catalogue.value.prompts
        if asked.server is None:
            known = [prompt.name for prompt in prompts]
        else:
            known = [prompt.prompt for prompt in prompts if prompt.server == asked.server]
        return UnknownPrompt(asked.name, server=asked.server, near=near_names(asked.name, known), down=down)

    @override
    def encode(self) -> bytes:
        return b"" if self.asked.arguments is None else self.strings("arguments of a prompt", self.asked.arguments)

    def params(self) -> bytes:
        """Name and arguments."""
        name = self.as_json(self.name)
        return b'{"name":%b,"arguments":%b}' % (name, self.encoded) if self.encoded else b'{"name":%b}' % name

    def given(self, result: "GetPromptResult", incarnation: int, *, small: bool) -> Steps[PromptResult]:
        """The messages, scanned."""
        return prompt_result(
            result,
            server=self.server_name,
            prompt=self.name,
            duration=self.duration,
            incarnation=incarnation,
            small=small,
        )


@define(eq=False, repr=False)
class Completing(DestinationCall[Completion]):
    """One argument of a prompt or a template that is being completed."""

    method = "completion/complete"

    ref: Prompt | ResourceTemplate
    argument: str
    value: str
    context: Mapping[str, str] | None

    def find(self) -> Destination | None:
        """The destination: its server knows whether it still has the object."""
        return self.place(self.ref.server, "")

    @override
    def former_owner(self) -> str | None:
        return self.ref.server

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """An error that is never raised: the server is named."""
        return UnknownPrompt(self.asked.name, server=self.asked.server, down=down)

    @override
    def encode(self) -> bytes:
        if isinstance(self.ref, Prompt):
            ref = {"type": "ref/prompt", "name": self.ref.prompt}
        else:
            ref = {"type": "ref/resource", "uri": self.ref.uri_template}
        params: dict[str, object] = {"ref": ref, "argument": {"name": self.argument, "value": self.value}}
        if self.context is not None:
            self.strings("arguments that are known already", self.context)
            params["context"] = {"arguments": dict(self.context)}
        return self.as_json(params)

    def params(self) -> bytes:
        """The argument to be completed, and its text so far."""
        return self.encoded

    def given(self, result: "CompleteResult", incarnation: int, *, small: bool) -> Steps[Completion]:
        """The values."""
        del incarnation, small
        yield
        found = result.completion
        return Completion(tuple(found.values), found.total, bool(found.has_more), self.server_name)

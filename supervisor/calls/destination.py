"""Requests whose object is a server, and no tool of it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import InvalidArguments, NurseryError, UnknownResource
from mcp_nursery.actors.jsonrpc.codec import encode_exactly
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import define, field, frozen

from ..catalogue.server_tools import ServerTools
from .call import ActiveCall, R


@frozen
class Destination:
    """The object of a request that is about no tool."""

    server: str
    name: str
    """The name that the server has for it."""
    available: bool
    """True if the server is connected."""
    max_result_chars: int
    """The characters that a model gets of one result at most."""
    tools: ServerTools | None = field(default=None, repr=False)
    """The tools that the server had when this was found."""


@define(eq=False, repr=False)
class DestinationCall(ActiveCall[Destination, R]):
    """The common part of such requests.

    Raises:
        InvalidArguments: The parameters have no JSON form.
    """

    encoded: bytes = field(default=b"", init=False)
    """The parameters, without a name that is not known yet, encoded once."""

    def __attrs_post_init__(self) -> None:
        self.encoded = self.encode()

    @property
    def repeatable(self) -> bool:
        """True: such requests only read."""
        return True

    @property
    @override
    def name(self) -> str:
        return self.asked.name if self.found is None else self.found.name

    def place(self, server: str, name: str) -> Destination | None:
        """The destination of this name at this server; None if the server is in a state that shows nothing."""
        observable = self.servers.snapshots.get(server)
        if observable is None or not observable.value.keeps_tools or server in self.servers.registry.leaving:
            return None
        snapshot, tools = observable.value, self.servers.catalogue.value.parts.get(server)
        available = snapshot.state is ServerState.CONNECTED
        return Destination(server, name, available, snapshot.spec.max_result_chars, tools)

    def encode(self) -> bytes:
        """The parameters of the request, as JSON."""
        return b"{}"

    def as_json(self, value: object) -> bytes:
        """A part of the parameters as JSON.

        Raises:
            InvalidArguments: It has no JSON form.
        """
        try:
            return encode_exactly(value)
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"this cannot be sent as JSON: {error}"
            raise InvalidArguments(problem, server=self.asked.server, tool=self.asked.name) from None

    def strings(self, what: str, values: object) -> bytes:
        """An object of texts as JSON, for prompts and completions.

        Raises:
            InvalidArguments: The values are not texts by name.
        """
        if isinstance(values, Mapping):
            given = dict(cast("Mapping[object, object]", values))
            if all(isinstance(one, str) for pair in given.items() for one in pair):
                return self.as_json(given)
        problem = f"the {what} must be texts by name, not {values!r:.80}"
        raise InvalidArguments(problem, server=self.asked.server, tool=self.asked.name)


@define(eq=False, repr=False)
class ServerRequest(DestinationCall[dict[str, Any]]):
    """A request of any method to the server that is named, whose answer is given as it came."""

    method: str
    given_params: Mapping[str, Any]

    def find(self) -> Destination | None:
        """The server."""
        return self.place(self.server_name, self.asked.name)

    @override
    def former_owner(self) -> str | None:
        return self.asked.server

    def unknown(self, down: Sequence[str]) -> NurseryError:
        """An error that is never raised: the server is named."""
        return UnknownResource(self.asked.name, server=self.asked.server, down=down)

    @override
    def encode(self) -> bytes:
        return self.as_json(self.given_params)

    def params(self) -> bytes:
        """The parameters as they were given."""
        return self.encoded

    def given(
        self, result: dict[str, Any] | tuple[dict[str, Any], str], incarnation: int, *, small: bool
    ) -> Steps[dict[str, Any]]:
        """The answer as it came."""
        del incarnation, small
        yield
        return result[0] if isinstance(result, tuple) else result

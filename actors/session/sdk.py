"""The SDK's session, over the endpoint that ours runs: for what takes the SDK's models and callbacks."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from attrs import frozen
from mcp.client import ClientSession
from mcp_types import DiscoverResult, Implementation, InitializeResult

from ..callbacks import Host
from ..jsonrpc.dispatcher import Endpoint
from .base import News
from .dispatcher import SideDispatcher
from .host_requests import open_callbacks
from .listening import taking


@frozen(eq=False)
class SdkSession:
    """A session of the SDK, and what reaches it."""

    session: ClientSession
    dispatcher: SideDispatcher

    def adopt(self, hello: dict[str, Any]) -> None:
        """Speak as this answer allows, to `initialize` or to `server/discover`."""
        model = InitializeResult if "protocolVersion" in hello else DiscoverResult
        self.session.adopt(model.model_validate(hello, by_name=False))


@asynccontextmanager
async def open_sdk_session(
    endpoint: Endpoint, host: Host, news: News, client_info: Mapping[str, str]
) -> AsyncGenerator[SdkSession, None]:
    """Open one until the block is left. The server may ask what `host` offers."""
    dispatcher = SideDispatcher(endpoint)
    info = Implementation.model_validate(client_info)
    async with (
        open_callbacks(host) as callbacks,
        ClientSession(dispatcher=dispatcher, client_info=info, message_handler=taking(news), **callbacks) as session,
    ):
        yield SdkSession(session, dispatcher)

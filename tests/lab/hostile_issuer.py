"""A server that wants OAuth, and who issues its tokens, both of which do as they are told."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import trio
from attrs import define, field

from mcp_nursery.supervisor import HttpTransport, OAuth, ServerSpec
from mcp_nursery.supervisor.callbacks import AuthorizationRequest

from .processes import AT_ONCE

PROTECTED = "/.well-known/oauth-protected-resource/mcp"
METADATA = "/.well-known/oauth-authorization-server"
SECRETS = ("access-5ecret", "refresh-5ecret", "client-5ecret", "code-5ecret")
"""All that they give away, and all of what they are given."""


def answer(status: int = 200, document: object = None, *, body: bytes | None = None, more: str = "") -> bytes:
    """Of text, or of a document."""
    body = json.dumps(document).encode() if body is None else body
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@define
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


Answer = bytes | Callable[[Asked], bytes | Awaitable[bytes]]


@define
class Issuer:
    """`says` has an answer for each path, or what makes one of a request."""

    says: dict[str, Answer] = field(factory=dict[str, Answer])
    asked: list[Asked] = field(factory=list[Asked])
    port: int = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def count(self, path: str) -> int:
        return sum(asked.path == path for asked in self.asked)

    def metadata(self, **other: Any) -> dict[str, Any]:
        said = {name: f"{self.origin}/{path}" for name, path in ENDPOINTS.items()}
        return {"issuer": self.origin, "code_challenge_methods_supported": ["S256"], **said, **other}

    def token(self, **other: Any) -> dict[str, Any]:
        said = {"access_token": "access-5ecret", "refresh_token": "refresh-5ecret", "token_type": "Bearer"}
        return {**said, "expires_in": 3600, "scope": "read", **other}

    def behave(self) -> None:
        """Do as one does."""
        client = {
            "client_id": "me",
            "client_secret": "client-5ecret",
            "token_endpoint_auth_method": "client_secret_post",
        }
        self.refuse()
        self.says[PROTECTED] = answer(200, {"resource": self.url, "authorization_servers": [self.origin]})
        self.says[METADATA] = answer(200, self.metadata())
        self.says["/register"] = lambda asked: answer(201, {**json.loads(asked.body), **client})
        self.says["/token"] = answer(200, self.token())

    def refuse(self, **said: str) -> None:
        """Refuse all that is asked of the server itself."""
        parts = ", ".join(f'{name}="{value}"' for name, value in said.items())
        self.says["/mcp"] = answer(401, {}, more=f"www-authenticate: Bearer {parts}\r\n")

    def spec(self, name: str = "far", **words: Any) -> ServerSpec:
        return ServerSpec(name, HttpTransport(self.url, auth=OAuth(**words)), policy=AT_ONCE)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                received += (part := await stream.receive_some(1 << 16))
                if not part:
                    return
            head, _, body = received.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            while len(body) < int(headers.get("content-length", "0")):
                body += await stream.receive_some(1 << 16)
            method, target, _ = first.split(" ")
            asked = Asked(method, target, headers, body)
            self.asked.append(asked)
            found = self.says.get(asked.path, answer(404, {}))
            try:
                said = found(asked) if callable(found) else found
                await stream.send_all(said if isinstance(said, bytes) else await said)
                await stream.send_eof()
            except trio.BrokenResourceError:
                return


ENDPOINTS = {"authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register"}


@asynccontextmanager
async def issuing() -> AsyncGenerator[Issuer, None]:
    """One that behaves until it is told otherwise."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    issuer = Issuer(port=listeners[0].socket.getsockname()[1])
    issuer.behave()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, issuer._serve, listeners)
        yield issuer
        nursery.cancel_scope.cancel()


async def agree(request: AuthorizationRequest) -> str:
    """A person who agrees at once, and brings what the browser was sent back with."""
    state = httpx2.URL(request.url).params["state"]
    return f"{request.redirect_uri}?code=code-5ecret&state={state}"

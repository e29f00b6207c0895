"""A server that wants OAuth, and who issues its tokens, both of which do as they are told."""

import json
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import httpx2
import trio
from attrs import define, field

from mcp_nursery.supervisor import HttpTransport, OAuth, ServerSpec

from .harness import AT_ONCE

PROTECTED = "/.well-known/oauth-protected-resource/mcp"
METADATA = "/.well-known/oauth-authorization-server"
SECRETS = ("access-5ecret", "refresh-5ecret", "client-5ecret", "code-5ecret")
"""All that they give away, and all of what they are given."""


def answer(status=200, document=None, *, body=None, more=""):
    """Of text, or of a document."""
    body = json.dumps(document).encode() if body is None else body
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@define
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict
    body: bytes

    @property
    def path(self):
        return urlsplit(self.target).path

    @property
    def form(self):
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


@define
class Issuer:
    """`says` has an answer for each path, or what makes one of a request."""

    says: dict = field(factory=dict)
    asked: list = field(factory=list)
    port: int = 0

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"{self.origin}/mcp"

    def count(self, path):
        return sum(asked.path == path for asked in self.asked)

    def metadata(self, **other):
        said = {name: f"{self.origin}/{path}" for name, path in ENDPOINTS.items()}
        return {"issuer": self.origin, "code_challenge_methods_supported": ["S256"], **said, **other}

    def token(self, **other):
        said = {"access_token": "access-5ecret", "refresh_token": "refresh-5ecret", "token_type": "Bearer"}
        return {**said, "expires_in": 3600, "scope": "read", **other}

    def behave(self):
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

    def refuse(self, **said):
        """Refuse all that is asked of the server itself."""
        parts = ", ".join(f'{name}="{value}"' for name, value in said.items())
        self.says["/mcp"] = answer(401, {}, more=f"www-authenticate: Bearer {parts}\r\n")

    def spec(self, name="far", **words):
        return ServerSpec(name, HttpTransport(self.url, auth=OAuth(**words)), policy=AT_ONCE)

    async def _serve(self, stream):
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
            asked = Asked(*first.split(" ")[:2], headers, body)
            self.asked.append(asked)
            said = self.says.get(asked.path, answer(404, {}))
            try:
                said = said(asked) if callable(said) else said
                await stream.send_all(said if isinstance(said, bytes) else await said)
                await stream.send_eof()
            except trio.BrokenResourceError:
                return


ENDPOINTS = {"authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register"}


@asynccontextmanager
async def issuing():
    """One that behaves until it is told otherwise."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    issuer = Issuer(port=listeners[0].socket.getsockname()[1])
    issuer.behave()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, issuer._serve, listeners)
        yield issuer
        nursery.cancel_scope.cancel()


async def agree(request):
    """A person who agrees at once, and brings what the browser was sent back with."""
    state = httpx2.URL(request.url).params["state"]
    return f"{request.redirect_uri}?code=code-5ecret&state={state}"

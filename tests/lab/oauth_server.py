"""A server that wants OAuth, in a process of its own, and a person without a browser."""

import re
from pathlib import Path
from typing import Any

import httpx2

from mcp_nursery.supervisor import HttpTransport, OAuth, ServerSpec, SseTransport
from mcp_nursery.supervisor.callbacks import AuthorizationRequest

from . import PROGRAMS
from .forked import Forked
from .processes import AT_ONCE, Journal
from .remote import await_answer, free_port

SERVER = PROGRAMS / "nursery_oauth.py"
PLATFORM = "the-key-of-a-platform-that-signs-for-its-workloads"
WORKLOAD = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class OAuthServer:
    """See tests/lab/programs/nursery_oauth.py."""

    def __init__(self, folder: Path, transport: str = "http", *, dpop: bool = False) -> None:
        self.transport = transport
        self.dpop = dpop
        self.port = free_port()
        self.journal = Journal(folder / f"journal-{self.port}")
        flags = {"port": self.port, "transport": transport, "journal": self.journal.path, "platform": PLATFORM}
        flags |= {"dpop": "yes"} if dpop else {}
        self.process = Forked(SERVER, *(f"{name}={value}" for name, value in flags.items()))
        await_answer(self.port, self.process.is_running)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/{'sse' if self.transport == 'sse' else 'mcp'}"

    def spec(self, name: str = "far", /, *, auth: OAuth | None = None, **settings: Any) -> ServerSpec:
        make = SseTransport if self.transport == "sse" else HttpTransport
        transport = make(self.url, auth=auth or OAuth(dpop=self.dpop), **settings)
        return ServerSpec(name, transport, policy=AT_ONCE)

    def control(self, **wanted: Any) -> None:
        httpx2.post(f"{self.origin}/control", json=wanted, timeout=30).raise_for_status()

    def tokens(self, grant: str) -> int:
        """How often a token was asked for so."""
        return self.journal.count(f"token_{grant}")

    def kill(self) -> None:
        self.process.kill()


class Person:
    """Agrees to everything, as a browser would have it done."""

    def __init__(self, pastes: bool = False) -> None:
        self.asked: list[AuthorizationRequest] = []
        self.pastes = pastes

    async def __call__(self, request: AuthorizationRequest) -> str | None:
        self.asked.append(request)
        async with httpx2.AsyncClient(timeout=30) as browser:
            page = await browser.get(request.url, follow_redirects=True)
            link = re.search(r'href="([^"]+)"', page.text)
            assert link is not None
            back = await browser.get(page.url.join(link[1]))
            if self.pastes:
                return str(back.headers["location"])
            done = await browser.get(back.headers["location"])
            assert (done.status_code, "go back" in done.text) == (200, True)
        return None

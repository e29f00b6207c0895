"""An environment that holds anything: proxies, exceptions, authorities; and servers that are reached in it."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import trio
import trustme
from attrs import frozen
from hypothesis import strategies as st

from mcp_nursery.actors.http.environment import (
    ASKED_FOR_LOOPBACK,
    AUTHORITY_VARIABLES,
    PROXY_VARIABLES,
    EnvironmentUnusable,
    proxy_for,
    shown_variables,
)
from mcp_nursery.supervisor import (
    HttpTransport,
    MemoryStore,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    SseTransport,
    WebSocketTransport,
    open_supervisor,
)

from ..lab.proxies import lab_proxy
from ..sweeps.sweep import staged
from . import words
from .oracles import check_words, clean_log, short_turns

SECRET = "5ecret"
BOUND = 60.0
"""Seconds until it is over, on a machine that is very busy elsewhere."""
CONNECT = 1.0
"""Seconds of a start."""
MAKERS = {"http": HttpTransport, "sse": SseTransport, "ws": WebSocketTransport}
NEAR = {"http": "http-json", "sse": "sse", "ws": "ws"}
PLACES = ["far.test/mcp", "far.test:8443/mcp", "[2001:db8::1]/", "127.0.0.1:1/mcp", "localhost:1/", "10.1.2.3:1/"]


@frozen
class Surroundings:
    """An environment, a server that is far, and what a proxy in between says."""

    variables: Mapping[str, str]
    """See `words.variables`."""
    kind: str
    place: str
    secured: bool
    """Whether it speaks TLS."""
    said: bytes

    @property
    def url(self) -> str:
        return f"{MAKERS[self.kind].schemes[self.secured]}://{self.place}"


ENVIRONMENTS = st.builds(
    Surroundings,
    words.variables,
    st.sampled_from(sorted(MAKERS)),
    st.sampled_from(PLACES),
    st.booleans(),
    words.documents,
)


def live_in(surroundings: Surroundings) -> None:
    """Reach a server nearby in this environment, and try one that is far."""
    with tempfile.TemporaryDirectory() as folder, clean_log(SECRET):
        _furnish(Path(folder))
        trio.run(_live_in, folder, surroundings)


def _furnish(folder: Path) -> None:
    (folder / "empty").touch()
    (folder / "text").write_text("no certificate")
    (folder / "der").write_bytes(bytes(range(256)) * 40)
    os.mkfifo(folder / "pipe")
    trustme.CA().cert_pem.write_to_path(str(folder / "good"))


async def _live_in(folder: str, around: Surroundings) -> None:
    async with lab_proxy(answer=around.said) as proxy:
        filled = {
            name: value.replace("$PORT", str(proxy.port)).replace("$FOLDER", folder)
            for name, value in around.variables.items()
        }
        with _only(filled), trio.fail_after(BOUND):
            assert SECRET not in repr(shown_variables())
            with suppress(EnvironmentUnusable):  # whose words are those of the server below
                proxy_for(around.url)
            if ASKED_FOR_LOOPBACK not in f"{filled.get('no_proxy')},{filled.get('NO_PROXY')}":
                async with staged(NEAR[around.kind]) as stage:
                    result = await stage.supervisor.call_tool("once", {"key": "near"}, server="peer", timeout=10)
                    assert result.full_text == "near"
            spec = ServerSpec(
                "far",
                MAKERS[around.kind](around.url),
                policy=RestartPolicy(delays=[]),
                connect_timeout=CONNECT,
            )
            with short_turns():
                problem = await _far(spec)
            check_words(problem, [SECRET])


async def _far(spec: ServerSpec) -> str:
    async with open_supervisor([], gate=0, state=MemoryStore(), shutdown_timeout=2) as supervisor:
        await supervisor.add_server(spec)
        try:
            await supervisor.reconnect("far")
        except NurseryError as error:
            return str(error)
        return ""


@contextmanager
def _only(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables, and no others of their kind."""
    before = os.environ.copy()
    for name in before:
        if name.lower() in PROXY_VARIABLES or name in AUTHORITY_VARIABLES:
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)

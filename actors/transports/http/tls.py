"""The certificate authorities: loaded once for the process, in a thread, when the first connection over TLS needs them.

To load them takes tens of milliseconds, in which no other server's call would get on.
"""

import ssl
import threading
from functools import cache
from urllib.request import getproxies

import httpx2
import trio

_LOADING = threading.Lock()


async def context_for(url: httpx2.URL) -> ssl.SSLContext:
    """What TLS with this server is checked against; for a URL without TLS one that trusts nobody, and costs nothing."""
    if url.scheme != "https" and not _has_proxy_with_tls():
        return _nobody()
    return await trio.to_thread.run_sync(_authorities)


def _authorities() -> ssl.SSLContext:
    with _LOADING:  # many first connections begin at once
        return _load()


@cache
def _load() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


@cache
def _nobody() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _has_proxy_with_tls() -> bool:
    return any(proxy.startswith("https:") for proxy in getproxies().values())

"""The certificate authorities: loaded once for the process, in a thread, when the first connection over TLS needs them.

To load them takes tens of milliseconds, in which no other call would make progress.
"""

import ssl
import threading
from functools import cache
from urllib.request import getproxies

import httpx2
import trio

_LOADING = threading.Lock()


async def authorities() -> ssl.SSLContext:
    """The context with the system's authorities, or with those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names."""
    return await trio.to_thread.run_sync(_authorities)


async def context_for(url: httpx2.URL) -> ssl.SSLContext:
    """The context for requests to this server; without TLS one that trusts nobody, and costs nothing."""
    return await authorities() if url.scheme == "https" or _has_proxy_with_tls() else _nobody()


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

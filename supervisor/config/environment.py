"""Time limits that the host's environment may set. Milliseconds there, seconds everywhere else."""

import math
import re
from collections.abc import Mapping

from mcp_nursery.actors.errors import ConfigError

DEFAULT_CONNECT_TIMEOUT = 30.0
"""Seconds."""

_MILLISECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


def connect_timeout(spec_value: float | None, environ: Mapping[str, str]) -> float:
    """Seconds a server may take to connect: `MCP_TIMEOUT` (ms), else the server's own, else 30.

    Args:
        spec_value: `ServerSpec.connect_timeout`. 0, here and in the environment, means no limit.
        environ: The host's environment. An empty variable counts as absent.

    Returns:
        Seconds, `math.inf` for no limit.

    Raises:
        ConfigError: `MCP_TIMEOUT` is not a number of milliseconds.
    """
    seconds = _from_environment("MCP_TIMEOUT", environ)
    if seconds is None:
        seconds = DEFAULT_CONNECT_TIMEOUT if spec_value is None else spec_value
    return seconds or math.inf


def call_timeout(call: float | None, server: float | None, environ: Mapping[str, str]) -> float:
    """Seconds a call may take: its own limit, else the server's, else `MCP_TOOL_TIMEOUT` (ms), else none.

    Args:
        call: The limit given with the call. 0 is no time at all, `math.inf` no limit.
        server: `ServerSpec.call_timeout`. 0, here and in the environment, means no limit.
        environ: The host's environment, read only when the first two are None. An empty variable counts as absent.

    Returns:
        Seconds, `math.inf` for no limit.

    Raises:
        ValueError: `call` is negative or not a number.
        ConfigError: `MCP_TOOL_TIMEOUT` is not a number of milliseconds.
    """
    if call is not None:
        if not call >= 0:
            raise ValueError(f"timeout is seconds >= 0, not {call}")
        return float(call)
    seconds = _from_environment("MCP_TOOL_TIMEOUT", environ) if server is None else server
    return seconds or math.inf


def _from_environment(name: str, environ: Mapping[str, str]) -> float | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    seconds = float(text) / 1000 if _MILLISECONDS.fullmatch(text) else math.inf
    if math.isinf(seconds):
        raise ConfigError(f"environment variable {name}: milliseconds >= 0 wanted, 0 for no limit", field=name)
    return seconds

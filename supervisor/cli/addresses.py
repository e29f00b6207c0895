"""Addresses to listen on, as options give them."""

import re

from mcp_nursery.actors.errors import ConfigError


def host_and_port(address: str, option: str) -> tuple[str, int]:
    """Read `HOST:PORT`; an IPv6 address may be in brackets.

    Raises:
        ConfigError: The address has another form. The error names the option.
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not (colon and host and re.fullmatch("[0-9]{1,5}", port) and int(port) < 1 << 16):
        raise ConfigError(f"must be HOST:PORT, such as 127.0.0.1:8000, not {address!r:.80}", field=option)
    return host, int(port)

"""What a server says about missing authorisation: the header `WWW-Authenticate` (RFC 6750, RFC 9728)."""

import re

import httpx2

from ...errors import one_line
from ...outcomes import Challenge

_PARAMETER = re.compile(r'\b(error|scope|resource_metadata)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', re.IGNORECASE)
_LONGEST = 1000
"""Characters of one parameter."""
_REFUSED = (401, 403)

INSUFFICIENT_SCOPE = "insufficient_scope"
"""The error for a valid token that lacks a scope."""


def challenge_of(response: httpx2.Response) -> Challenge | None:
    """What a refusal asks for; None if it does not say."""
    if response.status_code not in _REFUSED:
        return None
    said = ", ".join(response.headers.get_list("www-authenticate"))
    found: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(said):
        found.setdefault(name.lower(), one_line(re.sub(r"\\(.)", r"\1", quoted) or bare, _LONGEST))
    return Challenge(**found) if found else None

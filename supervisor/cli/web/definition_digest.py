"""The name of a changed definition that a person was shown: that definition is accepted, and no later one."""

from hashlib import sha256

from mcp_nursery.supervisor.events import DefinitionChange


def digest_of(change: DefinitionChange) -> str:
    """The digest of a definition as it is now."""
    return sha256(change.after.encode(errors="surrogatepass")).hexdigest()

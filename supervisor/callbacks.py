"""What servers may ask of their host in the middle of a call."""

from mcp_nursery.actors.callbacks import Callbacks, ServerMessage

__all__ = ["Callbacks", "ServerMessage"]

"""The callbacks by which servers may ask their host in the middle of a call."""

from mcp_nursery.actors.callbacks import AuthorizationRequest, Callbacks, ServerMessage

__all__ = ["AuthorizationRequest", "Callbacks", "ServerMessage"]

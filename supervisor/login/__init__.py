"""Authorisation as a user sees it: its settings, where tokens are kept, and how a person is asked for them."""

from mcp_nursery.actors.oauth.settings import OAuth

__all__ = ["OAuth"]

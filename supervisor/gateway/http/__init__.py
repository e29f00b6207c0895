"""Clients over streamable HTTP."""

"""Requests to servers on behalf of clients."""

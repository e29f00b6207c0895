"""Requests to one HTTP server, and what their failures mean. No MCP."""

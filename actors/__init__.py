"""Connections to MCP servers: processes, transports, sessions, calls. Nothing here imports the supervisor."""

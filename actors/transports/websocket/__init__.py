"""MCP over a WebSocket."""

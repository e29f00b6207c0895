"""An HTTP/1.1 server on Trio for ASGI applications. It knows nothing of MCP."""

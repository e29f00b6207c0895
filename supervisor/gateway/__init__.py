"""The supervisor as one MCP server, over stdio or HTTP."""

from .gateway import Gateway, gateway_callbacks, open_gateway
from .http import HttpLimits, open_http
from .stdio import serve_stdio

__all__ = ["Gateway", "HttpLimits", "gateway_callbacks", "open_gateway", "open_http", "serve_stdio"]

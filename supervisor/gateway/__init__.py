"""The supervisor as one MCP server, over stdio or HTTP. Loaded when it is first used, as `__init__.pyi` lists it."""

from mcp_nursery.actors.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)

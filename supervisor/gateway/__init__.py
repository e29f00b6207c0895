"""The supervisor as one MCP server, over stdio or HTTP. Loaded when it is first used, as `__init__.pyi` lists it."""

from ..lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)

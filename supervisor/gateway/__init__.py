"""The supervisor as one MCP server, over stdio or HTTP. Names are loaded at first use, as `__init__.pyi` lists them."""

from ..lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)

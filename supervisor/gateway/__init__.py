"""The supervisor as one MCP server, over stdio or HTTP. Loaded when it is first used, as `__init__.pyi` lists it."""

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # pyright: ignore[reportUnknownVariableType]

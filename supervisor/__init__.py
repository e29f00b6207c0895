"""The public API of mcp-nursery, loaded when it is first used: a program that only shows its help needs none of it.

The names that a program starts with are here, listed in `__init__.pyi`. The others are in `errors`, `events`,
`approval`, `callbacks`, `config`, `resources`, `status`, `toolset` and `testing`.
"""

from .lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)

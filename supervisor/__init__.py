"""The public API of mcp-nursery, loaded when it is first used: a program that shows its help needs none of it.

Here is what a program starts with, as `__init__.pyi` lists it. The rest is in `errors`, `events`, `approval`,
`callbacks`, `config`, `resources`, `status`, `toolset` and `testing`.
"""

from .lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)

"""Reading configuration files: which servers to run and how. Loaded when it is first used: specs by code need none."""

from mcp_nursery.actors.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)

"""Reading configuration files: which servers to run and how. Loaded when it is first used: specs by code need none."""

from ..lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)

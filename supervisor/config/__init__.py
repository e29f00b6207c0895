"""Reading configuration files: which servers to run and how. Loaded at first use: specs by code do not need it."""

from ..lazy_exports import exports_of

__getattr__, __dir__, __all__ = exports_of(__name__, __file__)

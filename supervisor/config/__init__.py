"""Reading configuration files: which servers to run and how."""

from .loader import Config, load_config

__all__ = ["Config", "load_config"]

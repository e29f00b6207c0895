"""Reading configuration files: which servers to run and how."""

from .loader import Config, discover_config, load_config, load_project

__all__ = ["Config", "discover_config", "load_config", "load_project"]

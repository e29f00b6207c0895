"""Reading configuration files: which servers to run and how."""

from ..security.trust import FileRead, TrustRequest
from .loader import Config, discover_config, load_config

__all__ = ["Config", "FileRead", "TrustRequest", "discover_config", "load_config"]

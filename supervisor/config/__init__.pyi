from ..security.trust import FileRead, TrustRequest
from .config import Config
from .loader import discover_config, load_config

__all__ = ["Config", "FileRead", "TrustRequest", "discover_config", "load_config"]

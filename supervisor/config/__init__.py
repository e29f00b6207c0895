"""Reading configuration files: which servers to run and how. Loaded when it is first used: specs by code need none."""

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

from ..security.trust import FileRead, TrustRequest

__all__ = ["Config", "FileRead", "TrustRequest", "discover_config", "load_config"]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__, _ = lazy_loader.attach(  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    __name__, submod_attrs={"config": ["Config"], "loader": ["discover_config", "load_config"]}
)

"""The version of this package, set only here: searching the installed packages takes longer than most starts."""

from typing import Final

VERSION: Final = "0.2.0"

"""The version of this package. Read here: to look through what is installed takes longer than most starts."""

from typing import Final

VERSION: Final = "0.1.0"

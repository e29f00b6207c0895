"""The version of this package: the only place that has it. Read here: to look through what is installed takes longer
than most starts."""

from typing import Final

VERSION: Final = "0.2.0"

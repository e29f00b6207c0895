"""The list. A mutant that survives wants a test, or a reason why none can notice it."""

from collections.abc import Sequence
from typing import Final

from .calls import CALLS
from .mutant import Mutant
from .servers import SERVERS
from .trust import TRUST
from .wire import WIRE

MUTANTS: Final[Sequence[Mutant]] = (*CALLS, *WIRE, *SERVERS, *TRUST)

"""What servers behind a gateway are told that they may ask."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mcp_nursery.actors.protocol import INTERNAL_ERROR

from ..callbacks import Callbacks
from .eras import Json

if TYPE_CHECKING:
    from mcp_types import ErrorData

_ASKABLE: Final = ("elicitation", "sampling", "roots")


async def _nobody(_: object) -> "ErrorData":
    from mcp_types import ErrorData  # loaded long since: a server has asked

    return ErrorData(code=INTERNAL_ERROR, message="no call is under way that this could be for")


def gateway_callbacks(capabilities: Mapping[str, Any] | None = None) -> Callbacks:
    """What the supervisor behind a gateway is opened with. What servers ask outside of calls is refused.

    Args:
        capabilities: Of the only client, as it says them: servers are told the same of elicitation, sampling and roots,
            and may ask nothing else. None: there may be several clients. Servers are offered all that a client may be
            asked, and each client decides for itself.
    """
    if capabilities is None:
        return Callbacks(elicit=_nobody, sample=_nobody, roots=[])
    told: Json = {name: capabilities[name] for name in _ASKABLE if isinstance(capabilities.get(name), Mapping)}
    return Callbacks(
        elicit=_nobody if "elicitation" in told else None,
        sample=_nobody if "sampling" in told else None,
        roots=[] if "roots" in told else None,
        capabilities=told,
    )

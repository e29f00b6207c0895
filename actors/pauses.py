"""The pauses of a loop that asks a server for the same again and again: they grow while nothing comes of it. Pure."""

from collections.abc import Sequence

from mcp_nursery.actors.records import define, field


@define(eq=False)
class Pauses:
    """The pauses of one loop. An attempt begins them anew if it brought a message, or lasted longer than the pause that
    would follow it: one that ends at once resets nothing, however well it began."""

    _delays: Sequence[float]
    """Seconds of each pause, the first one first; the last repeats."""
    _taken: int = field(default=0, init=False)
    """Pauses since they began."""

    def after(self, lasted: float, *, heard: bool = False, least: float = 0.0) -> float:
        """Seconds to wait after an attempt that was open for `lasted` seconds (`-inf`: it never was), and brought a
        message if `heard`. The server asks for `least` seconds."""
        pause = max(self._delays[min(self._taken, len(self._delays) - 1)], least)
        if heard or lasted > pause:
            self._taken, pause = 0, max(self._delays[0], least)
        self._taken += 1
        return pause

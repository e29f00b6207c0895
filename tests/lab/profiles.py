"""Profiles of Hypothesis: how much of all that a run could try it tries. `brief` is for the command that README names,
`quick` for whoever runs a single file, and `thorough` for the night.
"""

from typing import Final

from hypothesis import settings

BRIEF: Final = "brief"
QUICK: Final = "quick"
THOROUGH: Final = "thorough"
EXAMPLES: Final = {BRIEF: 12, QUICK: 30, THOROUGH: 100}
"""Examples of each property, by the profile."""

for _name, _examples in EXAMPLES.items():
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, derandomize=False, print_blob=_name == THOROUGH
    )


def chosen() -> int:
    """Examples of each property in this run."""
    return settings().max_examples

"""Hypothesis profiles: `quick` by default, `thorough` in CI or when HYPOTHESIS_PROFILE asks for it."""

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=50, deadline=None, derandomize=False)
settings.register_profile("thorough", max_examples=150, deadline=None, derandomize=False, print_blob=True)

_default = "thorough" if os.environ.get("CI", "").lower() == "true" else "quick"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or _default)

"""The full screen of `run` and `top`."""

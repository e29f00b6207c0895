"""One call from its name to its result, in the caller's task."""

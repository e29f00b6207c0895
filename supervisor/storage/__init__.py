"""State that outlasts a run: one SQLite file, and the one task that uses it."""

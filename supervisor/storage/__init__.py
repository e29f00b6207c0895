"""State that outlasts a run: a SQLite file, and the only task that uses the file."""

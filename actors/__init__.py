"""The ground floor: what runs, and what it is told. Nothing here knows the supervisor."""

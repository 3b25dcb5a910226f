"""The search index in SQLite and the engine over it."""

"""The model of a connection, its templates, secrets, and life cycle."""

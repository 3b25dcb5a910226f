"""The journal of changes in SQLite: schema, write side, reader, erasure."""

"""Encodes values for the text of Spark SQL statements."""

from __future__ import annotations

from datetime import UTC, datetime


def literal(value: str | datetime) -> str:
    """A value as SQL writes it. (Spark's own way, parameters, gets lost in Delta's parser.)"""
    if isinstance(value, datetime):
        return f"timestamp'{value.astimezone(UTC).isoformat()}'"
    # The dollar so that nothing in the text is taken for one of Spark's variables, which an id may look like.
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"

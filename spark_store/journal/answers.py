"""Answers to deliveries that do not come again."""

from __future__ import annotations

import sqlite3

_FORGET = """
    DELETE FROM answers
    WHERE id IN (SELECT id FROM answers WHERE connection = ? AND source = ? AND name >= ? AND name < ? LIMIT ?)
"""


def forget(connection: sqlite3.Connection, owner: str, source: int, prefix: str, limit: int) -> bool:
    """Delete answers to deliveries of a connection's source whose names begin with a prefix.

    Returns whether more may be left.
    """
    return connection.execute(_FORGET, (owner, source, prefix, prefix + chr(0x10FFFF), limit)).rowcount == limit

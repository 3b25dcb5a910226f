"""Rows of sessions that outlive the service, in the journal's file.

Clients at a broker do not notice a restart, so their subscriptions must continue. A row has the key of a session and bytes
in its protocol's format; the position up to which elements were sent is a separate column, since it changes often. Each
function is one short step, on the reading connection or inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from spark_store.records import SessionKey, SessionRow

_AT = "protocol = ? AND connection = ? AND mapper = ? AND address = ? AND key = ?"
_ALL = """
    SELECT connection, mapper, address, key, source, row, last FROM sessions WHERE protocol = ?
    ORDER BY connection, mapper, address, key
"""
_KEEP = """
    INSERT INTO sessions (protocol, connection, mapper, address, key, source, row, last) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (protocol, connection, mapper, address, key) DO UPDATE
    SET source = excluded.source, row = excluded.row, last = excluded.last
"""
_MOVE = f"UPDATE sessions SET last = ? WHERE {_AT} AND last < ?"
_FORGET = f"DELETE FROM sessions WHERE {_AT}"


def of_protocol(connection: sqlite3.Connection, protocol: str) -> list[SessionRow]:
    """Every row of a protocol."""
    rows = connection.execute(_ALL, (protocol,))
    return [SessionRow(SessionKey(*row[:4]), *row[4:]) for row in rows]


def keep(connection: sqlite3.Connection, protocol: str, rows: Iterable[SessionRow]) -> None:
    """Store rows in the place of those with their keys."""
    connection.executemany(_KEEP, [(protocol, *row.at, *row[1:]) for row in rows])


def move(connection: sqlite3.Connection, protocol: str, moved: Iterable[tuple[SessionKey, int]]) -> None:
    """Store the positions of rows. A deleted row is not created again, and none goes back."""
    connection.executemany(_MOVE, [(last, protocol, *at, last) for at, last in moved])


def forget(connection: sqlite3.Connection, protocol: str, gone: Iterable[SessionKey]) -> None:
    """Take these away."""
    connection.executemany(_FORGET, [(protocol, *at) for at in gone])

"""What of the sessions of other protocols' clients outlives the service, as the journal's file keeps it.

A client that reads at an address of a broker does not see that the service was restarted, so what it follows has to go on.
A row is something that a session has: whose and what it is says its protocol, in bytes of its own; how far the session has
been sent what it follows stands beside that, since it moves all the time. Rows are kept and taken away as a whole.

Each function here is one short step, with the connection that reads or inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from spark_store.records import SessionKey, SessionRow

_AT = "protocol = ? AND connection = ? AND mapper = ? AND address = ? AND key = ?"
_ALL = """
    SELECT connection, mapper, address, key, source, row, last FROM desk_sessions WHERE protocol = ?
    ORDER BY connection, mapper, address, key
"""
_KEEP = """
    INSERT INTO desk_sessions (protocol, connection, mapper, address, key, source, row, last) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (protocol, connection, mapper, address, key) DO UPDATE
    SET source = excluded.source, row = excluded.row, last = excluded.last
"""
_MOVE = f"UPDATE desk_sessions SET last = ? WHERE {_AT} AND last < ?"
_FORGET = f"DELETE FROM desk_sessions WHERE {_AT}"


def of_protocol(connection: sqlite3.Connection, protocol: str) -> list[SessionRow]:
    """Every row of a protocol."""
    rows = connection.execute(_ALL, (protocol,))
    return [SessionRow(SessionKey(*row[:4]), *row[4:]) for row in rows]


def keep(connection: sqlite3.Connection, protocol: str, rows: Iterable[SessionRow]) -> None:
    """Keep these, in the place of what was kept under their keys."""
    connection.executemany(_KEEP, [(protocol, *row.at, *row[1:]) for row in rows])


def move(connection: sqlite3.Connection, protocol: str, moved: Iterable[tuple[SessionKey, int]]) -> None:
    """These sessions have been sent what they follow up to here.

    A row that is gone is not made again, none goes back.
    """
    connection.executemany(_MOVE, [(last, protocol, *at, last) for at, last in moved])


def forget(connection: sqlite3.Connection, protocol: str, gone: Iterable[SessionKey]) -> None:
    """Take these away."""
    connection.executemany(_FORGET, [(protocol, *at) for at in gone])

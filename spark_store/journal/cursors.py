"""The positions of targets: up to which event each of them needs no further one.

A position outlives the service. A new one is after the newest event. Positions do not prevent trimming: a target skips
trimmed events, and counts them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from spark_store.records import CursorPosition

_ALL = "SELECT connection, target, seq, skipped, parked FROM places ORDER BY connection, target"
_TARGETS = "SELECT target FROM places WHERE connection = ?"
_CREATE = "INSERT INTO places (connection, target, seq, skipped) SELECT ?, ?, value, 0 FROM counters WHERE name = 'seq'"
_ADVANCE = "UPDATE places SET seq = ?, skipped = ?, parked = ? WHERE connection = ? AND target = ? AND seq <= ?"
_REMOVE = "DELETE FROM places WHERE connection = ? AND target = ?"
_parked_things = msgspec.json.Decoder(tuple[tuple[str, int], ...]).decode


def positions(connection: sqlite3.Connection) -> list[CursorPosition]:
    """Return the position of every target."""
    return [CursorPosition._make((*row[:-1], _parked_things(row[-1]))) for row in connection.execute(_ALL)]


def keep_only(connection: sqlite3.Connection, connection_id: str, targets: Sequence[str]) -> None:
    """Create and delete positions so that exactly these targets of a connection have one.

    A new one is after the newest event.
    """
    known = {target for (target,) in connection.execute(_TARGETS, (connection_id,))}
    gone = [(connection_id, target) for target in sorted(known.difference(targets))]
    if gone:
        connection.executemany(_REMOVE, gone)
    new = [(connection_id, target) for target in dict.fromkeys(targets) if target not in known]
    if new:
        connection.executemany(_CREATE, new)


def advance(connection: sqlite3.Connection, positions: Sequence[CursorPosition]) -> None:
    """Store positions. A deleted one is not created again, and none goes back."""
    rows = [(it.seq, it.skipped, msgspec.json.encode(it.parked).decode(), *it[:2], it.seq) for it in positions]
    connection.executemany(_ADVANCE, rows)

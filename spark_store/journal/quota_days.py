"""The use of quotas that begin at 0 each day, so that it continues after a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

_STORE = """
    INSERT INTO quota_days (day, holder, name, quantity, used) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (day, holder, name, quantity) DO UPDATE SET used = excluded.used
"""
_FORGET = """
    DELETE FROM quota_days WHERE (day, holder, name, quantity) IN
    (SELECT day, holder, name, quantity FROM quota_days WHERE day <> ? LIMIT ?)
"""
_OF_DAY = "SELECT holder, name, quantity, used FROM quota_days WHERE day = ?"


class DailyUse(NamedTuple):
    """The use of one quantity by a namespace or subject in a day."""

    holder: str
    name: str
    quantity: str
    used: int


def store(connection: sqlite3.Connection, day: str, uses: Iterable[DailyUse], forgotten: int) -> None:
    """Store the use in a day, and delete at most so many rows of other days."""
    connection.executemany(_STORE, [(day, *use) for use in uses])
    connection.execute(_FORGET, (day, forgotten))


def of_day(connection: sqlite3.Connection, day: str) -> list[DailyUse]:
    """Return the stored use in a day."""
    return [DailyUse._make(row) for row in connection.execute(_OF_DAY, (day,))]

"""A SQLite connection whose n-th operation fails, to test disk errors at each operation."""

from __future__ import annotations

import sqlite3
from typing import Any, ClassVar


class Fragile(sqlite3.Connection):
    """A connection that fails at the n-th operation, counted over all such connections.

    With `late`, the operation is executed and fails afterwards, as if only its result were lost.
    """

    failing: ClassVar[int] = 0
    late: ClassVar[bool] = False
    count: ClassVar[int] = 0

    @classmethod
    def arm(cls, number: int, late: bool = False) -> None:
        cls.failing, cls.late, cls.count = number, late, 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return self._carry_out(super().execute, sql, *parameters)

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return self._carry_out(super().executemany, sql, *parameters)

    def _carry_out(self, operation: Any, sql: str, *parameters: Any) -> sqlite3.Cursor:
        Fragile.count += 1
        fails = Fragile.count == Fragile.failing
        if fails and not Fragile.late:
            raise sqlite3.OperationalError("disk I/O error")
        cursor: sqlite3.Cursor = operation(sql, *parameters)
        if fails:
            raise sqlite3.OperationalError("disk I/O error")
        return cursor

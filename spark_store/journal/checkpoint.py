"""Copies the journal's log into its file beside the commits.

SQLite does it within the commit that finds the log long, which then takes up to 50 ms. Pages that were copied before are not
copied again, so little is left for that commit. It is still needed: only between two commits can the log start again at its
beginning.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

COMMITS_BETWEEN = 200
"""Some thousand pages of small changes."""


class BackgroundCheckpoint:
    """The checkpoints of one journal, in a thread and over a connection of their own."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._commits = 0
        self._running: Future[None] | None = None

    def committed(self) -> None:
        """Count a commit; start a checkpoint if it is time and none is running."""
        self._commits += 1
        if self._commits >= COMMITS_BETWEEN and (self._running is None or self._running.done()):
            self._commits = 0
            self._running = self._thread.submit(self._copy)

    def close(self) -> None:
        """Wait for a running checkpoint, and close the connection. May be repeated."""
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()

    def _copy(self) -> None:
        # The commit that copies the log itself reports a fault that remains.
        with contextlib.suppress(sqlite3.Error):
            if self._connection is None:
                self._connection = self._connect()
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

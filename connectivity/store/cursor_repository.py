"""The positions that event cursors of targets have reached, as the journal stores them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from connectivity.store.store import Store
from spark_store.journal import cursors
from spark_store.records import CursorPosition


class CursorRepository:
    """The stored positions of all targets. Every method raises StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def positions(self) -> list[CursorPosition]:
        """Return the durable position of every target."""
        return self._store.read(cursors.positions)

    def keep_only(self, connection_id: str, targets: Sequence[str]) -> Awaitable[None]:
        """Create and delete positions so that exactly these targets of a connection have one.

        A new one is after the newest event.
        """
        return self._store.commits.execute(lambda it: cursors.keep_only(it, connection_id, targets))

    def advance(self, positions: Sequence[CursorPosition]) -> Awaitable[None]:
        """Store positions. A target without one gets none, and none goes back."""
        return self._store.commits.execute(lambda it: cursors.advance(it, positions))

"""The rows that a protocol's sessions keep beyond the life of the service.

Changes are visible here at once. They are stored with the commit of the next change, so a reply that is sent after that
commit can rely on them. Positions in streams are noted with every message and stored about once a second: after a crash some
messages are sent again, and none is missed. Failed changes are tried again. Steps are short, because the event loop waits
for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import structlog

from connectivity.store.store import Store
from spark_store.errors import StoreUnavailable
from spark_store.journal import sessions
from spark_store.records import SessionKey, SessionRow

log = structlog.get_logger(__name__)

STEP_ROWS = 200
"""How many rows one step stores: about a millisecond."""


class SessionRepository:
    """The stored rows of one protocol's sessions.

    All methods but `sent`, `sweep` and `close` raise StoreUnavailable.
    """

    def __init__(self, store: Store, protocol: str) -> None:
        self._store, self._protocol = store, protocol
        self._rows: dict[SessionKey, SessionRow] | None = None
        """The rows; None until they have been read. `_last` has newer positions."""
        self._last: dict[SessionKey, int] = {}
        self._changed: dict[SessionKey, None] = {}
        """Rows that have changed and are in no step yet."""
        self._changed_positions: dict[SessionKey, None] = {}
        """Rows whose position has changed and is in no step yet."""
        self._steps = 0
        """How many steps for changed rows are queued."""

    def rows(self, connection_id: str) -> list[SessionRow]:
        """Return the rows of a connection's sessions."""
        return [self._newest(at, row) for at, row in self._read().items() if at.connection == connection_id]

    def keep(self, row: SessionRow) -> None:
        """Store a row in the place of the one with its key. A position noted there before goes on."""
        rows = self._read()
        if (former := rows.get(row.at)) is not None:
            row = row._replace(last=former.last)
        if row != former:
            rows[row.at] = row
            self._change(row.at)

    def sent(self, at: SessionKey, last: int) -> None:
        """Note that the broker has confirmed the session's elements up to `last`. It never goes back."""
        if self._rows is None or (row := self._rows.get(at)) is None:
            return
        before = self._last.get(at, row.last)
        if before is not None and before < last:
            self._last[at] = last
            self._changed_positions[at] = None

    def forget(self, at: SessionKey) -> None:
        """Delete a row."""
        if self._read().pop(at, None) is not None:
            self._last.pop(at, None)
            self._changed_positions.pop(at, None)
            self._change(at)

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        """Delete the rows of connections for which this is false."""
        for connection_id in {at.connection for at in self._read()}:
            if not is_wanted(connection_id):
                log.info("sessions deleted with closed connection", connection=connection_id)
                for row in self.rows(connection_id):
                    self.forget(row.at)

    def sweep(self) -> None:
        """Store noted positions, and changes that could not be stored before.

        To be called about once a second.
        """
        if not self._store.commits.is_available:
            return
        for _ in range(0, len(self._changed) - self._steps * STEP_ROWS, STEP_ROWS):
            self._queue_changes()
        for _ in range(0, len(self._changed_positions), STEP_ROWS):
            self._queue_positions()

    async def close(self) -> None:
        """Store all positions, so that nothing is sent again after an orderly stop."""
        self.sweep()
        try:
            await self._store.commits.barrier()
        except StoreUnavailable as error:
            log.warning("session positions not stored", reason=str(error))

    def _read(self) -> dict[SessionKey, SessionRow]:
        if self._rows is None:
            found = self._store.read(lambda it: sessions.of_protocol(it, self._protocol))
            self._rows = {row.at: row for row in found}
        return self._rows

    def _newest(self, at: SessionKey, row: SessionRow) -> SessionRow:
        return row if (last := self._last.get(at)) is None else row._replace(last=last)

    def _change(self, at: SessionKey) -> None:
        self._changed[at] = None
        if len(self._changed) > self._steps * STEP_ROWS:
            self._queue_changes()

    def _queue_changes(self) -> None:
        """Queue a step for some of the changed rows, including those that change before the step is executed."""
        taken: list[SessionKey] = []
        is_due = True
        self._steps += 1

        def step(connection: Any) -> None:
            nonlocal is_due
            is_due = False
            self._steps -= 1
            taken.extend(islice(self._changed, STEP_ROWS))
            for at in taken:
                del self._changed[at]
            known = self._read()
            kept = [self._newest(at, known[at]) for at in taken if at in known]
            sessions.keep(connection, self._protocol, kept)
            sessions.forget(connection, self._protocol, [at for at in taken if at not in known])

        def ended(written: asyncio.Future[None]) -> None:
            self._steps -= is_due
            if _is_temporary(written):
                self._changed.update(dict.fromkeys(taken))

        self._store.commits.execute(step).add_done_callback(ended)

    def _queue_positions(self) -> None:
        moved = list(islice(self._changed_positions, STEP_ROWS))
        for at in moved:
            del self._changed_positions[at]
        places = [(at, last) for at in moved if (last := self._last.get(at)) is not None]
        step = partial(sessions.move, protocol=self._protocol, moved=places)

        def ended(written: asyncio.Future[None]) -> None:
            if _is_temporary(written):
                self._changed_positions.update(dict.fromkeys(at for at in moved if at in self._last))

        self._store.commits.execute(step).add_done_callback(ended)


def _is_temporary(written: asyncio.Future[None]) -> bool:
    """Whether storing has failed for a temporary reason."""
    if written.cancelled() or (error := written.exception()) is None:
        return False
    if isinstance(error, StoreUnavailable):
        return True
    log.error("sessions not stored", exc_info=error)
    return False

"""The stored rows of sessions on dictionaries, as a killed or stopped service leaves them."""

from __future__ import annotations

from collections.abc import Callable

from connectivity.store.session_repository import SessionRepository
from spark_store.errors import StoreUnavailable
from spark_store.records import SessionKey, SessionRow


class KeptRows(SessionRepository):
    """The rows of one protocol.

    `sweep` writes the positions that `sent` noted. `queue` is called for each other change, which is durable with the
    next commit.
    """

    def __init__(self, rows: dict[SessionKey, SessionRow] | None = None) -> None:
        self.written = dict(rows or {})
        self.moved: dict[SessionKey, int] = {}
        self.is_unreadable = False
        self.queue: Callable[[], object] = int

    def of(self, _protocol: str) -> KeptRows:
        """Return these rows for each protocol."""
        return self

    def crashed(self) -> KeptRows:
        """Return the rows that a service finds after a kill."""
        return KeptRows(self.written)

    def rows(self, connection_id: str) -> list[SessionRow]:
        if self.is_unreadable:
            raise StoreUnavailable("a page cannot be read")
        return [
            row._replace(last=self.moved.get(at, row.last))
            for at, row in self.written.items()
            if at.connection == connection_id
        ]

    def keep(self, row: SessionRow) -> None:
        former = self.written.get(row.at)
        self.queue()
        self.written[row.at] = row if former is None else row._replace(last=former.last)

    def sent(self, at: SessionKey, last: int) -> None:
        row = self.written.get(at)
        if row is not None and row.last is not None and max(row.last, self.moved.get(at, 0)) < last:
            self.moved[at] = last

    def forget(self, at: SessionKey) -> None:
        self.queue()
        self.written.pop(at, None)
        self.moved.pop(at, None)

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        for at in list(self.written):
            if not is_wanted(at.connection):
                self.forget(at)

    def sweep(self) -> None:
        for at, last in self.moved.items():
            self.written[at] = self.written[at]._replace(last=last)
        self.moved.clear()

    async def close(self) -> None:
        self.sweep()

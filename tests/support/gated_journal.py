"""A journal whose commits a test can delay and fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from spark_store.errors import StoreUnavailable
from spark_store.records import Change
from tests.support.temporary_journal import TemporaryJournal


class GatedJournal(TemporaryJournal):
    """A journal whose commits wait while `is_open` is clear, and which records commits and probes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = threading.Event()
        self.is_open.set()
        self.trouble: StoreUnavailable | None = None
        self.is_broken = False
        self.commits: list[list[int]] = []
        self.threads: set[str] = set()
        self.probes = 0
        self.room = 1_000_000
        """The maximum number of events of a commit; a larger one fails."""
        self._batch: list[int] = []

    def steps(self, changes: Sequence[Change]) -> Iterator[None]:
        assert threading.current_thread() is threading.main_thread()
        yield from super().steps(changes)
        self._batch += [event.revision for one in changes for event in one.events]

    def commit(self) -> None:
        self.threads.add(threading.current_thread().name)
        assert self.is_open.wait(10)
        batch, self._batch = self._batch, []
        if self.trouble is not None or len(batch) > self.room:
            self.rollback()
            raise self.trouble or StoreUnavailable("no room for so many")
        super().commit()
        self.commits.append(batch)

    def probe(self) -> None:
        self.probes += 1
        if self.trouble is not None:
            raise self.trouble

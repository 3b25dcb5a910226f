"""The asyncio interface of the journal, and of the lake for trimmed events.

`snapshot` and `stored_answer` include decided states that are not durable yet; a reply that depends on one waits for a
barrier of `commits`, which writes all changes. Trimmed events are read from the lake in worker threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from connectivity.authorization.revalidation import PolicyChangeNotifier
from connectivity.store.commit import UncommittedState
from connectivity.store.commit_followers import CommitFollowers
from connectivity.store.event_tail import EventTail
from connectivity.store.group_commit import GroupCommit
from connectivity.store.incarnation_repository import IncarnationRepository
from connectivity.store.options import READERS, StoreOptions
from connectivity.store.retained_history import RetainedHistory
from connectivity.store.snapshot_cache import SnapshotCache
from mappings.ids import EntityId
from mappings.model.signals import HistoryQuery
from spark_store.errors import HistoryUnavailable
from spark_store.history import history
from spark_store.history.history import HistoryPage, HistoryRange, TrimmedRange
from spark_store.journal.journal import Journal
from spark_store.records import DeliveryName, NumberedEvent, OldestEvent, Snapshot

if TYPE_CHECKING:
    from spark_store.lake.history_reader import LakeHistory

T = TypeVar("T")


class Store:
    """One journal, used from one event loop."""

    def __init__(
        self,
        journal: Journal,
        options: StoreOptions | None = None,
        *,
        cold: Callable[[], LakeHistory] | None = None,
        on_commit: Callable[[float], object] | None = None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        """`cold` opens the lake with the trimmed events: in a worker thread, when it is first needed.

        `on_commit` receives the duration of each commit in seconds; `now` returns nanoseconds since 1970.
        """
        options = options or StoreOptions()
        self._journal = journal
        self._open_lake = cold
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="lake")
        self._decided = UncommittedState()
        self._cache = SnapshotCache(options.cached_entities, options.cached_bytes)
        journal.known = self._cache.get
        self.tail = EventTail(journal)
        """The newest durable events, for readers that need all of them."""
        self.retained_history = RetainedHistory(journal, self.ask_lake)
        """Where histories begin."""
        self.lives = IncarnationRepository(journal, self._decided)
        """The deleted lives of entities, and who refers to a policy."""
        self.answers_to_forget: set[tuple[str, int, str]] = set()
        """Connections, sources and prefixes of names whose answers could not be forgotten yet."""
        self.policy_changes = PolicyChangeNotifier()
        """Notifies of policies that have changed."""
        followers = CommitFollowers(self._decided, self._cache, self.tail, self.retained_history, self.policy_changes)
        self.commits = GroupCommit(journal, options, followers, on_commit, now)
        """Writes all changes."""

    @classmethod
    def open(
        cls,
        path: Path,
        options: StoreOptions | None = None,
        *,
        cold: Callable[[], LakeHistory] | None = None,
        on_commit: Callable[[float], object] | None = None,
    ) -> Store:
        """Open the journal in this file, which is created if it is missing.

        Raises SchemaTooNew, StoreUnavailable.
        """
        return cls(Journal.open(path), options, cold=cold, on_commit=on_commit)

    @property
    def path(self) -> Path:
        """The file of the journal."""
        return Path(self._journal.path)

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """Return the newest decided state, durable or not; None if the entity never existed.

        Raises StoreUnavailable.
        """
        found = self._decided.snapshots.get(entity) or self._cache.get(entity)
        if found is None and (found := self._journal.snapshot(entity)) is not None:
            self._cache.put(found)
        return found

    def stored_answer(self, name: DeliveryName) -> bytes | None:
        """Return the answer to a delivery; None if it is not known. Raises StoreUnavailable.

        The answer may not be durable yet: wait for a `barrier` made after this call before sending it.
        """
        pending = self._decided.answers.get(name.place)
        if pending is None:
            return self._journal.answer(name, self.commits.window_start())
        return pending.answer if pending.delivery.digest == name.digest else None

    def answered_names(self, connection: str, source: int, prefix: str) -> Sequence[str]:
        """Return the newest names with a prefix of answered deliveries. Raises StoreUnavailable."""
        return self._journal.answered_names(connection, source, prefix)

    def note_committed(self, connection: str, partition: str, offset: int) -> None:
        """Note that deliveries of a partition come again from this offset only; earlier answers expire by age."""
        self._journal.committed[connection, partition] = offset

    def read(self, query: Callable[[Any], T]) -> T:
        """Return what a short query finds in the committed tables. Raises StoreUnavailable."""
        return self._journal.read(query)

    def open_range(self, query: HistoryQuery, now: datetime, within: tuple[int, int] | None = None) -> HistoryRange:
        """Fix the bounds of a query; earlier decided events belong to it. Raises QueryError, StoreUnavailable.

        `within`: the first and last revision that the entity has for the reader.
        """
        oldest, newest = within or (1, self.newest_revision(query.entity))
        return history.open_range(self._journal, query, now, oldest=oldest, newest=newest)

    async def page(self, range: HistoryRange, position: int, limit: int, max_bytes: int) -> HistoryPage:
        """Return a page as `history.page` does, of undurable and trimmed events too.

        Waits for the former and reads the latter from the lake. Raises StoreUnavailable, HistoryUnavailable.
        """
        found = history.page(self._journal, range, position, limit, max_bytes)
        if not (found.ended or found.events or found.trimmed or found.position != position or found.has_more):
            await self.commits.barrier()
            found = history.page(self._journal, range, position, limit, max_bytes)
            if not (found.events or found.trimmed or found.position != position or found.has_more):
                # Everything is durable now: what is still missing will never exist.
                found = found._replace(ended=True)
        return found if found.trimmed is None else await self._lake_page(range, found.trimmed, limit, max_bytes)

    async def _lake_page(self, range: HistoryRange, trimmed: TrimmedRange, limit: int, max_bytes: int) -> HistoryPage:
        if self._open_lake is None:
            raise HistoryUnavailable(
                f"{range.entity}: the journal has trimmed revisions {trimmed.first} to {trimmed.last}, and there is no lake:"
                " found spark.mode off, expected embedded or external"
            )
        found = await self.ask_lake(
            lambda cold, reaching: history.cold_page(cold, range, trimmed, limit, max_bytes, reaching)
        )
        assert found is not None
        return found

    async def ask_lake(self, ask: Callable[[LakeHistory, int], T]) -> T | None:
        """Return what `ask` returns in a worker thread; None without a lake.

        `ask` receives the lake and the number up to which it must reach. Raises what it raises, StoreUnavailable.
        """
        if (opened := self._open_lake) is None:
            return None
        reaching = self._journal.last_trimmed()
        return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: ask(opened(), reaching))

    async def read_in_worker(self, query: Callable[[Any], T]) -> T:
        """Return what a long query finds in the committed tables, in a worker thread. Raises StoreUnavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._journal.read_in_worker, query)

    async def read_submitted(self, query: Callable[[Any], T]) -> T:
        """As `read_in_worker`, of the tables with everything submitted until this call, and nothing later."""
        reading = partial(
            self._journal.read_snapshot, await self.commits.run_in_worker(self._journal.open_snapshot), query
        )
        return await asyncio.get_running_loop().run_in_executor(self._readers, reading)

    def newest_revision(self, entity: EntityId) -> int:
        """Return the newest decided revision of an entity; 0 for none. Raises StoreUnavailable."""
        snapshot = self.snapshot(entity)
        return 0 if snapshot is None else snapshot.revision

    def newest_durable(self, entity: EntityId) -> int:
        """Return the revision of an entity's newest durable event; 0 for none. Raises StoreUnavailable."""
        return self._journal.latest(entity)

    def oldest_revision(self, entity: EntityId) -> int:
        """Return the smallest revision that can still be read, from memory. Raises StoreUnavailable."""
        return self.retained_history.oldest(entity)

    def keeps(self, entity: EntityId, revision: int) -> bool:
        """Whether the journal has this durable event. Raises StoreUnavailable."""
        return bool(self._journal.events(entity, revision, revision, 1, 1))

    def oldest(self, after: int = 0) -> OldestEvent | None:
        """Return the oldest event in the journal with a number above `after`. Raises StoreUnavailable."""
        return self._journal.oldest(after)

    def newest_seq(self) -> int:
        """Return the number of the newest durable event. Raises StoreUnavailable."""
        return self._journal.newest_seq()

    def newest_up_to(self, seq: int) -> NumberedEvent | None:
        """Return the newest event up to this number, without those that an erasure is about to delete.

        Raises StoreUnavailable.
        """
        while (found := self._journal.newest_up_to(seq)) is not None:
            if self._journal.beginning(found.event.entity).erased < found.event.revision:
                return found
            seq = found.seq - 1
        return None

    async def close(self) -> None:
        """Accept no more changes, make submitted ones durable, and close the journal."""
        try:
            await self.commits.close()
        finally:
            self._readers.shutdown(cancel_futures=True)

"""Streams as a domain: appends entries to partitions, and reads selections of them.

An entry is the next event of its partition, stored with its batch. The name of its delivery is stored in the same commit, so
that a redelivered entry is not appended again. The wire protocols of streams are adapters to this module.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from connectivity.sessions.base import FOREVER, RetentionTimes
from connectivity.sources.deduplication import DeduplicationKey
from connectivity.store.past_state import first_published
from connectivity.store.store import Store
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import ErrorResponse, Event, Failed, HistoryQuery, Outbound
from mappings.streams.entry import (
    All,
    EntrySelection,
    FromTime,
    Last,
    OffsetRange,
    StreamEntry,
    entry_of,
    published_event,
)
from mappings.streams.stream_id import KeyHash, choose_partition, partition_id
from mappings.timestamps import utc_text_of
from spark_store.history.replay import evolve
from spark_store.records import Change, StoredAnswer

CHOSEN_NAME_SECONDS = 300
"""How long a name that a client chose identifies its entry."""


_decode_answer = msgspec.msgpack.Decoder(float | tuple[float, tuple[str, bytes]]).decode
"""Returns when an entry was appended; with a chosen key also the broker's name for its delivery."""


def _delivery_of(key: DeduplicationKey) -> tuple[str, bytes] | None:
    """Return the broker's name for the delivery of a message with a chosen key; None without one."""
    name = key.delivery.name if key.delivery is not None else None
    return (name.name, name.digest) if name is not None else None


class StreamSource:
    """The entries of all streams. `now` returns the time of day."""

    def __init__(
        self, store: Store, lifetimes: RetentionTimes = FOREVER, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._lifetimes = lifetimes
        self._now = now

    def is_known(self, key: DeduplicationKey) -> bool:
        """Whether the entry with this key was appended before. Raises StoreUnavailable."""
        answer = key.stored_answer(self._store)
        if answer is None:
            return False
        found = _decode_answer(answer)
        appended, delivery = found if isinstance(found, tuple) else (found, None)
        if not key.is_chosen or self._now().timestamp() - appended < CHOSEN_NAME_SECONDS:
            return True
        # The broker may redeliver the message after any time.
        is_again = key.delivery is not None and key.delivery.may_be_repeated
        return is_again and delivery is not None and delivery == _delivery_of(key)

    def append(
        self,
        stream: str,
        content: str,
        *,
        key: str | None,
        timestamp: int | None,
        partitions: int,
        hash: KeyHash,
        name: DeduplicationKey,
        changes: list[Change],
    ) -> None:
        """Stage an entry for one of so many partitions, and add it to its batch.

        `timestamp` is the publisher's, in milliseconds. Raises StoreUnavailable.
        """
        partition = choose_partition(key, partitions, hash)
        before = self._store.snapshot(partition_id(stream, partition))
        instant = self._now().timestamp()
        now = utc_text_of(int(instant * 1000))
        if before is not None:
            # Histories are in order of time, whatever the clock does.
            now = max(now, before.modified)
        revision = 1 if before is None else before.revision + 1
        event = published_event(stream, partition, revision, now, content, timestamp)
        delivery = _delivery_of(name)
        appended = msgspec.msgpack.encode(instant if delivery is None else (instant, delivery))
        answer = StoredAnswer(name.name, appended) if name.name is not None else None
        change = Change((event,), (evolve(before, event),), answer)
        self._store.commits.stage(change)
        changes.append(change)

    def entry(self, event: Event) -> StreamEntry:
        """Return the entry of an event, with a predecessor that can still be read. Raises StoreUnavailable."""
        previous, ttl = self.position(event)
        return entry_of(event, previous=previous, ttl=ttl)

    def position(self, event: Event) -> tuple[int | None, int]:
        """Return the readable predecessor of an entry, and its remaining seconds (0: unlimited).

        The creation of a twin has none: what came before it may be another owner's. A predecessor that a resend would not
        send is not named: older clients request it again and again without pause.
        """
        oldest = self._store.oldest_revision(event.entity)
        previous = event.revision - 1 if not event.is_creation and event.revision > oldest else None
        if self._lifetimes.is_forever:
            return previous, 0
        return previous, self._lifetimes.remaining_seconds(event, int(self._now().timestamp() * 1000))

    def is_at_hand(self, query: HistoryQuery) -> bool:
        """Whether the entries, and the predecessor of the first one, are known without reading the lake.

        Raises StoreUnavailable.
        """
        oldest = self._store.oldest_revision(query.entity)
        return oldest == 1 or query.from_revision > oldest

    async def query_from_time(self, entity: EntityId, instant: int, *, oldest: int, newest: int) -> HistoryQuery:
        """Return the query of the entries from the first one published at `instant` (milliseconds) or later.

        Publishers choose times in any order, so that finding the first one may take a while.
        """
        first = await first_published(self._store, entity, oldest, newest, instant)
        return offset_query(entity, newest + 1 if first is None else first, newest)


def query_of(selection: EntrySelection, entity: EntityId, newest: int) -> HistoryQuery:
    """Return the query of a selection for a partition with this `newest` offset (0: empty).

    For `FromTime` the entity is a twin, whose times are in order.
    """
    match selection:
        case All():
            return offset_query(entity, 1, newest)
        case Last(count):
            return offset_query(entity, newest - count + 1, newest)
        case OffsetRange(start, end):
            return offset_query(entity, start, newest if end is None else min(end, newest))
        case FromTime(instant):
            return replace(offset_query(entity, 1, newest), after=instant * 1_000_000 - 1)


def offset_query(entity: EntityId, first: int, last: int) -> HistoryQuery:
    """Return a query for offsets, both inclusive."""
    return HistoryQuery(entity, max(1, first), last) if last >= max(1, first) else HistoryQuery(entity, 2, 1)


def fault_of(signal: Outbound, ended: Fault) -> Fault:
    """Return why the engine has ended a subscription, or not begun it; `ended` if there is no fault."""
    if isinstance(signal, ErrorResponse):
        return signal.fault
    return signal.reason if isinstance(signal, Failed) and isinstance(signal.reason, Fault) else ended

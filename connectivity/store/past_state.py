"""The past state of an entity, from the nearest known state and the events after it.

See the Ditto protocol, historical retrieve. A short history that is entirely in the journal is folded from its first event.
Otherwise the lake is searched for the nearest snapshot. Pages are read as for a replay and folded in worker threads.
`first_published` finds where a replay from a time begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from connectivity.store.store import Store
from mappings.ids import EntityId
from mappings.model.signals import Event, HistoryQuery
from spark_store.history.history import HistoryRange
from spark_store.history.replay import evolve
from spark_store.journal import published_events
from spark_store.records import PastQuery, PastState, Snapshot

SHORT: Final = 1000
"""A history of up to this many events is folded from its beginning, if the journal has it."""

_PAGE: Final = 500
_PAGE_BYTES: Final = 1 << 20


async def state_at(store: Store, query: PastQuery) -> PastState | None:
    """Return the past state; None if it is not known. It may be that of a deleted entity.

    Raises StoreUnavailable, HistoryUnavailable.
    """
    await store.commits.barrier()
    entity = query.entity
    range = store.open_range(HistoryQuery(entity, 1, query.last, before=query.before), datetime.now(UTC))
    if range.last < 1:
        return None
    before = None if range.times is None else range.times.before
    last = range.last
    if before is not None:
        last = (
            await store.ask_lake(lambda lake, reach: lake.last_before(entity, range.last, before, reaching=reach)) or 0
        )
    base = None
    if last > SHORT or not store.keeps(entity, 1):
        base = await store.ask_lake(lambda lake, _: lake.snapshot(entity, last or range.last, before))
    if last < 1:
        # The events were deleted; a snapshot remains.
        return None if base is None else PastState(base, b"{}")
    if base is not None and base.revision == last:
        found = await store.page(HistoryRange(entity, last, last, None, None), 0, 1, _PAGE_BYTES)
        return PastState(base, found.events[0].headers if found.events else b"{}")
    start = 1 if base is None else base.revision + 1
    return await _fold(store, HistoryRange(entity, start, last, None, None), base)


async def _fold(store: Store, range: HistoryRange, base: Snapshot | None) -> PastState | None:
    """Fold the events of a range onto `base`.

    Without a base they must begin with one that contains the whole entity.
    """
    loop, position, snapshot = asyncio.get_running_loop(), 0, base
    headers, is_over = b"{}", False
    while not is_over:
        events, position, is_over, *_ = await store.page(range, position, _PAGE, _PAGE_BYTES)
        if not events:
            continue
        if snapshot is None and not _is_whole(events[0]):
            return None
        if snapshot is not None and events[0].revision != snapshot.revision + 1:
            return None
        headers = events[-1].headers
        if snapshot is None and events[0].action == "modified":
            snapshot = _since_creation(store, events[0], evolve(None, events[0]))
            events = events[1:]
        snapshot = await loop.run_in_executor(None, _evolve_all, snapshot, events)
    return None if snapshot is None or snapshot.revision != range.last else PastState(snapshot, headers)


def _is_whole(event: Event) -> bool:
    return event.path == "/" and event.action != "merged"


def _since_creation(store: Store, event: Event, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the time of creation; unchanged if the entity has been created again since."""
    present = store.snapshot(event.entity)
    if present is None or present.created > event.timestamp:
        return snapshot
    return msgspec.structs.replace(snapshot, created=present.created)


def _evolve_all(snapshot: Snapshot | None, events: Sequence[Event]) -> Snapshot | None:
    for event in events:
        snapshot = evolve(snapshot, event)
    return snapshot


LEAST, MOST = 64, 16_384
"""How many messages in the journal are examined at once, fewer if they are large."""

COLD = 131_072
"""How many messages in the lake are examined at once; their contents are not read."""

QUICK_SECONDS, SLOW_SECONDS = 0.02, 0.1
"""Below the first duration the next portion is larger, above the second one smaller."""


async def first_published(store: Store, entity: EntityId, first: int, last: int, instant: int) -> int | None:
    """Return the first of these revisions that was published at or after an instant.

    The instant is in milliseconds; None if there is none. Raises StoreUnavailable, HistoryUnavailable.
    """
    await store.commits.barrier()
    size = LEAST
    while first <= last:
        begun = store.tail.beginning(entity)
        first = max(first, begun.erased + 1)
        if first < begun.first:
            end = min(last, begun.first - 1, first + COLD - 1)
            found = await _in_lake(store, entity, first, end, instant)
        else:
            end, started = min(last, first + size - 1), time.monotonic()
            found = await _in_journal(store, entity, first, end, instant)
            size = next_size(size, time.monotonic() - started)
            if first < store.tail.beginning(entity).first:
                # Some of it was trimmed meanwhile: search again.
                continue
        if found:
            return found
        first = end + 1
    return None


def next_size(size: int, seconds: float) -> int:
    """Return the size of the next portion, after one of this size has taken so many seconds."""
    if seconds < QUICK_SECONDS:
        return min(MOST, 2 * size)
    return size if seconds < SLOW_SECONDS else max(LEAST, size // 2)


async def _in_lake(store: Store, entity: EntityId, first: int, last: int, instant: int) -> int | None:
    return await store.ask_lake(
        lambda it, reaching: it.first_published(entity, first, last, instant, reaching=reaching)
    )


async def _in_journal(store: Store, entity: EntityId, first: int, last: int, instant: int) -> int:
    return await store.read_in_worker(lambda it: published_events.first_published(it, entity, first, last, instant))

"""From which of its messages on a stream is wanted that is asked for from an instant on (Streamr protocol, resend).

Times of messages are in no order, so all of them may have to be looked at, in journal and lake. That is done in worker
threads and in portions, so that others have their turn between two of them, however long the stream is.
"""

from __future__ import annotations

import time

from connectivity.store import Store
from mappings.ids import EntityId

LEAST, MOST = 64, 16_384
"""So many messages of the journal are looked at at once, fewer where they are large."""

COLD = 131_072
"""So many are in the lake, where contents are not touched."""

QUICK_SECONDS, SLOW_SECONDS = 0.02, 0.1
"""Below the former the next portion is larger, above the latter smaller."""


async def first_published(store: Store, entity: EntityId, first: int, last: int, instant: int) -> int | None:
    """The first of these revisions whose message is not from before an instant, in milliseconds; None where all are.

    Raises StoreUnavailable, HistoryUnavailable.
    """
    await store.barrier()
    size = LEAST
    while first <= last:
        begun = store.kept.beginning(entity)
        first = max(first, begun.erased + 1)
        if first < begun.first:
            end = min(last, begun.first - 1, first + COLD - 1)
            found = await _in_lake(store, entity, first, end, instant)
        else:
            end, started = min(last, first + size - 1), time.monotonic()
            found = await _in_journal(store, entity, first, end, instant)
            size = next_size(size, time.monotonic() - started)
            if first < store.kept.beginning(entity).first:
                # It was trimmed meanwhile, so nobody has looked at all of it.
                continue
        if found:
            return found
        first = end + 1
    return None


def next_size(size: int, seconds: float) -> int:
    """How large a portion may be after one of this size has taken so long."""
    if seconds < QUICK_SECONDS:
        return min(MOST, 2 * size)
    return size if seconds < SLOW_SECONDS else max(LEAST, size // 2)


async def _in_lake(store: Store, entity: EntityId, first: int, last: int, instant: int) -> int | None:
    return await store.ask_lake(
        lambda it, reaching: it.first_published(entity, first, last, instant, reaching=reaching)
    )


async def _in_journal(store: Store, entity: EntityId, first: int, last: int, instant: int) -> int:
    return await store.ask_journal(lambda it: it.first_published(entity, first, last, instant))

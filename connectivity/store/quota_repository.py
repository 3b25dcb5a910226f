"""Creators of things and policies, the stored data of each namespace and creator, daily use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from connectivity.authorization.quotas import Quantity, QuotaHolder, QuotaKey
from connectivity.store.store import Store
from mappings.ids import EntityId
from spark_store.journal import creators, quota_days
from spark_store.journal.quota_days import DailyUse

T = TypeVar("T")

STEP_ROWS = 200
"""How many rows one step stores: about a millisecond, for which the event loop waits."""

_COUNTS: tuple[tuple[QuotaHolder, Callable[[Any], list[creators.StoredUse]]], ...] = (
    (QuotaHolder.NAMESPACE, creators.used_by_namespace),
    (QuotaHolder.SUBJECT, creators.used_by_creator),
)


class QuotaRepository:
    """The stored use of quotas. Every method raises StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def creator(self, entity: EntityId) -> str | None:
        """Return who created an entity; None if that is not known, or not durable yet."""
        return self._store.read(lambda it: creators.creator(it, entity))

    async def count(self, use: Callable[[Mapping[QuotaKey, int]], T]) -> T:
        """Count everything that was submitted until this call, in a worker thread.

        Returns what `use` makes of it there.
        """
        return await self._store.read_submitted(lambda it: use(_used(it)))

    async def of_day(self, day: str) -> dict[QuotaKey, int]:
        """Return the stored use of quotas in a day."""
        rows = await self._store.read_in_worker(lambda it: quota_days.of_day(it, day))
        return {(QuotaHolder(row.holder), row.name, Quantity(row.quantity)): row.used for row in rows}

    async def keep(self, day: str, used: Mapping[QuotaKey, int]) -> None:
        """Store the use of some quotas in a day, and delete as much of other days."""
        uses = [
            DailyUse(holder.value, name, quantity.value, number) for (holder, name, quantity), number in used.items()
        ]
        await self._store.commits.execute(lambda it: quota_days.store(it, day, uses, STEP_ROWS))


def _used(connection: Any) -> dict[QuotaKey, int]:
    return {
        (holder, each.name, quantity): used
        for holder, count in _COUNTS
        for each in count(connection)
        for quantity, used in (
            (Quantity.THINGS, each.things),
            (Quantity.POLICIES, each.policies),
            (Quantity.BYTES, each.bytes),
        )
    }

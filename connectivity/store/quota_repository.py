"""Creators of things and policies, and the stored data of each namespace and creator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from connectivity.authorization.quotas import Quantity, QuotaHolder, QuotaKey
from connectivity.store.store import Store
from mappings.ids import EntityId
from spark_store.journal import creators

T = TypeVar("T")

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

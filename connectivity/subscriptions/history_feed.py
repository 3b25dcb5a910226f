"""The feed of a streaming subscription: the events of one entity that were there when it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, Page, PageEnd
from mappings.model.signals import HistoryQuery
from spark_store.history.history import HistoryRange


@dataclass(frozen=True, slots=True)
class HistoryFeed(HistoryRange, Feed):
    """A range of one entity's events, with bounds fixed at the subscribe. One object, since there may be very many."""

    store: Store

    @classmethod
    def open(cls, store: Store, query: HistoryQuery, now: datetime) -> HistoryFeed:
        """Fix the bounds. Raises QueryError for a filter that cannot be read, StoreUnavailable."""
        fixed = store.open_range(query, now)
        return cls(fixed.entity, fixed.first, fixed.last, fixed.predicate, fixed.times, store)

    @property
    def is_empty(self) -> bool:
        """Whether it is known that there is nothing in it."""
        return self.first > self.last and self.times is None

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        found = await self.store.page(self, position, limit, max_bytes)
        return Page(found.events, found.position, PageEnd.END if found.ended else PageEnd.MORE)

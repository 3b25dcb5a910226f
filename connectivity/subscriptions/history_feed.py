"""The feed of a streaming subscription: the past events of one entity."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed, FeedFailed, Page, PageEnd
from connectivity.twins.incarnations import VisibleRevisions
from mappings.model.signals import HistoryQuery
from spark_store.errors import QueryError
from spark_store.history.history import HistoryRange


@dataclass(frozen=True, slots=True)
class HistoryFeed(HistoryRange, Feed):
    """A range of one entity's events, with fixed bounds. A single object, as there may be many."""

    store: Store
    is_prompt = True

    @classmethod
    def open(
        cls, store: Store, query: HistoryQuery, now: datetime, visible: VisibleRevisions | None = None
    ) -> HistoryFeed:
        """Fix the bounds, within the visible revisions (None: all).

        Raises QueryError for an invalid filter, StoreUnavailable.
        """
        fixed = store.open_range(query, now, visible)
        return cls(fixed.entity, fixed.first, fixed.last, fixed.predicate, fixed.times, store)

    @property
    def is_empty(self) -> bool:
        """Whether the range is known to be empty."""
        return self.first > self.last and self.times is None

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        try:
            result = await self.store.page(self, position, limit, max_bytes)
        except QueryError as error:
            raise FeedFailed(error.fault) from error
        if result.ended:
            return Page(result.events, result.position, PageEnd.END)
        is_undecided = self.predicate is not None and not result.has_more
        return Page(result.events, result.position, PageEnd.UNDECIDED if is_undecided else PageEnd.MORE)

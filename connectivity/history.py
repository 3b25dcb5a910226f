"""The feed of a streaming subscription: the events of one entity that were there when it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from connectivity.feeds import Page, Then
from connectivity.store import Store
from mappings.signals import HistoryQuery


class HistoryFeed:
    """A range of one entity's events, with bounds fixed at the subscribe."""

    __slots__ = ("_range", "_store")

    def __init__(self, store: Store, query: HistoryQuery, now: datetime) -> None:
        """Raises QueryError for a filter that cannot be read, StoreUnavailable."""
        self._store = store
        self._range = store.open_range(query, now)

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        found = await self._store.page(self._range, position, limit, max_bytes)
        return Page(found.events, found.position, Then.END if found.ended else Then.MORE)

    def wake(self, ready: Callable[[], None]) -> None:
        """A history never waits."""
        ready()

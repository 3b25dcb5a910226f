"""Opens the feeds of one entity's events, past or live, as far as their readers may see them.

Permissions on things and policies are checked here, once, with the subjects of the subscribe. Streams are authorized before
the subscribe.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from connectivity.store.store import Store
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.history_feed import HistoryFeed
from connectivity.subscriptions.live_feed import LiveFeeds
from connectivity.twins.access import may_stream, readable_history
from connectivity.twins.context import StateLookup
from connectivity.twins.incarnations import VisibleRevisions
from mappings.errors import Fault
from mappings.ids import EntityType
from mappings.model.signals import HistoryQuery, LiveQuery
from spark_store.errors import QueryError


class EntityFeeds:
    """Opens histories and live feeds."""

    def __init__(self, store: Store, world: StateLookup, live_feeds: LiveFeeds, now: Callable[[], datetime]) -> None:
        self._store = store
        self._world = world
        self._live_feeds = live_feeds
        self._now = now

    def open(self, query: HistoryQuery | LiveQuery, subjects: tuple[str, ...]) -> Feed | Fault:
        """Return the feed of a query, or the fault. Raises StoreUnavailable."""
        if isinstance(query, LiveQuery):
            return self._live(query, subjects)
        visible: VisibleRevisions | None = None
        if query.entity.type is not EntityType.STREAM:
            last = query.to_revision
            found = readable_history(query.entity, subjects, self._world, last if last and last > 0 else None)
            if isinstance(found, Fault):
                return found
            visible = found
        try:
            return HistoryFeed.open(self._store, query, self._now(), visible)
        except QueryError as error:
            return error.fault

    def _live(self, query: LiveQuery, subjects: tuple[str, ...]) -> Feed | Fault:
        entity, after = query.entity, query.after
        if entity.type is not EntityType.STREAM:
            if (fault := may_stream(entity, subjects, self._world)) is not None:
                return fault
            if after is not None:
                # A session that continues must not see an earlier owner's events.
                visible = readable_history(entity, subjects, self._world)
                after = after if isinstance(visible, Fault) else max(after, visible.first - 1)
        return self._live_feeds.feed(entity, after, may_skip=query.may_skip)

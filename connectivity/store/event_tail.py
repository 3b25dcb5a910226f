"""The newest events in the order in which they were stored, for those who follow all of them.

Just committed events are kept in memory, bounded by number and bytes, so a follower that keeps up reads nothing; one that
lags behind them reads pages of the journal, each of which takes about a millisecond at most. Whoever follows is woken after
each commit, later than whoever waited for it. While nobody follows, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mappings.ids import EntityId
from spark_store.journal import statements
from spark_store.journal.journal import Journal
from spark_store.records import Change, PublishedEvent, event_size

MOST = 10_000
MOST_BYTES = 32 << 20
"""What is kept in memory at most."""

PAGE = 100
PAGE_BYTES = 256 << 10
"""What is read from the journal at once at most."""


class EventTail:
    """The end of one journal."""

    def __init__(self, journal: Journal, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._journal = journal
        self._most, self._most_bytes = most, most_bytes
        self._kept: list[PublishedEvent] = []
        self._bytes = 0
        self._wakes: dict[Callable[[], object], None] = {}
        self.forgotten = 0
        """How many times `forget` was called: who has kept something knows by it when the journal knows better."""
        self.newest = 0
        """The number of the newest event that followers may have."""

    def __repr__(self) -> str:
        return f"<Tail up to {self.newest}, {len(self._kept)} events kept>"

    @property
    def is_followed(self) -> bool:
        return bool(self._wakes)

    def follow(self, wake: Callable[[], object]) -> None:
        """From now on events are kept; `wake` is called when there are new ones. Raises StoreUnavailable."""
        if not self._wakes:
            self.newest = max(self.newest, self._journal.newest_seq())
        self._wakes[wake] = None

    def leave(self, wake: Callable[[], object]) -> None:
        """One follows no more. Once nobody does, nothing is kept."""
        self._wakes.pop(wake, None)
        if not self._wakes:
            self._let_go()

    def extend(self, last: int, changes: Sequence[Change]) -> None:
        """These have been committed one behind the other, the last of their events as number `last`."""
        if not self._wakes:
            return
        new = [(event, change.cause) for change in changes for event in change.events]
        first = last - len(new) + 1
        if self._kept and self._kept[-1].seq != first - 1:
            self._let_go()
        self._kept += [PublishedEvent(seq, event, cause) for seq, (event, cause) in enumerate(new, first)]
        self._bytes += sum(event_size(event) for event, _ in new)
        if len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._shorten()
        self.reach(last)

    def reach(self, newest: int) -> None:
        """The journal has events up to this number."""
        self.newest = max(self.newest, newest)
        for wake in list(self._wakes):
            wake()

    def catch_up(self) -> None:
        """Something was committed that somebody has begun to follow meanwhile. Raises StoreUnavailable."""
        self.reach(self._journal.newest_seq())

    def forget(self) -> None:
        """Keep nothing of what is kept: the journal knows better now."""
        self.forgotten += 1
        self._let_go()

    def after(self, seq: int, limit: int = PAGE) -> Sequence[PublishedEvent]:
        """The next events with numbers above `seq`, in ascending order; empty at the end.

        Numbers are missing where events were trimmed or erased. Raises StoreUnavailable.
        """
        if seq >= self.newest:
            return ()
        kept = self._kept
        if kept and kept[0].seq <= seq + 1 <= kept[-1].seq:
            start = seq + 1 - kept[0].seq
            return kept[start : start + limit]
        found = self._journal.read(lambda it: statements.follow_on(it, seq, min(limit, PAGE), PAGE_BYTES))
        return [each for each in found if each.seq <= self.newest]

    def followed(self, entity: EntityId, revision: int) -> PublishedEvent | None:
        """One durable event. Raises StoreUnavailable."""
        return self._journal.read(lambda it: statements.followed(it, entity, revision))

    def one(self, seq: int) -> PublishedEvent | None:
        """The first event with a number from `seq` on. Raises StoreUnavailable."""
        return next(iter(self.after(seq - 1, 1)), None)

    def trimmed(self) -> int:
        """The number of the last event that the journal has let go; 0 for none. Raises StoreUnavailable."""
        return self._journal.trimmed()

    def _let_go(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def _shorten(self) -> None:
        """Let go of more than has to go, so that this is seldom done."""
        gone = max(0, len(self._kept) - self._most * 7 // 8)
        self._bytes -= sum(event_size(kept.event) for kept in self._kept[:gone])
        while self._bytes > self._most_bytes * 7 // 8 and gone < len(self._kept):
            self._bytes -= event_size(self._kept[gone].event)
            gone += 1
        del self._kept[:gone]

"""The states, caches and readers in memory that follow the commits of a journal."""

from __future__ import annotations

from typing import NamedTuple

from connectivity.authorization.revalidation import PolicyChangeNotifier
from connectivity.store.commit import PendingCommit, UncommittedState
from connectivity.store.event_tail import EventTail
from connectivity.store.retained_history import RetainedHistory
from connectivity.store.snapshot_cache import SnapshotCache


class CommitFollowers(NamedTuple):
    """All that changes when changes become durable, or cannot."""

    decided: UncommittedState
    cache: SnapshotCache
    tail: EventTail
    retained_history: RetainedHistory
    policy_changes: PolicyChangeNotifier

    def succeed(self, submitted: PendingCommit) -> None:
        """Take over changes that are durable, then tell their waiters."""
        self.decided.remove_durable(submitted.changes)
        self.cache.update(submitted.changes)
        if submitted.forgotten is not None:
            self.decided.drop(submitted.forgotten)
            self.cache.drop(submitted.forgotten.entity)
            self.retained_history.forget(submitted.forgotten.entity)
            self.tail.forget()
        submitted.succeed()

    def undo(self, submitted: PendingCommit) -> None:
        """Forget changes that cannot be stored."""
        # Readers may have begun after the event that will never exist.
        self.tail.forget()
        for entity in submitted.entities():
            self.cache.drop(entity)
        self.decided.undo(submitted.changes)

    def clear(self) -> None:
        """Forget everything after a failure: a commit that failed may have been carried out."""
        self.decided.clear()
        self.cache.clear()
        self.retained_history.forget()
        self.tail.forget()

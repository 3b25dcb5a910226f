"""Changes that wait for a commit of the store, and the result of a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mappings.ids import EntityId
from spark_store.records import Change, Snapshot, StoredAnswer


class PendingTrim(NamedTuple):
    """A request to trim the journal, and the future for the number of trimmed events."""

    last: int
    before: str
    done: asyncio.Future[int]


class CommitResult(NamedTuple):
    """The seconds that a commit took, the trimming in it, and how many events that deleted."""

    seconds: float
    trimming: PendingTrim | None
    trimmed: int


class PendingCommit:
    """Changes that are stored together, with the future that says when they are durable.

    A barrier has no changes. A step has no changes either; it may run outside of transactions (`is_aside`), and leave an
    entity without state (`forgotten`).
    """

    __slots__ = ("changes", "durable", "forgotten", "is_outside_transaction", "step")

    def __init__(
        self, changes: Sequence[Change], durable: asyncio.Future[None], step: Callable[[], object] | None = None
    ) -> None:
        self.changes = changes
        self.durable = durable
        self.step = step
        self.is_outside_transaction = False
        self.forgotten: Snapshot | None = None

    def take_step(self) -> None:
        if self.step is not None:
            self.step()

    def entities(self) -> set[EntityId]:
        """Return the entities whose states change."""
        return {snapshot.entity for change in self.changes for snapshot in change.snapshots}

    def succeed(self) -> None:
        if not self.durable.done():
            self.durable.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.durable.done():
            self.durable.set_exception(error)
            # Marks the exception as retrieved: the caller may have been cancelled.
            self.durable.exception()


class UncommittedState:
    """States and answers that are decided and not durable yet."""

    __slots__ = ("answers", "snapshots")

    def __init__(self) -> None:
        self.snapshots: dict[EntityId, Snapshot] = {}
        self.answers: dict[tuple[str, int, str], StoredAnswer] = {}
        """By `DeliveryName.place`, here as a slice: this runs for every change."""

    def add(self, change: Change) -> None:
        for snapshot in change.snapshots:
            self.snapshots[snapshot.entity] = snapshot
        if change.answer is not None:
            self.answers[change.answer.delivery[:3]] = change.answer

    def remove_durable(self, changes: Sequence[Change]) -> None:
        """Remove changes that are durable. Later decisions stay."""
        for change in changes:
            for snapshot in change.snapshots:
                if self.snapshots.get(snapshot.entity) is snapshot:
                    del self.snapshots[snapshot.entity]
            if (answer := change.answer) is not None and self.answers.get(place := answer.delivery[:3]) is answer:
                del self.answers[place]

    def drop(self, snapshot: Snapshot) -> None:
        """Remove the state of an erased entity. A later one stays."""
        if self.snapshots.get(snapshot.entity) is snapshot:
            del self.snapshots[snapshot.entity]

    def forget(self, answer: StoredAnswer) -> None:
        """Remove an answer that cannot be stored."""
        if self.answers.get(answer.delivery.place) is answer:
            del self.answers[answer.delivery.place]

    def clear(self) -> None:
        self.snapshots.clear()
        self.answers.clear()

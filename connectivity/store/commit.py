"""What waits for a commit of the store, and what a commit has done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mappings.ids import EntityId
from spark_store.records import Change, Snapshot, StoredAnswer


class PendingTrim(NamedTuple):
    """What may be taken away, and who waits for the number of those that were."""

    last: int
    before: str
    done: asyncio.Future[int]


class Committed(NamedTuple):
    """How many seconds a commit took, and what was trimmed with it."""

    seconds: float
    trimming: PendingTrim | None
    trimmed: int


class PendingCommit:
    """Changes that are stored together, and who waits for that. A barrier has no changes.

    Or a `step` instead of changes, which may run aside of transactions, or leave an entity as `forgotten`.
    """

    __slots__ = ("changes", "durable", "forgotten", "is_aside", "step")

    def __init__(
        self, changes: Sequence[Change], durable: asyncio.Future[None], step: Callable[[], object] | None = None
    ) -> None:
        self.changes = changes
        self.durable = durable
        self.step = step
        self.is_aside = False
        self.forgotten: Snapshot | None = None

    def take_step(self) -> None:
        if self.step is not None:
            self.step()

    def entities(self) -> set[EntityId]:
        """Whose states the changes bring."""
        return {snapshot.entity for change in self.changes for snapshot in change.snapshots}

    def succeed(self) -> None:
        if not self.durable.done():
            self.durable.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.durable.done():
            self.durable.set_exception(error)
            # Whoever does not wait any more has left; that is no reason for a complaint.
            self.durable.exception()


class UncommittedState:
    """What has been decided and is not durable yet."""

    __slots__ = ("answers", "snapshots")

    def __init__(self) -> None:
        self.snapshots: dict[EntityId, Snapshot] = {}
        self.answers: dict[tuple[str, int, str], StoredAnswer] = {}

    def add(self, change: Change) -> None:
        for snapshot in change.snapshots:
            self.snapshots[snapshot.entity] = snapshot
        if change.answer is not None:
            self.answers[change.answer.delivery.place] = change.answer

    def settle(self, changes: Sequence[Change]) -> None:
        """These are durable. What was decided upon them stays."""
        for change in changes:
            for snapshot in change.snapshots:
                self.drop(snapshot)
            if change.answer is not None:
                self.forget(change.answer)

    def drop(self, snapshot: Snapshot) -> None:
        """This state is durable. One that was decided upon it stays."""
        if self.snapshots.get(snapshot.entity) is snapshot:
            del self.snapshots[snapshot.entity]

    def forget(self, answer: StoredAnswer) -> None:
        """This answer is durable, or will never be."""
        if self.answers.get(answer.delivery.place) is answer:
            del self.answers[answer.delivery.place]

    def clear(self) -> None:
        self.snapshots.clear()
        self.answers.clear()

"""What the store has decided and not made durable yet: states that later commands are decided upon, and answers.

Each goes when it is durable itself. A newer one that was put in its place meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappings.ids import EntityId
from spark_store.records import Answer, Change, Snapshot


class Decided:
    """What has been decided and is not durable yet."""

    __slots__ = ("answers", "snapshots")

    def __init__(self) -> None:
        self.snapshots: dict[EntityId, Snapshot] = {}
        self.answers: dict[tuple[str, int, str], Answer] = {}

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

    def forget(self, answer: Answer) -> None:
        """This answer is durable, or will never be."""
        if self.answers.get(answer.delivery.place) is answer:
            del self.answers[answer.delivery.place]

    def clear(self) -> None:
        self.snapshots.clear()
        self.answers.clear()

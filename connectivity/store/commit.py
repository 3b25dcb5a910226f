"""Changes that wait for a commit of the store, the result of a commit, and who is notified of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from mappings.ids import EntityId
from spark_store.records import Change, Snapshot, StoredAnswer, event_size

_TURN_WEIGHT = 48
"""How many changes of ordinary size are reported in one turn: about half a millisecond."""


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

    A barrier has no changes. A step has no changes either; it may run outside of transactions (`is_outside_transaction`),
    and leave an entity without state (`forgotten`). `weight` is how long it takes to write and to report the changes, in
    changes of ordinary size.
    """

    __slots__ = ("changes", "durable", "forgotten", "is_outside_transaction", "step", "weight")

    def __init__(
        self, changes: Sequence[Change], durable: asyncio.Future[None], step: Callable[[], object] | None = None
    ) -> None:
        self.changes = changes
        self.durable = durable
        self.step = step
        self.is_outside_transaction = False
        self.forgotten: Snapshot | None = None
        self.weight = 4 + sum(1 + (event_size(event) >> 10) for change in changes for event in change.events)

    @property
    def is_barrier(self) -> bool:
        return not self.changes and self.step is None

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


def take_barriers(queue: deque[PendingCommit]) -> Iterator[PendingCommit]:
    """Take the barriers that a queue begins with, so that none delays the commit before it."""
    while queue and queue[0].is_barrier:
        yield queue.popleft()


class Progress:
    """How far submitted changes are from being durable, for those who would submit more."""

    __slots__ = ("_next", "_pending", "is_shared", "submits")

    def __init__(self, pending: Callable[[], Iterable[Iterable[PendingCommit]]]) -> None:
        """`pending` returns what is submitted and not durable."""
        self.submits = 0
        """How many lists of changes were submitted."""
        self.is_shared = False
        """Whether several users submit changes, which are written at once then."""
        self._pending = pending
        self._next: asyncio.Future[None] | None = None

    def backlog(self) -> tuple[int, int]:
        """Return how many lists of changes are not durable, and their weight."""
        weights = [each.weight for part in self._pending() for each in part if each.changes]
        return len(weights), sum(weights)

    async def wait(self) -> None:
        """Wait until the next commit has ended, whether it has succeeded or not."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)

    def notify(self) -> None:
        """Wake those who wait: a commit has ended."""
        ended, self._next = self._next, None
        if ended is not None:
            ended.set_result(None)


class ReportQueue:
    """Notifies those who wait for durable changes, in order, some in each turn of the event loop."""

    __slots__ = ("_is_scheduled", "_left", "_reports")

    def __init__(self) -> None:
        self._reports: deque[tuple[int, Callable[[], object]]] = deque()
        self._left = _TURN_WEIGHT
        """How much more this turn has room for."""
        self._is_scheduled = False

    def add(self, report: Callable[[], object], weight: int) -> None:
        """Call `report` after those before it: at once, if this turn has room for it."""
        self._reports.append((weight, report))
        self._call_some()

    def finish(self) -> None:
        """Call all that are waiting."""
        while self._reports:
            self._reports.popleft()[1]()

    def _call_some(self) -> None:
        while self._reports and self._left > 0:
            weight, report = self._reports.popleft()
            self._left -= weight
            report()
        if self._left < _TURN_WEIGHT and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled, self._left = False, _TURN_WEIGHT
        if self._reports:
            self._call_some()


class UncommittedState:
    """States, answers and deletions that are decided and not durable yet."""

    __slots__ = ("_naming", "answers", "deletions", "snapshots")

    def __init__(self) -> None:
        self.snapshots: dict[EntityId, Snapshot] = {}
        self.deletions: dict[EntityId, dict[int, bytes | None]] = {}
        """The permissions at each deletion of an entity, by its revision."""
        self.answers: dict[tuple[str, int, str], StoredAnswer] = {}
        """By `DeliveryName.place`, here as a slice: this runs for every change."""
        self._naming: dict[EntityId, Change] = {}
        """The changes that decide whether entities refer to the policy that they name."""

    def is_reference(self, thing: EntityId) -> bool | None:
        """Whether a thing refers to the policy that it names; None as its committed state does."""
        return None if (change := self._naming.get(thing)) is None else change.is_reference

    def add(self, change: Change) -> None:
        if change.is_reference is not None:
            self._naming.update((snapshot.entity, change) for snapshot in change.snapshots)
        for snapshot in change.snapshots:
            self.snapshots[snapshot.entity] = snapshot
            if snapshot.state is None:
                self.deletions.setdefault(snapshot.entity, {})[snapshot.revision] = change.permissions
        if change.answer is not None:
            self.answers[change.answer.delivery[:3]] = change.answer

    def remove_durable(self, changes: Sequence[Change]) -> None:
        """Remove changes that are durable. Later decisions stay."""
        for change in changes:
            if change.is_reference is not None:
                self._forget_naming(change)
            for snapshot in change.snapshots:
                if self.snapshots.get(snapshot.entity) is snapshot:
                    del self.snapshots[snapshot.entity]
                if snapshot.state is None:
                    self._forget_deletion(snapshot)
            if (answer := change.answer) is not None and self.answers.get(place := answer.delivery[:3]) is answer:
                del self.answers[place]

    def _forget_deletion(self, snapshot: Snapshot) -> None:
        found = self.deletions.get(snapshot.entity, {})
        found.pop(snapshot.revision, None)
        if not found:
            self.deletions.pop(snapshot.entity, None)

    def _forget_naming(self, change: Change) -> None:
        for snapshot in change.snapshots:
            if self._naming.get(snapshot.entity) is change:
                del self._naming[snapshot.entity]

    def drop(self, snapshot: Snapshot) -> None:
        """Remove the state of an erased entity. A later one stays."""
        if self.snapshots.get(snapshot.entity) is snapshot:
            del self.snapshots[snapshot.entity]

    def undo(self, changes: Sequence[Change]) -> None:
        """Remove changes that cannot be stored, and later states of their entities."""
        for change in changes:
            self._forget_naming(change)
            for snapshot in change.snapshots:
                self.snapshots.pop(snapshot.entity, None)
                if snapshot.state is None:
                    self._forget_deletion(snapshot)
            if (answer := change.answer) is not None and self.answers.get(answer.delivery.place) is answer:
                del self.answers[answer.delivery.place]

    def clear(self) -> None:
        self.snapshots.clear()
        self.deletions.clear()
        self.answers.clear()
        self._naming.clear()

"""The journal on dictionaries and lists: what every other journal is compared with.

It keeps everything that `spark_store.journal.journal.Journal` promises except that it outlives the process. States are kept
as JSON text, as in a real store, so nobody shares an object with it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.journal import statements
from spark_store.journal.batch import PlannedState, plan
from spark_store.journal.journal import MAX_ANSWERS, TRIM_EVENTS, Journal
from spark_store.records import (
    Change,
    CursorPosition,
    DeliveryName,
    EventCause,
    HistoryStart,
    NumberedEvent,
    OldestEvent,
    PolicyDue,
    PublishedEvent,
    Snapshot,
    event_size,
)


class _Open(NamedTuple):
    """What an open transaction will have changed."""

    events: list[Event]
    states: dict[EntityId, PlannedState]
    answers: list[tuple[DeliveryName, bytes, int]]
    trimmed: list[Event]
    causes: list[EventCause | None]
    places: dict[tuple[str, str], CursorPosition | None]
    """What is noted of a target; None for one that has no place any more."""
    looked: list[tuple[EntityId, int, str | None, bytes | None]]


def _nothing() -> _Open:
    return _Open([], {}, [], [], [], {}, [])


class MemoryJournal(Journal):
    """A journal that forgets everything with its process."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        """`clock` gives nanoseconds since 1970."""
        self._clock = clock
        self._entries: defaultdict[EntityId, list[Event]] = defaultdict(list)
        self._states: dict[EntityId, PlannedState] = {}
        self._answers: OrderedDict[tuple[str, int, str], tuple[bytes, bytes, int]] = OrderedDict()
        self._numbers: deque[tuple[int, Event]] = deque()
        self._seq = 0
        self._causes: dict[int, EventCause] = {}
        self._places: dict[tuple[str, str], CursorPosition] = {}
        self._due: dict[EntityId, tuple[str, bytes | None]] = {}
        self._open = _nothing()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<MemoryJournal, {self._seq} entries of {len(self._states)} entities>"

    def write(self, changes: Sequence[Change]) -> None:
        self._check_open()
        planned = plan(changes, self._newest)
        now = self._clock()
        self._open.states.update(planned)
        for change in changes:
            self._open.events.extend(change.events)
            self._open.causes.extend([change.cause] * len(change.events))
            if change.answer is not None:
                self._open.answers.append((change.answer.delivery, change.answer.answer, now))

    def commit(self) -> None:
        self._check_open()
        for event, cause in zip(self._open.events, self._open.causes, strict=True):
            self._seq += 1
            if cause is not None:
                self._causes[self._seq] = cause
            self._entries[event.entity].append(event)
            self._numbers.append((self._seq, event))
        for event in self._open.trimmed:
            self._numbers.popleft()
            self._entries[event.entity].remove(event)
        self._states.update(self._open.states)
        for entity, planned in self._open.states.items():
            if entity.type is EntityType.POLICY and b'"expiry"' in (planned.text or b""):
                self._due[entity] = "", self._due.get(entity, ("", None))[1]
            else:
                self._due.pop(entity, None)
        for entity, revision, again, note in self._open.looked:
            if (due := self._due.get(entity)) is not None:
                is_same = self._states[entity].snapshot.revision == revision
                self._due[entity] = (again if is_same and again is not None else due[0]), note
                if is_same and again is None:
                    del self._due[entity]
        for name, answer, at in self._open.answers:
            self._answers[name.place] = (name.digest, answer, at)
            self._answers.move_to_end(name.place)
        for key, place in self._open.places.items():
            if place is None:
                self._places.pop(key, None)
            else:
                self._places[key] = place
        self.rollback()

    def rollback(self) -> None:
        self._open = _nothing()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        self._check_open()
        if (found := self._states.get(entity)) is None:
            return None
        snapshot, text = found
        state = None if text is None else msgspec.json.decode(text)
        return Snapshot(entity, snapshot.revision, snapshot.created, snapshot.modified, state, snapshot.policy)

    def latest(self, entity: EntityId) -> int:
        self._check_open()
        found = self._states.get(entity)
        return 0 if found is None else found.snapshot.revision

    def beginning(self, entity: EntityId) -> HistoryStart:
        """Nothing is erased here."""
        entries = self._entries.get(entity)
        return HistoryStart(0, entries[0].revision if entries else self.latest(entity) + 1)

    def events(self, entity: EntityId, first: int, last: int, limit: int, max_bytes: int) -> list[Event]:
        self._check_open()
        entries = self._entries.get(entity, [])
        start = bisect_left(entries, first, key=lambda event: event.revision)
        found: list[Event] = []
        for event in entries[start : start + max(limit, 0)]:
            if event.revision > last:
                break
            found.append(event)
            max_bytes -= event_size(event)
            if max_bytes <= 0:
                break
        return found

    def first_published(self, entity: EntityId, first: int, last: int, instant: int) -> int:
        self._check_open()
        start = statements.as_timestamp(instant)
        for event in self._entries.get(entity, []):
            named = msgspec.json.decode(event.headers).get("ts")
            if first <= event.revision <= last and (event.timestamp >= start if named is None else named >= instant):
                return event.revision
        return 0

    def answer(self, name: DeliveryName, since: int = 0) -> bytes | None:
        self._check_open()
        digest, answer, at = self._answers.get(name.place, (b"", b"", 0))
        return answer if name.place in self._answers and digest == name.digest and at >= since else None

    def forget_answers(self, before: int, keep: int = MAX_ANSWERS, limit: int = 1000) -> int:
        self._check_open()
        forgotten = 0
        while self._answers and forgotten < limit:
            place, (_, _, at) = next(iter(self._answers.items()))
            if at >= before and len(self._answers) <= keep:
                break
            del self._answers[place]
            forgotten += 1
        return forgotten

    def newest_seq(self) -> int:
        self._check_open()
        return self._seq

    def oldest(self) -> OldestEvent | None:
        self._check_open()
        return OldestEvent(self._numbers[0][0], self._numbers[0][1].timestamp) if self._numbers else None

    def newest_until(self, seq: int) -> NumberedEvent | None:
        self._check_open()
        return next((NumberedEvent(number, event) for number, event in reversed(self._numbers) if number <= seq), None)

    def newest_written(self) -> int:
        self._check_open()
        return self._seq + len(self._open.events)

    def follow_on(self, after: int, limit: int, max_bytes: int) -> list[PublishedEvent]:
        self._check_open()
        found: list[PublishedEvent] = []
        start = bisect_left(self._numbers, after + 1, key=lambda numbered: numbered[0])
        for seq, event in islice(self._numbers, start, start + max(limit, 0)):
            found.append(PublishedEvent(seq, event, self._causes.get(seq)))
            max_bytes -= event_size(event)
            if max_bytes <= 0:
                break
        return found

    def followed(self, entity: EntityId, revision: int) -> PublishedEvent | None:
        self._check_open()
        return next(
            (
                PublishedEvent(seq, event, self._causes.get(seq))
                for seq, event in self._numbers
                if event.entity == entity and event.revision == revision
            ),
            None,
        )

    def places(self) -> list[CursorPosition]:
        self._check_open()
        return [place for _, place in sorted(self._places.items())]

    def follow(self, connection: str, targets: Sequence[str]) -> None:
        self._check_open()
        known = {key for key, place in {**self._places, **self._open.places}.items() if place is not None}
        for key in known:
            if key[0] == connection and key[1] not in targets:
                self._open.places[key] = None
        for target in targets:
            if (connection, target) not in known:
                self._open.places[connection, target] = CursorPosition(connection, target, self.newest_written())

    def move(self, places: Sequence[CursorPosition]) -> None:
        self._check_open()
        known = {**self._places, **self._open.places}
        for place in places:
            key = place.connection, place.target
            if (before := known.get(key)) is not None and before.seq <= place.seq:
                self._open.places[key] = place

    def trim(self, last: int, before: str, limit: int = TRIM_EVENTS) -> int:
        self._check_open()
        leaving = [
            event
            for seq, event in islice(self._numbers, len(self._open.trimmed), len(self._open.trimmed) + limit)
            if seq <= last
        ]
        leaving = list(takewhile(lambda event: event.timestamp < before, leaving))
        self._open.trimmed.extend(leaving)
        return len(leaving)

    def due(self, until: str, limit: int) -> list[PolicyDue]:
        self._check_open()
        found = sorted((at, entity, note) for entity, (at, note) in self._due.items() if at <= until)
        return [PolicyDue(entity, note) for _, entity, note in found[:limit]]

    def look_again(self, policy: EntityId, revision: int, at: str | None, note: bytes | None) -> None:
        self._check_open()
        self._open.looked.append((policy, revision, at, note))

    def probe(self) -> None:
        self._check_open()
        self.rollback()

    def close(self) -> None:
        self._is_closed = True

    def _newest(self, entity: EntityId) -> int:
        """The newest revision as the open transaction sees it."""
        found = self._open.states.get(entity) or self._states.get(entity)
        return 0 if found is None else found.snapshot.revision

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the journal is closed")

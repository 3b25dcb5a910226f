"""The journal on dictionaries and lists: the reference for all other journals.

It has all properties of `spark_store.journal.journal.Journal`, except that its content is lost with the process. It
stores states as JSON text, like a real store, so no object is shared.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.journal.batch import encode, plan
from spark_store.journal.journal import MAX_ANSWERS, TRIM_EVENTS, Journal
from spark_store.records import (
    Change,
    DeliveryName,
    HistoryStart,
    NumberedEvent,
    OldestEvent,
    Snapshot,
    event_size,
)


class _State(NamedTuple):
    """A snapshot and its state as JSON; the state of a deleted entity is None."""

    snapshot: Snapshot
    text: bytes | None


class _Open(NamedTuple):
    """The changes of an open transaction."""

    events: list[Event]
    states: dict[EntityId, _State]
    answers: list[tuple[DeliveryName, bytes, int]]
    trimmed: list[Event]


def _nothing() -> _Open:
    return _Open([], {}, [], [])


class MemoryJournal(Journal):
    """A journal in memory."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        """`clock` returns nanoseconds since 1970."""
        self._clock = clock
        self._entries: defaultdict[EntityId, list[Event]] = defaultdict(list)
        self._states: dict[EntityId, _State] = {}
        self._answers: OrderedDict[tuple[str, int, str], tuple[DeliveryName, bytes, int]] = OrderedDict()
        self.committed = {}
        self._numbers: deque[tuple[int, Event]] = deque()
        self._seq = 0
        self._open = _nothing()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<MemoryJournal, {self._seq} entries of {len(self._states)} entities>"

    def steps(self, changes: Sequence[Change]) -> Iterator[None]:
        self._check_open()
        planned = {entity: _State(it, encode(it)) for entity, it in plan(changes, self._newest).items()}
        now = self._clock()
        self._open.states.update(planned)
        for change in changes:
            self._open.events.extend(change.events)
            if change.answer is not None:
                self._open.answers.append((change.answer.delivery, change.answer.answer, now))
        yield

    def commit(self) -> None:
        self._check_open()
        for event in self._open.events:
            self._seq += 1
            self._entries[event.entity].append(event)
            self._numbers.append((self._seq, event))
        for event in self._open.trimmed:
            self._numbers.popleft()
            self._entries[event.entity].remove(event)
        self._states.update(self._open.states)
        for name, answer, at in self._open.answers:
            self._answers[name.place] = (name, answer, at)
            self._answers.move_to_end(name.place)
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
        """Return the beginning of a history, of which nothing is ever erased here."""
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

    def answer(self, name: DeliveryName, since: int = 0) -> bytes | None:
        self._check_open()
        if (found := self._answers.get(name.place)) is None or found[0].digest != name.digest:
            return None
        stored, answer, at = found
        return answer if at >= since or self._can_come_again(stored) else None

    def answered_names(self, connection: str, source: int, prefix: str, limit: int = 2000) -> list[str]:
        places = [place for place in self._answers if place[:2] == (connection, source)]
        return sorted(name for *_, name in places if name.startswith(prefix))[-limit:]

    def _can_come_again(self, name: DeliveryName) -> bool:
        return name.partition != "" and name.offset >= self.committed.get((name.connection, name.partition), 0)

    def forget_answers(self, before: int, keep: int = MAX_ANSWERS, limit: int = 1000) -> int:
        self._check_open()
        surplus = len(self._answers) - keep
        leaving = [
            place
            for number, (place, (name, _, at)) in enumerate(self._answers.items())
            if number < surplus or (at < before and not self._can_come_again(name))
        ][:limit]
        for place in leaving:
            del self._answers[place]
        return len(leaving)

    def newest_seq(self) -> int:
        self._check_open()
        return self._seq

    def oldest(self, after: int = 0) -> OldestEvent | None:
        self._check_open()
        return next((OldestEvent(number, it.timestamp) for number, it in self._numbers if number > after), None)

    def newest_up_to(self, seq: int) -> NumberedEvent | None:
        self._check_open()
        return next((NumberedEvent(number, event) for number, event in reversed(self._numbers) if number <= seq), None)

    def newest_written(self) -> int:
        self._check_open()
        return self._seq + len(self._open.events)

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

    def probe(self) -> None:
        self._check_open()
        self.rollback()

    def close(self) -> None:
        self._is_closed = True

    def _newest(self, entity: EntityId) -> int:
        """Return the newest revision, including the open transaction."""
        found = self._open.states.get(entity) or self._states.get(entity)
        return 0 if found is None else found.snapshot.revision

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the journal is closed")

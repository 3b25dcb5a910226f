"""Compares lake and journal entity by entity up to the watermark, without Spark.

First the lake itself (`spark_store.lake.check`), and the search index (`spark_store.maintenance.index_check`). Then the
rows of each entity, in a merge join of the tables with the journal: its rows of `latest` and `snapshots` with its state, its
events with the journal's, and `latest` with the folded events, without missing revisions. Erased events are not missed, and
reported if they are still there.

Memory is bounded: rows are read in order, in parts (`spark_store.lake.rows`). It may run beside pipeline and service: newer
rows than the watermark are ignored. It shares no code with the writers of the tables.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import msgspec

from mappings.model.signals import Event
from spark_store.history.replay import FoldBase, StateFold, is_same_text, state_text
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import EntityState, JournalEntry, JournalReader
from spark_store.lake import reader
from spark_store.lake.check import check_lake
from spark_store.lake.rows import entries, rows_between, states
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake, Table
from spark_store.lake.watermark import Watermark, read_watermark
from spark_store.maintenance import index_check
from spark_store.records import entity_of

RANGE = 100_000
"""How many events, or entities, are compared until the tables are opened again: old files go."""

SHOWN = 50
"""How many differences are reported one by one; the others are counted."""

IsExpired: TypeAlias = Callable[[JournalEntry, int], bool]
"""Whether retention may have deleted an event of an entity with this newest revision."""

_SAME = ("seq", "timestamp", "action", "path", "value", "headers")
_STATE_SAME = ("policy", "seq", "created", "modified")
_JOURNAL, _LATEST, _SNAPSHOTS, _EVENTS = range(4)
"""The sources of an entity's rows, in order."""

_key = attrgetter("entity", "entity_type")


class LakeDifference(msgspec.Struct, frozen=True):
    """A difference: number of the event (None for a row of `latest`), entity, revision."""

    table: str
    what: str
    entity: str
    revision: int
    seq: int | None = None

    def __str__(self) -> str:
        number = "" if self.seq is None else f", event {self.seq}"
        return f"{self.table}: {self.what}: {self.entity} at revision {self.revision}{number}"


class VerifyReport(msgspec.Struct):
    """The progress of a comparison, and its results.

    `first` to `last` are the compared events; `compared` about how many of the lake's entities were compared, of `total`;
    `entities` how many were folded. `pending`: erasures that the lake has not done yet; `waiting`: newer events, not merged
    into `latest` yet. `indexed`: with how many entities the search index was compared; `unindexed`: entities that it has not
    reached yet.
    """

    first: int
    last: int
    total: int = 0
    compared: int = 0
    entities: int = 0
    count: int = 0
    pending: int = 0
    waiting: int = 0
    indexed: int = 0
    unindexed: int = 0
    differences: list[LakeDifference] = []

    def add(self, found: Iterable[LakeDifference]) -> None:
        for difference in found:
            self.count += 1
            if len(self.differences) < SHOWN:
                self.differences.append(difference)


def verify(
    place: Lake,
    is_expired: IsExpired = lambda _entry, _newest: False,
    say: Callable[[VerifyReport], object] = lambda _: None,
    range: int = RANGE,
) -> VerifyReport:
    """Compare the journal with the lake. `say` receives progress after each part.

    Raises LakeUnfit, SchemaTooNew, StoreUnavailable.
    """
    watermark = read_watermark(place.watermark)
    with JournalReader.open(place.journal) as journal_reader:
        report = VerifyReport(journal_reader.oldest() or watermark.seq + 1, watermark.seq)
        check_lake(place, journal_reader)
        _compare_index(place, report)
        if report.last:
            report.total = reader.rows(place, LATEST)
            comparison = _Comparison(place, journal_reader, is_expired, watermark, report)
            first: str | None = ""
            while first is not None:
                first = comparison.next_part(first, range)
                say(report)
        report.waiting = max(0, journal_reader.newest() - watermark.seq)
        report.pending = len(journal_reader.erasures(read_watermark(place.watermark).erased))
    return report


def _compare_index(place: Lake, report: VerifyReport) -> None:
    found = index_check.compare(place.journal)
    report.indexed, report.unindexed = found.entities, found.waiting
    report.add(LakeDifference("search index", *it) for it in found.examples)
    report.count += max(0, found.differing - len(found.examples))


class _Comparison:
    """Compares the lake's rows of entities with the journal.

    Erasures up to the watermark's are done in the lake, too.
    """

    def __init__(
        self,
        place: Lake,
        journal_reader: JournalReader,
        is_expired: IsExpired,
        watermark: Watermark,
        report: VerifyReport,
    ) -> None:
        self._place, self._journal_reader, self._is_expired = place, journal_reader, is_expired
        self._erased, self._has_retained = watermark.erased, watermark.retention is not None
        self._report = report
        self._newest_erasure = 0
        self._erasures: dict[tuple[str, str], list[Erasure]] = {}
        self._oldest = 0

    def next_part(self, first: str, most: int) -> str | None:
        """Compare about `most` rows, from the entity `first` on; the ID of the next part, None for none.

        Raises LakeUnfit, StoreUnavailable.
        """
        keys, end = self._next_keys(first, most)
        # Opened in the order in which they are written, snapshots last, which retention writes before it deletes events; and
        # the journal is read later: nothing that is added or deleted meanwhile seems to be missing.
        latest = rows_between(self._place, LATEST, first, end)
        events = rows_between(self._place, EVENTS, first, end)
        sources: list[Iterable[Any]] = [((key, _JOURNAL, ()) for key in keys)]
        sources += [_by_entity(_LATEST, states(latest)), _by_entity(_EVENTS, entries(events))]
        if self._place.has(SNAPSHOTS):
            snapshots = rows_between(self._place, SNAPSHOTS, first, end)
            sources.append(_by_entity(_SNAPSHOTS, states(snapshots)))
        for (id, type), rows in groupby(heapq.merge(*sources), itemgetter(0)):
            self._report.add(self._entity_differences(type, id, rows))
        self._report.compared += len(keys)
        return end

    def _next_keys(self, first: str, most: int) -> tuple[list[tuple[str, str]], str | None]:
        """Return the journal's entities of one part, and the ID before which it ends. An ID is never split."""
        keys, rows = list[tuple[str, str]](), 0
        for id, type, events in self._journal_reader.keys(first):
            rows += max(events, 1)
            if rows > most and keys and keys[-1][0] != id:
                return keys, id
            keys.append((id, type))
        return keys, None

    def _entity_differences(self, type: str, id: str, rows: Iterable[Any]) -> Iterator[LakeDifference]:
        """Compare one entity, of which the rows come by source."""
        kept: EntityState | None = None
        snapshots: list[int] = []
        events: Iterable[JournalEntry] = ()
        for _, source, found in rows:
            if source == _LATEST:
                kept, *others = found
                yield from self._state_differences(LATEST, kept)
                yield from (_row("there more than once", it) for it in others)
            elif source == _SNAPSHOTS:
                for row in found:
                    if row.revision in snapshots[-1:]:
                        yield _row("there more than once", row, SNAPSHOTS)
                    else:
                        yield from self._state_differences(SNAPSHOTS, row)
                    snapshots.append(row.revision)
            elif source == _EVENTS:
                events = found
                break
        if kept is None and (revision := self._least_revision(type, id)):
            state = self._journal_reader.state(type, id)
            yield LakeDifference(LATEST.name, "missing in the lake", id, revision if state is None else state.revision)
        yield from self._history_differences(type, id, kept, snapshots, events)

    def _state_differences(self, table: Table, kept: EntityState) -> Iterator[LakeDifference]:
        """Compare a row of `latest` or `snapshots` with the journal's state.

        At the same revision they are the same. A snapshot was once a row of `latest`, which may be newer than the watermark,
        never older.
        """
        key = (kept.entity_type, kept.entity)
        state = self._journal_reader.state(*key)
        if (erased := self._erased_differences(table, kept)) is not None:
            yield from erased
        elif state is None or state.revision < kept.revision:
            yield _row("unknown to the journal", kept, table)
        elif state.revision == kept.revision:
            if wrong := _differing_fields(state, kept):
                yield _row(f"{', '.join(wrong)} different from the journal", kept, table)
        elif table is LATEST and kept.revision < self._least_revision(*key):
            yield _row("older than the entity's events", kept)

    def _history_differences(
        self, type: str, id: str, kept: EntityState | None, snapshots: Sequence[int], lake: Iterable[JournalEntry]
    ) -> Iterator[LakeDifference]:
        """Compare the events of an entity, and what they lead to."""
        erased = self._journal_reader.beginning(type, id)[0]
        history = None if kept is None else _History(kept, erased)
        journal = self._journal_reader.history(type, id, self._report.last)
        rows_of_lake = iter(lake)
        oldest = next(rows_of_lake, None)
        # Retention may have followed other rules than the present ones.
        begin = boundary(erased, oldest and oldest.revision, False, snapshots) if self._has_retained else erased
        mine = next(journal, None)
        for revision, rows in groupby(chain(filter(None, [oldest]), rows_of_lake), attrgetter("revision")):
            while mine is not None and mine.revision < revision:
                yield from self._missing_event(mine, begin)
                mine = next(journal, None)
            first, *others = rows
            if mine is None or mine.revision > revision:
                yield from self._unknown_event(first)
            else:
                if mine != first:
                    wrong = ", ".join(name for name in _SAME if getattr(mine, name) != getattr(first, name))
                    yield _event(f"{wrong} different from the journal", mine)
                mine = next(journal, None)
            yield from (_event("there more than once", it) for it in others)
            if history is not None:
                history.add(first)
        while mine is not None:
            yield from self._missing_event(mine, begin)
            mine = next(journal, None)
        if history is not None:
            self._report.entities += bool(history.runs)
            erased, first_revision = self._journal_reader.beginning(type, id)
            if erased == history.erased:
                # One that was erased meanwhile is compared next time.
                yield from self._gaps(history, first_revision, snapshots)
                yield from history.replay_differences()

    def _missing_event(self, mine: JournalEntry, begin: int) -> Iterator[LakeDifference]:
        """An event that the lake does not have: up to `begin`, expired, or erased after it was read."""
        if mine.revision <= begin:
            return
        state = self._journal_reader.state(mine.entity_type, mine.entity)
        newest = mine.revision if state is None else state.revision
        if not self._is_expired(mine, newest) and self._erased_differences(EVENTS, mine) is None:
            yield _event("missing in the lake", mine)

    def _unknown_event(self, kept: JournalEntry) -> Iterator[LakeDifference]:
        """An event that the journal does not have: trimmed, newer than the watermark, or erased."""
        if not self._report.first <= kept.seq <= self._report.last:
            return
        if (erased := self._erased_differences(EVENTS, kept)) is not None:
            yield from erased
        elif self._is_expected(kept.seq):
            yield _event("not in the journal", kept)

    def _is_expected(self, seq: int) -> bool:
        """Whether the journal must have this event: one that it has trimmed is below its oldest."""
        if seq > self._oldest:
            self._oldest = self._journal_reader.oldest() or seq
        return seq > self._oldest

    def _gaps(self, history: _History, oldest: int | None, snapshots: Sequence[int]) -> Iterator[LakeDifference]:
        """Return the events up to the row's revision that are unexpectedly missing in lake and journal."""
        row, first = history.row, history.first
        # Events of the journal, from its `oldest` revision on, are compared one by one.
        last = row.revision if oldest is None else min(row.revision, oldest - 1)
        is_expired = first is not None and self._is_expired(first, row.revision)
        begin = boundary(history.erased, None if first is None else first.revision, is_expired, snapshots)
        for start, end in missing_ranges(history.runs, begin, last):
            text = "missing in the lake" if start == end else f"{end - start + 1} missing in the lake"
            yield LakeDifference(EVENTS.name, text, row.entity, start)

    def _least_revision(self, entity_type: str, entity: str) -> int:
        """Return the least revision of the entity's row in `latest`; 0 if it need not exist.

        Erasures are read last: one that comes in between explains missing rows.
        """
        reached = self._journal_reader.revision_at(entity_type, entity, self._report.last)
        erased, _ = self._journal_reader.beginning(entity_type, entity)
        return reached if reached > erased else 0

    def _erased_differences(self, table: Table, row: JournalEntry | EntityState) -> list[LakeDifference] | None:
        """Return the difference of an erased row, none if its erasure is pending; None for other rows."""
        # Also those that have been asked for since the last question.
        for it in self._journal_reader.erasures(self._newest_erasure):
            self._erasures.setdefault((it.entity, it.entity_type), []).append(it)
            self._newest_erasure = it.id
        found = [it for it in self._erasures.get(_key(row), ()) if row.seq <= it.seq]
        if any(it.id <= self._erased for it in found):
            return [LakeDifference(table.name, "erased, and still there", row.entity, row.revision, row.seq)]
        return [] if found else None


def _by_entity(source: int, rows: Iterable[JournalEntry] | Iterable[EntityState]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of each entity with its key and source, to be read before the next ones."""
    return ((key, source, group) for key, group in groupby(rows, _key))


class _History:
    """The events of an entity: existing revisions as ranges, and the state that they are folded into.

    They lead to its `row`. `first` is the oldest event after the revision `erased`, without its value.
    """

    def __init__(self, row: EntityState, erased: int) -> None:
        self.row, self.erased = row, erased
        self.first: JournalEntry | None = None
        self.runs: list[tuple[int, int]] = []
        self._folding = StateFold()
        self._damaged: JournalEntry | None = None
        self._entity = entity_of(row.entity_type, row.entity)

    def add(self, entry: JournalEntry) -> None:
        """Add the next event."""
        if self.first is None and entry.revision > self.erased:
            self.first = entry._replace(value=None, headers=b"")
        if self.runs and entry.revision <= self.runs[-1][1] + 1:
            self.runs[-1] = self.runs[-1][0], entry.revision
        else:
            self.runs.append((entry.revision, entry.revision))
        if entry.revision <= self.row.revision and self._damaged is None:
            try:
                self._folding.event(Event(self._entity, entry.revision, entry.timestamp, *entry[5:]), entry.seq)
            except msgspec.DecodeError:
                self._damaged = entry

    def replay_differences(self) -> Iterator[LakeDifference]:
        """Compare the row with the folded events."""
        if self._damaged is not None:
            yield _event("value that is no JSON", self._damaged)
            return
        made = self._folding.snapshot
        # Expired or future events lead nowhere; holes are reported elsewhere.
        if self._folding.ground is not FoldBase.EVENTS or made is None or made.revision != self.row.revision:
            return
        folded = EntityState(
            *self.row[:2], made.policy, made.revision, self._folding.seq, made.created, made.modified, state_text(made)
        )
        if wrong := _differing_fields(folded, self.row):
            yield _row(f"{', '.join(wrong)} different from a replay of the events", self.row)


def _differing_fields(state: EntityState, kept: EntityState) -> list[str]:
    wrong = [name for name in _STATE_SAME if getattr(state, name) != getattr(kept, name)]
    return wrong if is_same_text(state.state, kept.state) else [*wrong, "state"]


def _event(what: str, entry: JournalEntry) -> LakeDifference:
    return LakeDifference(EVENTS.name, what, entry.entity, entry.revision, entry.seq)


def _row(what: str, state: EntityState, table: Table = LATEST) -> LakeDifference:
    return LakeDifference(table.name, what, state.entity, state.revision)


def boundary(erased: int, first: int | None, is_expired: bool, snapshots: Iterable[int]) -> int:
    """The revision behind which every event of an entity has to be there.

    Retention takes a beginning, and leaves a snapshot at its end as the oldest one. Where `first`, the oldest event, is
    below that, retention has not got to its end: then `first` is past its time.
    """
    oldest = min((revision for revision in snapshots if revision > erased), default=erased)
    if first is None or first > oldest:
        return oldest
    return first - 1 if is_expired else erased


def missing_ranges(runs: Iterable[tuple[int, int]], begin: int, last: int) -> Iterator[tuple[int, int]]:
    """Return the ranges after `begin` up to `last` that are missing in `runs`, which ascend."""
    expected = begin + 1
    for start, end in runs:
        if expected < start <= last:
            yield expected, start - 1
        if start <= last:
            expected = max(expected, end + 1)
    if expected <= last:
        yield expected, last

"""Compares lake and journal row by row up to the watermark, without Spark.

First the lake itself (`spark_store.lake.check`), and the search index (`spark_store.maintenance.index_check`). Then the
events, in ranges of numbers; every row of `latest` and `snapshots` with the journal's states; and `latest` with the folded
events of a sample or of all entities, without missing revisions. Erased events are not missed, and reported if they are
still there. The progress is stored beside the watermark, so an interrupted comparison continues.

Memory is bounded: ranges end at a number of events or bytes, entities are folded in parts; the index takes eight bytes per
entity. It may run beside pipeline and service: newer rows than the watermark are ignored. It shares no code with the writers
of the tables.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable, translate_sqlite_error, translate_system_error
from spark_store.files import write_atomically
from spark_store.history.replay import FOLDABLE, FoldBase, StateFold, is_same_text, state_text
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import EntityState, JournalEntry, JournalReader
from spark_store.lake import rows as lake_rows
from spark_store.lake.check import check_lake
from spark_store.lake.rows import EntityRange, MemoryBound, MemoryBoundExceeded, size
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake, Table
from spark_store.lake.watermark import read_watermark
from spark_store.maintenance import index_check
from spark_store.records import entity_of

RANGE = 100_000
"""How many events are compared at once."""

RANGE_BYTES = 64 << 20
"""How many bytes of events are compared at once, or one event; and bytes of states."""

SAMPLE = 200
"""How many entities are folded if not all are."""

SHOWN = 50
"""How many differences are reported one by one; the others are counted."""

_SAME = ("entity_type", "entity", "revision", "timestamp", "action", "path", "value", "headers")
_STATE_SAME = ("policy", "seq", "created", "modified")


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
    """The progress of a comparison, and its results; also stored for an interrupted one.

    `first` to `last` are the events to compare, `compared` the last compared one; `latest` whether every row of `latest` was
    compared, and `unfolded` the ID from which on entities are not folded yet, None if none is left. `pending`: erasures that
    the lake has not done yet; `waiting`: events that it does not have yet. `indexed` whether the search index was compared,
    with how many entities; `unindexed`: entities that it has not reached yet.
    """

    first: int
    last: int
    compared: int
    latest: bool = False
    unfolded: str | None = ""
    rows: int = 0
    entities: int = 0
    count: int = 0
    pending: int = 0
    waiting: int = 0
    indexed: int | None = None
    unindexed: int = 0
    differences: list[LakeDifference] = []

    def add(self, found: Iterable[LakeDifference]) -> None:
        for difference in found:
            self.count += 1
            if len(self.differences) < SHOWN:
                self.differences = [*self.differences, difference]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of a comparison.

    `is_expired`: whether retention may have deleted an event of an entity with this newest revision. `fold_all`: fold every
    entity, and read every page of the lake.
    """

    is_expired: Callable[[JournalEntry, int], bool] = lambda _entry, _newest: False
    fold_all: bool = False
    restart: bool = False
    range: int = RANGE
    bytes: int = RANGE_BYTES

    @property
    def bound(self) -> MemoryBound:
        return MemoryBound(self.range, self.bytes)


def verify(place: Lake, options: VerifyOptions, say: Callable[[VerifyReport], object] | None = None) -> VerifyReport:
    """Compare the journal with the lake. `say` receives progress after each range and each part.

    Raises LakeUnfit, SchemaTooNew, StoreUnavailable; the progress is stored.
    """
    watermark = read_watermark(place.watermark)
    last = watermark.seq
    with JournalReader.open(place.journal) as journal_reader:
        decision = None if options.restart else _load_report(place.progress_file)
        if decision is None:
            oldest = journal_reader.oldest()
            first = last + 1 if oldest is None else oldest
            decision = VerifyReport(first, last, first - 1)
        check_lake(place, journal_reader, every_page=options.fold_all)
        for _ in _steps(_Work(place, journal_reader, options, watermark.erased, _Erasures(journal_reader)), decision):
            _remember(place.progress_file, decision)
            if say is not None:
                say(decision)
        decision.waiting = max(0, journal_reader.newest() - last)
        decision.pending = len(journal_reader.erasures(read_watermark(place.watermark).erased))
    place.progress_file.unlink(missing_ok=True)
    return decision


class _Erasures:
    """The erasures of each entity: also those that have been asked for since the last question."""

    def __init__(self, journal_reader: JournalReader) -> None:
        self._journal_reader = journal_reader
        self._newest = 0
        self._known: dict[tuple[str, str], list[Erasure]] = {}

    def entities(self) -> set[tuple[str, str]]:
        """Return every erased entity. Raises StoreUnavailable."""
        self._look()
        return set(self._known)

    def of(self, entity_type: str, entity: str) -> list[Erasure]:
        """Raises StoreUnavailable."""
        self._look()
        return self._known.get((entity_type, entity), [])

    def _look(self) -> None:
        for erasure in self._journal_reader.erasures(self._newest):
            self._known.setdefault((erasure.entity_type, erasure.entity), []).append(erasure)
            self._newest = erasure.id


class _Work(NamedTuple):
    """The scope of a comparison. Erasures up to the ID `erased` are done in the lake, too."""

    place: Lake
    journal_reader: JournalReader
    options: VerifyOptions
    erased: int
    erasures: _Erasures


def _steps(work: _Work, decision: VerifyReport) -> Iterator[None]:
    place, options = work.place, work.options
    if decision.indexed is None:
        _compare_index(place, decision)
    while decision.compared < decision.last:
        first, last = decision.compared + 1, min(decision.last, decision.compared + options.range)
        last, found = _compare_events(work, first, last)
        decision.add(found)
        decision.compared = last
        decision.rows += last - first + 1
        yield
    if decision.last == 0:
        return
    if not decision.latest:
        decision.add(_compare_latest(work, decision.last))
        decision.add(_compare_snapshots(work))
        decision.latest = True
        yield
    while decision.unfolded is not None:
        part = _next_part(work, decision.unfolded) if options.fold_all else None
        number, folded = _compare_folded(work, part)
        decision.add(folded)
        decision.entities += number
        decision.unfolded = None if part is None else part.end
        yield


def _compare_index(place: Lake, decision: VerifyReport) -> None:
    found = index_check.compare(place.journal)
    decision.indexed, decision.unindexed = found.entities, found.waiting
    decision.add(LakeDifference("search index", *it) for it in found.examples)
    decision.count += max(0, found.differing - len(found.examples))


def _compare_events(work: _Work, first: int, last: int) -> tuple[int, list[LakeDifference]]:
    """Compare a range of events; return up to which number, and the differences."""
    while True:
        last, journal = _range(work, first, last)
        try:
            # Missing events of the journal may be in the lake. One number is read whatever its size.
            bound = work.options.bound if last > first else lake_rows.UNBOUND
            return last, list(_events_unlike(work, journal, lake_rows.events_between(work.place, first, last, bound)))
        except MemoryBoundExceeded:
            last = (first + last) // 2


def _range(work: _Work, first: int, last: int) -> tuple[int, dict[int, JournalEntry]]:
    """The journal's events up to `last`, or to the one with which they are enough; and which that is."""
    journal: dict[int, JournalEntry] = {}
    held = 0
    for entry in work.journal_reader.entries(first, last):
        held += size(entry)
        if journal and held > work.options.bytes:
            return entry.seq - 1, journal
        journal[entry.seq] = entry
    return last, journal


def _events_unlike(
    work: _Work, journal: dict[int, JournalEntry], lake: Iterable[JournalEntry]
) -> Iterator[LakeDifference]:
    journal_reader, options = work.journal_reader, work.options
    # Read after the entries: events trimmed meanwhile are not missed.
    oldest, before = journal_reader.oldest(), 0
    for kept in lake:
        entry = journal.pop(kept.seq, None)
        if kept.seq == before:
            yield _event("there more than once", kept)
        elif entry is None:
            is_erased = _is_erased(work, EVENTS, kept)
            if isinstance(is_erased, LakeDifference):
                yield is_erased
            elif not is_erased and oldest is not None and kept.seq > oldest:
                yield _event("not in the journal", kept)
        elif wrong := [name for name in _SAME if getattr(entry, name) != getattr(kept, name)]:
            yield _event(f"{', '.join(wrong)} different from the journal", entry)
        before = kept.seq
    for entry in journal.values():
        state = journal_reader.state(entry.entity_type, entry.entity)
        newest = entry.revision if state is None else state.revision
        # It may have been erased after it was read.
        if not options.is_expired(entry, newest) and not _is_erased(work, EVENTS, entry):
            yield _event("missing in the lake", entry)


def _is_erased(work: _Work, table: Table, row: JournalEntry | EntityState) -> bool | LakeDifference:
    """Whether a row belongs to an erased entity.

    A pending erasure of the lake, or one that should be done.
    """
    found = [it for it in work.erasures.of(row.entity_type, row.entity) if row.seq <= it.seq]
    if any(it.id <= work.erased for it in found):
        return LakeDifference(table.name, "erased, and still there", row.entity, row.revision, row.seq)
    return bool(found)


def _event(what: str, entry: JournalEntry) -> LakeDifference:
    return LakeDifference(EVENTS.name, what, entry.entity, entry.revision, entry.seq)


class SeenKeys:
    """Keys that were seen, in a file without a name.

    It disappears with the process.
    """

    def __init__(self, folder: Path) -> None:
        try:
            handle, name = tempfile.mkstemp(dir=folder)
        except OSError as error:
            raise translate_system_error(folder, error) from error
        os.close(handle)
        self._path = Path(name)
        self._connection = sqlite3.connect(name, isolation_level=None)
        self._path.unlink()
        self._execute("PRAGMA journal_mode = OFF")
        self._execute("CREATE TABLE seen (entity, type, revision, PRIMARY KEY (entity, type, revision)) WITHOUT ROWID")
        # Never committed: it only holds what the cache cannot, and never waits for the disk.
        self._execute("BEGIN")

    def add(self, entity_type: str, entity: str, revision: int = 0) -> bool:
        """Add a key; return whether it is new."""
        return self._execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", entity, entity_type, revision).rowcount > 0

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, parameters)
        except sqlite3.Error as error:
            raise translate_sqlite_error(self._path, error) from error


def _compare_latest(work: _Work, last: int) -> Iterator[LakeDifference]:
    """Compare rows of `latest` with the journal's states.

    A row may be newer than the watermark, never older; at the journal's revision it is the same.
    """
    place, journal_reader, *_ = work
    with contextlib.closing(SeenKeys(place.pipeline)) as seen:
        for kept in lake_rows.latest_states(place):
            if seen.add(kept.entity_type, kept.entity):
                yield from _latest_unlike(work, kept, last)
            else:
                yield _row("there more than once", kept)
        for state in journal_reader.states(1, 0):
            if seen.add(state.entity_type, state.entity) and _least_revision(journal_reader, *state[:2], last):
                yield _row("missing in the lake", state)


def _latest_unlike(work: _Work, kept: EntityState, last: int) -> Iterator[LakeDifference]:
    state = work.journal_reader.state(kept.entity_type, kept.entity)
    if state is None or state.revision < kept.revision:
        yield from _unknown(work, LATEST, kept)
    elif state.revision > kept.revision:
        is_erased = _is_erased(work, LATEST, kept)
        if isinstance(is_erased, LakeDifference):
            yield is_erased
        elif kept.revision < _least_revision(work.journal_reader, kept.entity_type, kept.entity, last):
            yield _row("older than the entity's events", kept)
    elif wrong := _unlike(state, kept):
        yield _row(f"{', '.join(wrong)} different from the journal", kept)


def _least_revision(journal_reader: JournalReader, entity_type: str, entity: str, last: int) -> int:
    """Return the least revision of the entity's row in `latest`; 0 if it need not exist.

    Erasures are read last: one that comes in between explains missing rows.
    """
    reached = journal_reader.revision_at(entity_type, entity, last)
    erased, _ = journal_reader.beginning(entity_type, entity)
    return reached if reached > erased else 0


def _compare_snapshots(work: _Work) -> Iterator[LakeDifference]:
    """Compare rows of `snapshots`.

    A snapshot was once a row of `latest`: never newer than its entity, and the same at its entity's revision.
    """
    erased = work.erasures.entities()
    with contextlib.closing(SeenKeys(work.place.pipeline)) as seen:
        for kept in lake_rows.snapshots(work.place):
            key = (kept.entity_type, kept.entity)
            is_new = seen.add(*key, kept.revision)
            state = work.journal_reader.state(*key)
            if key in erased and (is_erased := _is_erased(work, SNAPSHOTS, kept)):
                yield from [is_erased] if isinstance(is_erased, LakeDifference) else []
            elif not is_new:
                yield _row("there more than once", kept, SNAPSHOTS)
            elif state is None or state.revision < kept.revision:
                yield from _unknown(work, SNAPSHOTS, kept)
            elif state.revision == kept.revision and (wrong := _unlike(state, kept)):
                yield _row(f"{', '.join(wrong)} different from the journal", kept, SNAPSHOTS)


def _unknown(work: _Work, table: Table, kept: EntityState) -> Iterator[LakeDifference]:
    """A row that the journal does not know: an erasure explains it, or nothing does."""
    is_erased = _is_erased(work, table, kept)
    if isinstance(is_erased, LakeDifference):
        yield is_erased
    elif not is_erased:
        yield _row("unknown to the journal", kept, table)


def _unlike(state: EntityState, kept: EntityState) -> list[str]:
    wrong = [name for name in _STATE_SAME if getattr(state, name) != getattr(kept, name)]
    return wrong if is_same_text(state.state, kept.state) else [*wrong, "state"]


def _next_part(work: _Work, first: str) -> EntityRange:
    """Return entities from the ID `first` on, as many as may be folded at once."""
    return EntityRange(first, end_of_part(work.journal_reader.sizes(first), work.options.bound))


def end_of_part(sizes: Iterable[tuple[str, int, int]], bound: MemoryBound) -> str | None:
    """Return the ID before which a part ends; None if all fit.

    From IDs in order, each with a number of events and the bytes of a state. An ID is never split.
    """
    begun = ""
    rows = bytes = 0
    for id, events, length in sizes:
        rows += max(events, 1)
        bytes += length
        if begun not in ("", id) and (rows > bound.rows or bytes > bound.bytes):
            return id
        begun = id
    return None


def _compare_folded(work: _Work, part: EntityRange | None) -> tuple[int, list[LakeDifference]]:
    """Compare folded entities; return how many, and the differences. Without a part: a sample.

    Tables are read in the order in which they are written, retention and erasures last: so nothing that is added or deleted
    meanwhile seems to be missing.
    """
    place = work.place
    rows = sample(lake_rows.latest_states(place), SAMPLE) if part is None else lake_rows.states_in(place, part)
    group = sorted(rows, key=lambda row: row.entity)
    histories = [(row, _history(work, row, entries)) for row, entries in _events(work, group, part is not None)]
    names = list(dict.fromkeys(row.entity for row in group))
    snapshots = lake_rows.snapshot_revisions(place, names if part is None else part)
    found: list[LakeDifference] = []
    for row, history in histories:
        found += _gaps(work, row, history, snapshots.get((row.entity_type, row.entity), []))
        found += history.unlike
    return sum(bool(history.runs) and row.entity_type in FOLDABLE for row, history in histories), found


def _events(
    work: _Work, group: Sequence[EntityState], is_whole: bool
) -> Iterator[tuple[EntityState, Callable[[], Iterable[JournalEntry]]]]:
    """Each row of a group, which is by id, with a way to go through its events, in order.

    Those of all are read at once; of more than may be held, those of each half, and of one entity step by step. `is_whole`:
    no row between these was left out.
    """
    place, bound = work.place, work.options.bound
    names = list(dict.fromkeys(row.entity for row in group))
    if not names:
        return
    # The least text after the last ID.
    events = _load_all(place, EntityRange(names[0], f"{names[-1]}\0") if is_whole else names, bound)
    if events is None and len(names) == 1:
        for row in group:
            yield row, partial(lake_rows.history, place, row.entity_type, row.entity, row.revision, bound)
        return
    if events is None:
        middle = names[len(names) // 2]
        yield from _events(work, [row for row in group if row.entity < middle], is_whole)
        yield from _events(work, [row for row in group if row.entity >= middle], is_whole)
        return
    entries: dict[tuple[str, str], list[JournalEntry]] = {}
    for entry in events:
        entries.setdefault((entry.entity_type, entry.entity), []).append(entry)
    del events
    for row in group:
        yield row, partial(iter, entries.get((row.entity_type, row.entity), []))


def _load_all(place: Lake, of: EntityRange | Sequence[str], bound: MemoryBound) -> list[JournalEntry] | None:
    """Return all events of these entities; None if they exceed the bound of memory."""
    try:
        return lake_rows.events_of(place, of, bound)
    except MemoryBoundExceeded:
        return None


class _History(NamedTuple):
    """The events of an entity.

    The oldest one after the revision `erased`, without its value, the existing revisions as ranges, and the differences of
    its row from the folded events. `oldest` is the journal's.
    """

    erased: int
    oldest: int | None
    first: JournalEntry | None
    runs: list[tuple[int, int]]
    unlike: list[LakeDifference]


def _history(work: _Work, row: EntityState, entries: Callable[[], Iterable[JournalEntry]]) -> _History:
    """Goes through the events once, or again where the entity was erased meanwhile."""
    begun = work.journal_reader.beginning(row.entity_type, row.entity)
    while True:
        history = _read(row, entries(), *begun)
        begun = work.journal_reader.beginning(row.entity_type, row.entity)
        if begun[0] == history.erased:
            return history


def _read(row: EntityState, entries: Iterable[JournalEntry], erased: int, oldest: int | None) -> _History:
    first: JournalEntry | None = None
    runs: list[tuple[int, int]] = []
    folding, seq = StateFold(), 0
    entity = entity_of(row.entity_type, row.entity) if row.entity_type in FOLDABLE else None
    for entry in entries:
        if first is None and entry.revision > erased:
            first = entry._replace(value=None, headers=b"")
        if runs and runs[-1][0] <= entry.revision <= runs[-1][1] + 1:
            runs[-1] = runs[-1][0], max(runs[-1][1], entry.revision)
        else:
            runs.append((entry.revision, entry.revision))
        if entity is not None and entry.revision <= row.revision:
            seq = entry.seq
            folding.event(Event(entity, entry.revision, entry.timestamp, *entry[5:]))
    return _History(erased, oldest, first, runs, list(_folded_unlike(row, folding, seq)))


def _gaps(work: _Work, row: EntityState, history: _History, snapshots: Sequence[int]) -> Iterator[LakeDifference]:
    """Return the events up to the row's revision that are unexpectedly missing in lake and journal."""
    erased, oldest, first = history.erased, history.oldest, history.first
    # Events of the journal are compared one by one.
    last = row.revision if oldest is None else min(row.revision, oldest - 1)
    if first is not None and erased == 0 and any(it.seq < first.seq for it in work.erasures.of(*row[:2])):
        # The revision of an earlier version's erasure may be unknown.
        erased = first.revision - 1
    is_expired = first is not None and work.options.is_expired(first, row.revision)
    begin = boundary(erased, None if first is None else first.revision, is_expired, snapshots)
    for start, end in missing_ranges(history.runs, begin, last):
        text = "missing in the lake" if start == end else f"{end - start + 1} missing in the lake"
        yield LakeDifference(EVENTS.name, text, row.entity, start)


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


def _folded_unlike(row: EntityState, folding: StateFold, seq: int) -> Iterator[LakeDifference]:
    made = folding.snapshot
    # Expired or future events lead nowhere; holes are reported elsewhere.
    if folding.ground is not FoldBase.EVENTS or made is None or made.revision != row.revision:
        return
    folded = EntityState(*row[:2], made.policy, made.revision, seq, made.created, made.modified, state_text(made))
    if wrong := _unlike(folded, row):
        yield _row(f"{', '.join(wrong)} different from a replay of the events", row)


def _row(what: str, state: EntityState, table: Table = LATEST) -> LakeDifference:
    return LakeDifference(table.name, what, state.entity, state.revision)


def sample(rows: Iterable[EntityState], size: int) -> list[EntityState]:
    """Return about `size` rows, at least half as many if possible, spread over all of them."""
    found: list[EntityState] = []
    step = 1
    for number, row in enumerate(rows):
        if number % step == 0:
            found.append(row)
            if len(found) > size:
                found, step = found[::2], step * 2
    return found


def _load_report(path: Path) -> VerifyReport | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=VerifyReport)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_system_error(path, error) from error
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(
            f"{path}: expected the progress of a verification, found {error}; use --restart"
        ) from error


def _remember(path: Path, decision: VerifyReport) -> None:
    try:
        write_atomically(path, msgspec.json.encode(decision))
    except OSError as error:
        raise translate_system_error(path, error) from error

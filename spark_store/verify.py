"""Compares lake and journal, row for row, as far as the watermark says that they should be the same. Without Spark.

First of all the journal's search index is compared with its states (`spark_store.index_check`). Then three steps, one after
the other: the events, in ranges of their numbers; every row of `latest` and `snapshots` with the journal's states; and rows
of `latest` with what their events fold to (a sample of entities, or all of them). Of these entities also the events are
looked for that the journal has trimmed: from the beginning, from an erasure, or from the snapshot that retention has left,
up to `latest`, no revision may be missing. What was erased is not missed, and reported where it is still there although the
pipeline has done it. How far it came stands in a file beside the watermark: a comparison that was interrupted goes on there,
one that came to its end begins anew the next time. Memory is bounded by a range of events, also where a part of the
entities, or one of them, has more: those are read in steps.

It may run beside a pipeline and a service. The watermark is read once, before any table: whatever is on its way is above
it, and told apart from what is missing. It shares no code with who writes the tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from mappings.ids import EntityType
from mappings.signals import Event
from spark_store import index_check, lake_rows
from spark_store.erasure import Erasure
from spark_store.errors import StoreUnavailable
from spark_store.faults import system_fault
from spark_store.folding import Folding, Ground, is_same_text, state_text
from spark_store.follower import Entry, Follower, State
from spark_store.lake_rows import Part
from spark_store.records import entity_of
from spark_store.tables import EVENTS, LATEST, SNAPSHOTS, Lake, Table
from spark_store.watermark import read_watermark
from spark_store.whole import write_whole

RANGE = 100_000
"""So many events are compared at once."""

SAMPLE = 200
"""So many entities are folded where not all of them are."""

SHOWN = 50
"""Differences that are told one by one; the others are counted."""

_FOLDABLE = {type.value for type in EntityType}
_SAME = ("entity_type", "entity", "revision", "timestamp", "action", "path", "value", "headers")
_STATE_SAME = ("policy", "seq", "created", "modified")


class Difference(msgspec.Struct, frozen=True):
    """What differs where: the event's number (None for a row of `latest`), the entity, its revision."""

    table: str
    what: str
    entity: str
    revision: int
    seq: int | None = None

    def __str__(self) -> str:
        number = "" if self.seq is None else f", event {self.seq}"
        return f"{self.table}: {self.what}: {self.entity} at revision {self.revision}{number}"


class Verdict(msgspec.Struct):
    """How far a comparison came, and what it found: also what is kept of one that was interrupted.

    `first` to `last` are the events that are compared, `compared` the last one that was; `latest` whether every row of
    `latest` was, and `folded` how many of the parts of entities were. `pending`: erasures that the lake has not done yet.
    `indexed` whether the search index was, with how many entities; `unindexed`: entities that it has not reached yet.
    """

    first: int
    last: int
    compared: int
    latest: bool = False
    folded: int = 0
    parts: list[Part] | None = None
    rows: int = 0
    entities: int = 0
    count: int = 0
    pending: int = 0
    indexed: int | None = None
    unindexed: int = 0
    differences: list[Difference] = []

    def add(self, found: Iterable[Difference]) -> None:
        for difference in found:
            self.count += 1
            if len(self.differences) < SHOWN:
                self.differences = [*self.differences, difference]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`is_expired`: whether an event, of an entity with this newest revision, is past its time, so that the lake need not
    have it. `fold_all`: fold every entity."""

    is_expired: Callable[[Entry, int], bool] = lambda _entry, _newest: False
    fold_all: bool = False
    restart: bool = False
    range: int = RANGE


def verify(place: Lake, options: VerifyOptions, say: Callable[[Verdict], object] | None = None) -> Verdict:
    """Compare what the journal still has with the lake. `say` is told after each range and each part.

    Raises SchemaTooNew, StoreUnavailable; what was compared until then is remembered.
    """
    watermark = read_watermark(place.watermark)
    last = watermark.seq
    with Follower.open(place.journal) as follower:
        verdict = None if options.restart else _remembered(place.verified)
        if verdict is None:
            oldest = follower.oldest()
            first = last + 1 if oldest is None else oldest
            verdict = Verdict(first, last, first - 1)
        for _ in _steps(_Work(place, follower, options, watermark.erased, _Erasures(follower)), verdict):
            _remember(place.verified, verdict)
            if say is not None:
                say(verdict)
        verdict.pending = len(follower.erasures(read_watermark(place.watermark).erased))
    place.verified.unlink(missing_ok=True)
    return verdict


class _Erasures:
    """The erasures of each entity: also those that have been asked for since the last question."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._newest = 0
        self._known: dict[tuple[str, str], list[Erasure]] = {}

    def entities(self) -> set[tuple[str, str]]:
        """All that were ever erased. Raises StoreUnavailable."""
        self._look()
        return set(self._known)

    def of(self, entity_type: str, entity: str) -> list[Erasure]:
        """Raises StoreUnavailable."""
        self._look()
        return self._known.get((entity_type, entity), [])

    def _look(self) -> None:
        for erasure in self._follower.erasures(self._newest):
            self._known.setdefault((erasure.entity_type, erasure.entity), []).append(erasure)
            self._newest = erasure.id


class _Work(NamedTuple):
    """What is compared, and how. Erasures up to the number `erased` have left the lake, too."""

    place: Lake
    follower: Follower
    options: VerifyOptions
    erased: int
    erasures: _Erasures


def _steps(work: _Work, verdict: Verdict) -> Iterator[None]:
    place, options = work.place, work.options
    if verdict.indexed is None:
        _compare_index(place, verdict)
    while verdict.compared < verdict.last:
        first, last = verdict.compared + 1, min(verdict.last, verdict.compared + options.range)
        verdict.add(_compare_events(work, first, last))
        verdict.compared = last
        verdict.rows += last - first + 1
        yield
    if verdict.last == 0:
        return
    if not verdict.latest:
        verdict.add(_compare_latest(work, verdict.last))
        verdict.add(_compare_snapshots(work))
        verdict.latest = True
        yield
    if options.fold_all and verdict.parts is None:
        verdict.parts = lake_rows.parts(place, options.range)
    parts: list[Part | None] = [None] if verdict.parts is None else [*verdict.parts]
    for part in parts[verdict.folded :]:
        number, found = _compare_folded(work, part)
        verdict.add(found)
        verdict.entities += number
        verdict.folded += 1
        yield


def _compare_index(place: Lake, verdict: Verdict) -> None:
    found = index_check.compare(place.journal)
    verdict.indexed, verdict.unindexed = found.entities, found.waiting
    verdict.add(Difference("search index", *it) for it in found.examples)
    verdict.count += max(0, found.differing - len(found.examples))


def _compare_events(work: _Work, first: int, last: int) -> Iterator[Difference]:
    place, follower, options, *_ = work
    journal = {entry.seq: entry for entry in follower.entries(first, last)}
    # Asked after the entries: what was trimmed meanwhile is not missed.
    oldest, before = follower.oldest(), 0
    for kept in lake_rows.events_between(place, first, last):
        entry = journal.pop(kept.seq, None)
        if kept.seq == before:
            yield _event("there more than once", kept)
        elif entry is None:
            is_erased = _is_erased(work, EVENTS, kept)
            if isinstance(is_erased, Difference):
                yield is_erased
            elif not is_erased and oldest is not None and kept.seq > oldest:
                yield _event("not in the journal", kept)
        elif wrong := [name for name in _SAME if getattr(entry, name) != getattr(kept, name)]:
            yield _event(f"{', '.join(wrong)} not as in the journal", entry)
        before = kept.seq
    for entry in journal.values():
        state = follower.state(entry.entity_type, entry.entity)
        newest = entry.revision if state is None else state.revision
        # It may have been erased after it was read.
        if not options.is_expired(entry, newest) and not _is_erased(work, EVENTS, entry):
            yield _event("missing in the lake", entry)


def _is_erased(work: _Work, table: Table, row: Entry | State) -> bool | Difference:
    """Whether a row is that of an erased entity: what the pipeline has still to do, or what it should have done."""
    found = [it for it in work.erasures.of(row.entity_type, row.entity) if row.seq <= it.seq]
    if any(it.id <= work.erased for it in found):
        return Difference(table.name, "erased, and still there", row.entity, row.revision, row.seq)
    return bool(found)


def _event(what: str, entry: Entry) -> Difference:
    return Difference(EVENTS.name, what, entry.entity, entry.revision, entry.seq)


def _compare_latest(work: _Work, last: int) -> Iterator[Difference]:
    """A row may be newer than the events below the watermark, never older; at the journal's revision it is the same."""
    place, follower, *_ = work
    seen: set[tuple[str, str]] = set()
    for kept in lake_rows.latest_states(place):
        key = (kept.entity_type, kept.entity)
        if key in seen:
            yield _row("there more than once", kept)
            continue
        seen.add(key)
        state = follower.state(*key)
        if state is None or state.revision < kept.revision:
            yield from _unknown(work, LATEST, kept)
        elif state.revision > kept.revision:
            is_erased = _is_erased(work, LATEST, kept)
            if isinstance(is_erased, Difference):
                yield is_erased
            elif kept.revision < _owed(follower, *key, last):
                yield _row("older than the entity's events", kept)
        elif wrong := _unlike(state, kept):
            yield _row(f"{', '.join(wrong)} not as in the journal", kept)
    for state in follower.states(1, 0):
        if (state.entity_type, state.entity) not in seen and _owed(follower, *state[:2], last):
            yield _row("missing in the lake", state)


def _owed(follower: Follower, entity_type: str, entity: str, last: int) -> int:
    """The revision that the entity's row of `latest` has at least; 0 where there need not be one.

    An erasure is looked for last: one that comes in between takes with it what was there before.
    """
    reached = follower.revision_at(entity_type, entity, last)
    erased, _ = follower.beginning(entity_type, entity)
    return reached if reached > erased else 0


def _compare_snapshots(work: _Work) -> Iterator[Difference]:
    """A snapshot was once a row of `latest`: never newer than its entity, and the same at its entity's revision."""
    seen: set[tuple[str, str, int]] = set()
    erased = work.erasures.entities()
    for kept in lake_rows.snapshots(work.place):
        key = (kept.entity_type, kept.entity, kept.revision)
        state = work.follower.state(kept.entity_type, kept.entity)
        if key[:2] in erased and (is_erased := _is_erased(work, SNAPSHOTS, kept)):
            yield from [is_erased] if isinstance(is_erased, Difference) else []
        elif key in seen:
            yield _row("there more than once", kept, SNAPSHOTS)
        elif state is None or state.revision < kept.revision:
            yield from _unknown(work, SNAPSHOTS, kept)
        elif state.revision == kept.revision and (wrong := _unlike(state, kept)):
            yield _row(f"{', '.join(wrong)} not as in the journal", kept, SNAPSHOTS)
        seen.add(key)


def _unknown(work: _Work, table: Table, kept: State) -> Iterator[Difference]:
    """A row that the journal does not know: an erasure explains it, or nothing does."""
    is_erased = _is_erased(work, table, kept)
    if isinstance(is_erased, Difference):
        yield is_erased
    elif not is_erased:
        yield _row("unknown to the journal", kept, table)


def _unlike(state: State, kept: State) -> list[str]:
    wrong = [name for name in _STATE_SAME if getattr(state, name) != getattr(kept, name)]
    return wrong if is_same_text(state.state, kept.state) else [*wrong, "state"]


def _compare_folded(work: _Work, part: Part | None) -> tuple[int, list[Difference]]:
    """How many entities, and what differs. Without a part: a sample.

    What grows is read in the order in which it is written, and what retention and erasures leave behind at last: so nothing
    seems to be missing that comes or goes meanwhile.
    """
    place, most = work.place, work.options.range
    rows = sample(lake_rows.latest_states(place), SAMPLE) if part is None else list(lake_rows.states_in(place, part))
    number = 0
    found: list[Difference] = []
    for group in groups(rows, most):
        names = list(dict.fromkeys(row.entity for row in group))
        # Up to the last one: nothing lies between it and what its id with one more character would be.
        of = names if part is None else Part(names[0], f"{names[-1]}\0")
        histories = [(row, _history(work, row, entries)) for row, entries in _events(place, group, of, most)]
        snapshots = lake_rows.snapshot_revisions(place, of)
        for row, history in histories:
            found += _gaps(work, row, history, snapshots.get((row.entity_type, row.entity), []))
            if history.runs and row.entity_type in _FOLDABLE:
                number += 1
                found += _folded_unlike(row, history)
    return number, found


def groups(rows: Iterable[State], most: int) -> Iterator[list[State]]:
    """All rows, by id, in groups that have led to at most so many events, or are of one id."""
    group: list[State] = []
    events = 0
    for _, same in itertools.groupby(sorted(rows, key=lambda row: row.entity), key=lambda row: row.entity):
        these = list(same)
        more = sum(row.revision for row in these)
        if group and events + more > most:
            yield group
            group, events = [], 0
        group += these
        events += more
    if group:
        yield group


def _events(
    place: Lake, group: Sequence[State], of: Part | Sequence[str], most: int
) -> Iterator[tuple[State, Callable[[], Iterable[Entry]]]]:
    """Each row with a way to go through its events, in order: those of a group are read at once, a long history in steps."""
    if sum(row.revision for row in group) > most:
        for row in group:
            yield row, partial(lake_rows.history, place, row.entity_type, row.entity, row.revision, most)
        return
    events = lake_rows.events_in(place, of) if isinstance(of, Part) else lake_rows.events_of(place, of)
    entries = {key: list(found) for key, found in itertools.groupby(events, key=lambda it: (it.entity_type, it.entity))}
    for row in group:
        yield row, partial(iter, entries.get((row.entity_type, row.entity), []))


class _History(NamedTuple):
    """What an entity's events say: the oldest one behind the revision `erased`, the revisions that are there, as first and
    last ones, and what those up to the row fold to, with the number of the last of them. `oldest` as the journal has it."""

    erased: int
    oldest: int | None
    first: Entry | None
    runs: list[tuple[int, int]]
    folding: Folding
    seq: int


def _history(work: _Work, row: State, entries: Callable[[], Iterable[Entry]]) -> _History:
    """Goes through the events once, or again where the entity was erased meanwhile."""
    begun = work.follower.beginning(row.entity_type, row.entity)
    while True:
        history = _read(row, entries(), *begun)
        begun = work.follower.beginning(row.entity_type, row.entity)
        if begun[0] == history.erased:
            return history


def _read(row: State, entries: Iterable[Entry], erased: int, oldest: int | None) -> _History:
    first: Entry | None = None
    runs: list[tuple[int, int]] = []
    folding, seq = Folding(), 0
    entity = entity_of(row.entity_type, row.entity) if row.entity_type in _FOLDABLE else None
    for entry in entries:
        if first is None and entry.revision > erased:
            first = entry
        if runs and runs[-1][0] <= entry.revision <= runs[-1][1] + 1:
            runs[-1] = runs[-1][0], max(runs[-1][1], entry.revision)
        else:
            runs.append((entry.revision, entry.revision))
        if entity is not None and entry.revision <= row.revision:
            seq = entry.seq
            folding.event(Event(entity, entry.revision, entry.timestamp, *entry[5:]))
    return _History(erased, oldest, first, runs, folding, seq)


def _gaps(work: _Work, row: State, history: _History, snapshots: Sequence[int]) -> Iterator[Difference]:
    """The events up to the row's one that are neither in the lake nor in the journal, though nothing explains that."""
    erased, oldest, first = history.erased, history.oldest, history.first
    # What the journal still has is compared one by one.
    last = row.revision if oldest is None else min(row.revision, oldest - 1)
    if first is not None and erased == 0 and any(it.seq < first.seq for it in work.erasures.of(*row[:2])):
        # Of an erasure in an earlier version the revision may not be known.
        erased = first.revision - 1
    is_expired = first is not None and work.options.is_expired(first, row.revision)
    begin = border(erased, None if first is None else first.revision, is_expired, snapshots)
    for start, end in missing(history.runs, begin, last):
        text = "missing in the lake" if start == end else f"{end - start + 1} missing in the lake"
        yield Difference(EVENTS.name, text, row.entity, start)


def border(erased: int, first: int | None, is_expired: bool, snapshots: Iterable[int]) -> int:
    """The revision behind which every event of an entity has to be there.

    Retention takes a beginning, and leaves a snapshot at its end as the oldest one. Where `first`, the oldest event, is
    below that, retention has not got to its end: then `first` is past its time.
    """
    oldest = min((revision for revision in snapshots if revision > erased), default=erased)
    if first is None or first > oldest:
        return oldest
    return first - 1 if is_expired else erased


def missing(runs: Iterable[tuple[int, int]], begin: int, last: int) -> Iterator[tuple[int, int]]:
    """What lacks of everything behind `begin` up to `last`, as first and last ones, like `runs`, which ascend."""
    expected = begin + 1
    for start, end in runs:
        if expected < start <= last:
            yield expected, start - 1
        if start <= last:
            expected = max(expected, end + 1)
    if expected <= last:
        yield expected, last


def _folded_unlike(row: State, history: _History) -> Iterator[Difference]:
    made = history.folding.snapshot
    # Events that are past their time, or not there yet, lead nowhere; holes are told elsewhere.
    if history.folding.ground is not Ground.EVENTS or made is None or made.revision != row.revision:
        return
    folded = State(*row[:2], made.policy, made.revision, history.seq, made.created, made.modified, state_text(made))
    if wrong := _unlike(folded, row):
        yield _row(f"{', '.join(wrong)} not as the events make it", row)


def _row(what: str, state: State, table: Table = LATEST) -> Difference:
    return Difference(table.name, what, state.entity, state.revision)


def sample(rows: Iterable[State], size: int) -> list[State]:
    """About `size` rows, at least half of that if there are so many, spread over all of them."""
    found: list[State] = []
    step = 1
    for number, row in enumerate(rows):
        if number % step == 0:
            found.append(row)
            if len(found) > size:
                found, step = found[::2], step * 2
    return found


def _remembered(path: Path) -> Verdict | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verdict)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise system_fault(path, error) from error
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"{path}: expected how far a comparison came, found {error}; say --restart") from error


def _remember(path: Path, verdict: Verdict) -> None:
    try:
        write_whole(path, msgspec.json.encode(verdict))
    except OSError as error:
        raise system_fault(path, error) from error

"""Reads many rows of the lake without Spark, for comparisons and rebuilds.

A table is opened at its newest version and read in batches, so memory is bounded by a batch, and by reading two files at
once. Lists are bounded by the caller. Files that cannot contain requested rows are not opened. Nothing is kept between
calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from mappings.timestamps import utc_text
from spark_store.journal.reader import EntityState, JournalEntry
from spark_store.lake.reader import CHECKED, open_table
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS, Lake, Table

_BATCH_ROWS = 1_000
_AHEAD = 1
"""How many batches, and files, are read ahead: the library's own bound is not in bytes."""

_EVENT_COLUMNS = ("entity_type", "entity", "revision", "seq", "ts", "action", "path", "value", "headers")
_STATE_COLUMNS = ("entity_type", "entity", "policy_id", "revision", "seq", "created", "modified", "state")


class EntityRange(NamedTuple):
    """Entities from `first` to before `end`, in the order of their IDs; None is no bound."""

    first: str | None
    end: str | None


class MemoryBound(NamedTuple):
    """How many events, and bytes of their values and headers, may be in memory at once."""

    rows: int
    bytes: int


UNBOUND = MemoryBound(1 << 40, 1 << 60)


class MemoryBoundExceeded(Exception):
    """The requested rows exceed the bound of memory."""


def snapshots(place: Lake) -> Iterator[EntityState]:
    """Yield the rows of `snapshots`; none if there is no such table. Raises StoreUnavailable, LakeUnfit."""
    if place.has(SNAPSHOTS):
        for row in _rows(place, SNAPSHOTS, _STATE_COLUMNS, None):
            yield _state(*row)


def snapshot_revisions(place: Lake, of: EntityRange | Sequence[str]) -> dict[tuple[str, str], list[int]]:
    """The revisions in `snapshots` of a part's entities, or of the named ones.

    Raises StoreUnavailable, LakeUnfit.
    """
    found: dict[tuple[str, str], list[int]] = {}
    if place.has(SNAPSHOTS):
        for type, id, revision in _rows(place, SNAPSHOTS, ("entity_type", "entity", "revision"), _condition(of)):
            found.setdefault((type, id), []).append(revision)
    return found


def latest_states(place: Lake, entities: Sequence[str] | None = None) -> Iterator[EntityState]:
    """The rows of `latest`, or those of the named entities. Raises StoreUnavailable, LakeUnfit."""
    condition = None if entities is None else pc.field("entity").isin(entities)
    for row in _rows(place, LATEST, _STATE_COLUMNS, condition):
        yield _state(*row)


def deletions(place: Lake) -> list[tuple[str, str, int]]:
    """Return type, ID and revision of every event that deletes an entity, in order.

    Raises StoreUnavailable, LakeUnfit.
    """
    is_deletion = (pc.field("action") == "deleted") & (pc.field("path") == "/")
    return sorted(_rows(place, EVENTS, ("entity_type", "entity", "revision"), is_deletion)) if place.has(EVENTS) else []


def events_between(place: Lake, first: int, last: int, bound: MemoryBound = UNBOUND) -> list[JournalEntry]:
    """The rows of `events` by number. Raises MemoryBoundExceeded, StoreUnavailable, LakeUnfit."""
    found = _entries(place, (pc.field("seq") >= first) & (pc.field("seq") <= last))
    return sorted(_within(found, bound), key=lambda entry: entry.seq)


def events_of(place: Lake, of: EntityRange | Sequence[str], bound: MemoryBound = UNBOUND) -> list[JournalEntry]:
    """Yield the events of a part, or of named entities, by entity and revision.

    Raises MemoryBoundExceeded, StoreUnavailable, LakeUnfit.
    """
    return _in_order(_within(_entries(place, _condition(of)), bound))


def history(place: Lake, entity_type: str, entity: str, last: int, bound: MemoryBound) -> Iterator[JournalEntry]:
    """Yield one entity's events up to the revision `last`, in order, however many.

    Missing revisions cost nothing. Raises StoreUnavailable, LakeUnfit.
    """
    is_its = (pc.field("entity") == entity) & (pc.field("entity_type") == entity_type) & (pc.field("revision") <= last)
    first, step = _oldest(place, is_its, 0), bound.rows
    while first is not None and first <= last:
        is_in_step = (pc.field("revision") >= first) & (pc.field("revision") < first + step)
        try:
            # One revision is read whatever its size.
            found = _in_order(_within(_entries(place, is_its & is_in_step), bound if step > 1 else UNBOUND))
        except MemoryBoundExceeded:
            step //= 2
            continue
        yield from found
        first = first + step if found else _oldest(place, is_its, first + step)


def _oldest(place: Lake, is_its: ds.Expression, first: int) -> int | None:
    """The lowest revision from `first` on that is there."""
    found = _batches(place, EVENTS, ("revision",), is_its & (pc.field("revision") >= first))
    return min((pc.min(batch.column(0)).as_py() for batch in found if batch.num_rows), default=None)


def states_in(place: Lake, part: EntityRange) -> Iterator[EntityState]:
    """The rows of `latest` of a part. Raises StoreUnavailable, LakeUnfit."""
    for row in _rows(place, LATEST, _STATE_COLUMNS, _condition(part)):
        yield _state(*row)


def _condition(of: EntityRange | Sequence[str]) -> ds.Expression | None:
    if not isinstance(of, EntityRange):
        return pc.field("entity").isin(of)
    found: ds.Expression | None = None if of.first is None else pc.field("entity") >= of.first
    if of.end is not None:
        below = pc.field("entity") < of.end
        found = below if found is None else found & below
    return found


def _within(entries: Iterator[JournalEntry], bound: MemoryBound) -> Iterator[JournalEntry]:
    bytes = 0
    for rows, entry in enumerate(entries, 1):
        bytes += size(entry)
        if rows > bound.rows or bytes > bound.bytes:
            raise MemoryBoundExceeded
        yield entry


def size(entry: JournalEntry) -> int:
    """The bytes of its value and its headers."""
    return len(entry.value or b"") + len(entry.headers)


def _in_order(entries: Iterator[JournalEntry]) -> list[JournalEntry]:
    return sorted(entries, key=lambda entry: (entry.entity_type, entry.entity, entry.revision, entry.seq))


def _entries(place: Lake, condition: ds.Expression | None) -> Iterator[JournalEntry]:
    for row in _rows(place, EVENTS, _EVENT_COLUMNS, condition):
        yield _entry(*row)


def _rows(
    place: Lake, table: Table, columns: Sequence[str], condition: ds.Expression | None
) -> Iterator[tuple[Any, ...]]:
    for batch in _batches(place, table, columns, condition):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _batches(place: Lake, table: Table, columns: Sequence[str], condition: ds.Expression | None) -> Iterator[Any]:
    with open_table(place, table) as delta:
        # A file system of pyarrow's own: its threads need no Python then.
        files = SubTreeFileSystem(place.path(table), LocalFileSystem())
        dataset = delta.to_pyarrow_dataset(filesystem=files)
        yield from dataset.to_batches(
            columns=list(columns),
            filter=condition,
            batch_size=_BATCH_ROWS,
            batch_readahead=_AHEAD,
            fragment_readahead=_AHEAD,
            fragment_scan_options=CHECKED,
        )


def _entry(
    type: str, id: str, revision: int, seq: int, ts: Any, action: str, path: str, value: str | None, headers: str
) -> JournalEntry:
    return JournalEntry(type, id, revision, seq, utc_text(ts), action, path, _bytes(value), headers.encode())


def _state(
    type: str, id: str, policy: str | None, revision: int, seq: int, created: Any, modified: Any, state: str | None
) -> EntityState:
    return EntityState(type, id, policy, revision, seq, utc_text(created), utc_text(modified), _bytes(state))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()

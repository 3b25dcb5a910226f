"""Rebuilds the journal's states from its own events and the lake, while no service runs.

Entities are processed in order of their keys: the state is folded from the journal's events, or, if the first were trimmed,
from the row of `latest` and later events. Equal states stay, entities that only the lake knows are added, and states without
source are kept and counted. Erased data is not restored. Where only the lake knows of a deletion, nobody can read what came
before it. At the end the search index is rebuilt. Each transaction processes some entities; an interrupted rebuild is
repeated. The caller makes sure that no one else writes the journal.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from mappings.json_values import decode_state
from mappings.model.signals import Event
from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.history.replay import FoldBase, StateFold, is_same_text, state_text
from spark_store.journal import incarnations
from spark_store.journal.journal import Journal
from spark_store.journal.reader import EntityState, expect_journal
from spark_store.lake.tables import APP, EVENTS, LATEST, Lake
from spark_store.records import Snapshot, entity_of
from spark_store.search import index_builder

T = TypeVar("T")

CHUNK = 2000
"""How many entities one transaction processes."""

_SHOWN = 10

_ENTITIES = """
    SELECT key, erased, type, id, policy, revision, newest_seq, created, modified, state FROM entities
    WHERE key > ? AND newest_seq > 0 ORDER BY key LIMIT ?
"""
_ENTRIES = """
    SELECT seq, revision, timestamp, action, path, value, headers FROM entries WHERE entity = ? ORDER BY revision
"""
_FIRST = "SELECT min(revision) FROM entries WHERE entity = ?"
_UPDATE = """
    UPDATE entities SET policy = ?, revision = ?, newest_seq = ?, created = ?, modified = ?, state = ? WHERE key = ?
"""
_INSERT = """
    INSERT INTO entities (type, id, policy, revision, newest_seq, created, modified, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_KNOWN = "SELECT 1 FROM entities WHERE type = ? AND id = ?"


class RebuildReport(NamedTuple):
    """The numbers of processed, changed, added and kept entities, with some names."""

    checked: int
    changed: int
    added: int
    unchanged: int
    examples: tuple[str, ...]


def rebuild_journal(
    place: Lake,
    chunk: int = CHUNK,
    say: Callable[[int], object] = lambda _: None,
    *,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> RebuildReport:
    """Rebuild every state. `say` receives the number of processed entities after each transaction.

    Raises LakeUnfit, SchemaTooNew, StoreUnavailable; after the last one it may be called again.
    """
    expect_journal(place.journal)
    # Brings an older file to the newest schema.
    with contextlib.closing(Journal.open(place.journal, factory=factory)) as journal:
        if (held := _last_in_lake(place)) > (newest := journal.newest_seq()):
            raise LakeUnfit(
                f"{place.journal}: the lake has events up to {held}, but the journal only up to {newest}; "
                "restore the newer journal first"
            )
        # The states bypass the index, so it is invalid until it is rebuilt.
        _do(journal, index_builder.restart)
        run = _Run(place, chunk)
        while _do(journal, run.next_chunk):
            say(run.counts["checked"])
        _do(journal, run.add_unknown)
        _do(journal, incarnations.name_all)
        _index(journal)
    return RebuildReport(**run.counts, examples=tuple(run.examples))


def _last_in_lake(place: Lake) -> int:
    """Return the number of the last event in the lake. Its libraries are only needed if there is one."""
    if not place.has(EVENTS):
        return 0
    from spark_store.lake.reader import last_transaction

    return last_transaction(place, EVENTS, APP)


def rebuild_index(place: Lake) -> int:
    """Rebuild only the search index from the states; return the number of entities.

    Raises SchemaTooNew, StoreUnavailable; then another call begins again.
    """
    expect_journal(place.journal)
    with contextlib.closing(Journal.open(place.journal)) as journal:
        _do(journal, index_builder.restart)
        _index(journal)
        return journal.within(index_builder.progress).last


def _index(journal: Journal) -> None:
    """Carry out the remaining steps of the index, each in a transaction of its own."""
    while _do(journal, index_builder.step):
        pass


def _do(journal: Journal, step: Callable[[sqlite3.Connection], T]) -> T:
    found = journal.within(step)
    journal.commit()
    return found


class _Run:
    """A rebuild in steps, each in a transaction. `examples`: names of some entities, and what was done."""

    def __init__(self, place: Lake, chunk: int) -> None:
        self._place, self._chunk = place, chunk
        self._has_latest = place.has(LATEST)
        self._key = 0
        self.examples: list[str] = []
        self.counts = dict.fromkeys(("checked", "changed", "added", "unchanged"), 0)

    def next_chunk(self, connection: sqlite3.Connection) -> bool:
        """Process some entities; False if there was nothing left."""
        rows = [
            (key, erased, EntityState._make(state))
            for key, erased, *state in connection.execute(_ENTITIES, (self._key, self._chunk))
        ]
        trimmed = [state.entity for key, _, state in rows if connection.execute(_FIRST, (key,)).fetchone() != (1,)]
        known = {(it.entity_type, it.entity): it for it in self._latest(sorted(set(trimmed)))} if trimmed else {}
        for key, erased, state in rows:
            row = known.get((state.entity_type, state.entity))
            self._rebuild(connection, key, state, row if row is not None and row.revision > erased else None)
            self._key = key
        return bool(rows)

    def add_unknown(self, connection: sqlite3.Connection) -> None:
        """Add entities and deletions that only the lake knows."""
        if not self._place.has(EVENTS):
            return
        from spark_store.lake import rows

        for state in self._latest():
            if connection.execute(_KNOWN, (state.entity_type, state.entity)).fetchone() is None:
                connection.execute(_INSERT, state)
                self._note("added", state)
        for deletion in rows.deletions(self._place):
            incarnations.add_deletion(connection, deletion.entity_type, deletion.entity, deletion.revision)

    def _latest(self, entities: Sequence[str] | None = None) -> Iterator[EntityState]:
        """Return the rows of `latest`, or those of some entities; none without the table."""
        if not self._has_latest:
            return iter(())
        from spark_store.lake import rows

        return rows.latest_states(self._place, entities)

    def _rebuild(self, connection: sqlite3.Connection, key: int, state: EntityState, known: EntityState | None) -> None:
        """Replace a state by the one that the journal's events lead to, after the `known` one of the lake."""
        self.counts["checked"] += 1
        folding, seq, entity = StateFold(), 0, entity_of(state.entity_type, state.entity)
        if known is not None:
            folding.known(as_snapshot(known))
            seq = known.seq
        for number, *found in connection.execute(_ENTRIES, (key,)):
            folding.event(Event(entity, *found))
            seq = max(seq, number)
        made = folding.snapshot
        # A state newer than all remaining events has no other source.
        if folding.ground is FoldBase.NOTHING or made is None or made.revision < state.revision:
            self._note("unchanged", state)
            return
        text = state_text(made)
        values = (made.policy, made.revision, seq, made.created, made.modified)
        if values != state[2:7] or not is_same_text(text, state.state):
            connection.execute(_UPDATE, (*values, text, key))
            self._note("changed", state)

    def _note(self, name: str, state: EntityState) -> None:
        self.counts[name] += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{state.entity} {name}")


def as_snapshot(state: EntityState) -> Snapshot:
    """Return a row of `latest` as base for events. Raises StoreUnavailable for invalid JSON."""
    try:
        parsed = None if state.state is None else decode_state(state.state)
    except msgspec.DecodeError as error:
        raise StoreUnavailable(f"{state.entity} at revision {state.revision}: expected JSON, found: {error}") from error
    entity = entity_of(state.entity_type, state.entity)
    return Snapshot(entity, state.revision, state.created, state.modified, parsed, state.policy)

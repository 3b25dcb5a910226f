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
from spark_store.errors import LakeUnfit, StoreUnavailable, translate_sqlite_error
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
    say: Callable[[int], object] | None = None,
    *,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> RebuildReport:
    """Rebuild every state. `say` receives the number of processed entities after each transaction.

    Raises SchemaTooNew, StoreUnavailable; then it may be called again.
    """
    expect_journal(place.journal)
    # Brings an older file to the newest schema.
    with contextlib.closing(Journal.open(place.journal)) as journal:
        newest = journal.newest_seq()
    if (held := _last_in_lake(place)) > newest:
        raise LakeUnfit(
            f"{place.journal}: the lake has events up to {held}, but the journal only up to {newest}; "
            "restore the newer journal first"
        )
    with _writing(place, factory) as connection:
        # The states bypass the index, so it is invalid until it is rebuilt.
        _do(connection, index_builder.restart)
        run = _Run(place, connection)
        while run.next_chunk(chunk):
            if say is not None:
                say(run.counts["checked"])
        run.add_unknown()
        _do(connection, incarnations.name_all)
        _index(connection)
        return run.report


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
    Journal.open(place.journal).close()
    with _writing(place) as connection:
        _do(connection, index_builder.restart)
        _index(connection)
        return index_builder.progress(connection).last


def _index(connection: sqlite3.Connection) -> None:
    """Carry out the remaining steps of the index, each in a transaction of its own."""
    while _do(connection, index_builder.step):
        pass


def _do(connection: sqlite3.Connection, step: Callable[[sqlite3.Connection], T]) -> T:
    with _transaction(connection):
        return step(connection)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


@contextlib.contextmanager
def _writing(place: Lake, factory: type[sqlite3.Connection] = sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(sqlite3.connect(place.journal, isolation_level=None, factory=factory)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
    except sqlite3.Error as error:
        raise translate_sqlite_error(place.journal, error) from error


class _Run:
    def __init__(self, place: Lake, connection: sqlite3.Connection) -> None:
        self._place = place
        self._connection = connection
        self._has_latest = place.has(LATEST)
        self._key = 0
        self._examples: list[str] = []
        self.counts = dict.fromkeys(("checked", "changed", "added", "unchanged"), 0)

    def next_chunk(self, limit: int) -> bool:
        """Process one transaction; False if there was nothing left."""
        rows = [
            (key, erased, EntityState._make(state))
            for key, erased, *state in self._connection.execute(_ENTITIES, (self._key, limit))
        ]
        if not rows:
            return False
        known = self._known_entities([state for key, _, state in rows if self._is_trimmed(key)])
        with _transaction(self._connection):
            for key, erased, state in rows:
                lake_state = known.get((state.entity_type, state.entity))
                self._rebuild(key, state, None if lake_state is None or lake_state.revision <= erased else lake_state)
        self._key = rows[-1][0]
        return True

    def add_unknown(self) -> None:
        """Add entities and deletions that only the lake knows."""
        if not self._place.has(EVENTS):
            return
        from spark_store.lake import rows

        with _transaction(self._connection):
            for state in rows.latest_states(self._place) if self._has_latest else ():
                if self._connection.execute(_KNOWN, (state.entity_type, state.entity)).fetchone() is None:
                    self._connection.execute(_INSERT, state)
                    self._note("added", state)
            for deletion in rows.deletions(self._place):
                incarnations.add_deletion(self._connection, deletion.entity_type, deletion.entity, deletion.revision)

    @property
    def report(self) -> RebuildReport:
        return RebuildReport(**self.counts, examples=tuple(self._examples))

    def _is_trimmed(self, key: int) -> bool:
        (first,) = self._connection.execute(_FIRST, (key,)).fetchone()
        return bool(first != 1)

    def _known_entities(self, states: Sequence[EntityState]) -> dict[tuple[str, str], EntityState]:
        if not states or not self._has_latest:
            return {}
        from spark_store.lake import rows

        found = rows.latest_states(self._place, sorted({state.entity for state in states}))
        return {(state.entity_type, state.entity): state for state in found}

    def _rebuild(self, key: int, state: EntityState, known: EntityState | None) -> None:
        """Replace a state if its events, or the `known` one and later events, lead to another one."""
        self.counts["checked"] += 1
        try:
            folding = self._fold(key, state, known)
        except msgspec.DecodeError:
            # An event is damaged.
            self._note("unchanged", state)
            return
        made = folding.snapshot
        # A state newer than all remaining events has no other source.
        if folding.ground is FoldBase.NOTHING or made is None or made.revision < state.revision:
            self._note("unchanged", state)
            return
        text = state_text(made)
        values = (made.policy, made.revision, folding.seq, made.created, made.modified)
        if values == state[2:7] and is_same_text(text, state.state):
            return
        self._connection.execute(_UPDATE, (*values, text, key))
        self._note("changed", state)

    def _fold(self, key: int, state: EntityState, known: EntityState | None) -> StateFold:
        folding, entity = StateFold(), entity_of(*state[:2])
        if known is not None:
            folding.known(as_snapshot(known), known.seq)
        for seq, *found in self._connection.execute(_ENTRIES, (key,)):
            folding.event(Event(entity, *found), seq)
        return folding

    def _note(self, name: str, state: EntityState) -> None:
        self.counts[name] += 1
        if len(self._examples) < _SHOWN:
            self._examples.append(f"{state.entity} {name}")


def as_snapshot(state: EntityState) -> Snapshot:
    """Return a row of `latest` as base for events. Raises StoreUnavailable for invalid JSON."""
    try:
        parsed = None if state.state is None else decode_state(state.state)
    except msgspec.DecodeError as error:
        raise StoreUnavailable(f"{state.entity} at revision {state.revision}: expected JSON, found: {error}") from error
    entity = entity_of(state.entity_type, state.entity)
    return Snapshot(entity, state.revision, state.created, state.modified, parsed, state.policy)

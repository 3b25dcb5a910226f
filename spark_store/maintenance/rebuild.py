"""Rebuilds the journal's states from its own events and the lake, while no service runs.

Entities are processed in order of their keys: the state is folded from the journal's events, or, if the first were trimmed,
from the row of `latest` and later events. Equal states stay, entities that only the lake knows are added, and states without
source are kept and counted. Erased data is not restored. Where only the lake knows of a deletion, nobody can read what came
before it. At the end the search index is rebuilt. Each transaction processes some entities; an interrupted rebuild is
repeated. The caller makes sure that no one else writes the journal.
"""

from __future__ import annotations

import contextlib
import itertools
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
    say: Callable[[int], object] | None = None,
    *,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> RebuildReport:
    """Rebuild every state. `say` receives the number of processed entities after each transaction.

    Raises SchemaTooNew, StoreUnavailable; then it may be called again.
    """
    expect_journal(place.journal)
    # Brings an older file to the newest schema.
    with contextlib.closing(Journal.open(place.journal, factory=factory)) as journal:
        newest = journal.newest_seq()
        if (held := _last_in_lake(place)) > newest:
            raise LakeUnfit(
                f"{place.journal}: the lake has events up to {held}, but the journal only up to {newest}; "
                "restore the newer journal first"
            )
        # The states bypass the index, so it is invalid until it is rebuilt.
        _commit(journal, index_builder.restart)
        run = _Run(place, chunk)
        while _commit(journal, run.next_chunk):
            if say is not None:
                say(run.counts["checked"])
        _commit_all(journal, run.add_unknown)
        _commit(journal, run.add_deletions)
        _commit(journal, incarnations.name_all)
        _commit_all(journal, index_builder.step)
        return run.report


def _commit(journal: Journal, step: Callable[[sqlite3.Connection], T]) -> T:
    """Carry out a step in a transaction of its own."""
    result = journal.within(step)
    journal.commit()
    return result


def _commit_all(journal: Journal, step: Callable[[sqlite3.Connection], bool]) -> None:
    """Repeat a step, each time in a transaction of its own, until nothing is left."""
    while _commit(journal, step):
        pass


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
        _commit(journal, index_builder.restart)
        _commit_all(journal, index_builder.step)
        return journal.within(index_builder.progress).last


class _Run:
    def __init__(self, place: Lake, chunk: int) -> None:
        self._place = place
        self._chunk = chunk
        self._has_latest = place.has(LATEST)
        self._in_lake = self._lake_states()
        self._key = 0
        self._examples: list[str] = []
        self.counts = dict.fromkeys(("checked", "changed", "added", "unchanged"), 0)

    def next_chunk(self, connection: sqlite3.Connection) -> bool:
        """Process some entities; False if there were none left."""
        rows = [
            (key, erased, EntityState._make(state))
            for key, erased, *state in connection.execute(_ENTITIES, (self._key, self._chunk))
        ]
        if not rows:
            return False
        known = self._known_entities([state for key, _, state in rows if _is_trimmed(connection, key)])
        for key, erased, state in rows:
            lake_state = known.get((state.entity_type, state.entity))
            is_valid = lake_state is not None and lake_state.revision > erased
            self._rebuild(connection, key, state, lake_state if is_valid else None)
        self._key = rows[-1][0]
        return True

    def add_unknown(self, connection: sqlite3.Connection) -> bool:
        """Read some entities from the lake and add the unknown ones; False if none were left."""
        some = list(itertools.islice(self._in_lake, self._chunk))
        for state in some:
            if connection.execute(_KNOWN, (state.entity_type, state.entity)).fetchone() is None:
                connection.execute(_INSERT, state)
                self._note("added", state)
        return bool(some)

    def _lake_states(self) -> Iterator[EntityState]:
        if self._has_latest and self._place.has(EVENTS):
            from spark_store.lake import rows

            yield from rows.latest_states(self._place)

    def add_deletions(self, connection: sqlite3.Connection) -> None:
        """Add deletions that only the lake knows."""
        if not self._place.has(EVENTS):
            return
        from spark_store.lake import rows

        for deletion in rows.deletions(self._place):
            incarnations.add_deletion(connection, deletion.entity_type, deletion.entity, deletion.revision)

    @property
    def report(self) -> RebuildReport:
        return RebuildReport(**self.counts, examples=tuple(self._examples))

    def _known_entities(self, states: Sequence[EntityState]) -> dict[tuple[str, str], EntityState]:
        if not states or not self._has_latest:
            return {}
        from spark_store.lake import rows

        found = rows.latest_states(self._place, sorted({state.entity for state in states}))
        return {(state.entity_type, state.entity): state for state in found}

    def _rebuild(self, connection: sqlite3.Connection, key: int, state: EntityState, known: EntityState | None) -> None:
        """Replace a state if its events, or the `known` one and later events, lead to another one."""
        self.counts["checked"] += 1
        try:
            folding = _fold(connection, key, state, known)
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
        connection.execute(_UPDATE, (*values, text, key))
        self._note("changed", state)

    def _note(self, name: str, state: EntityState) -> None:
        self.counts[name] += 1
        if len(self._examples) < _SHOWN:
            self._examples.append(f"{state.entity} {name}")


def _is_trimmed(connection: sqlite3.Connection, key: int) -> bool:
    (first,) = connection.execute(_FIRST, (key,)).fetchone()
    return bool(first != 1)


def _fold(connection: sqlite3.Connection, key: int, state: EntityState, known: EntityState | None) -> StateFold:
    folding, entity = StateFold(), entity_of(*state[:2])
    if known is not None:
        folding.known(as_snapshot(known), known.seq)
    for seq, *found in connection.execute(_ENTRIES, (key,)):
        folding.event(Event(entity, *found), seq)
    return folding


def as_snapshot(state: EntityState) -> Snapshot:
    """Return a row of `latest` as base for events. Raises StoreUnavailable for invalid JSON."""
    try:
        parsed = None if state.state is None else decode_state(state.state)
    except msgspec.DecodeError as error:
        raise StoreUnavailable(f"{state.entity} at revision {state.revision}: expected JSON, found: {error}") from error
    entity = entity_of(state.entity_type, state.entity)
    return Snapshot(entity, state.revision, state.created, state.modified, parsed, state.policy)

"""Reads the journal in the order in which it was written, from another process.

A `JournalReader` has a connection of its own and changes nothing. Numbers (`seq`) have no gaps, a committed event keeps its
number, and only the oldest ones are ever deleted, except those of erased entities: their numbers are reported as holes.
"""

from __future__ import annotations

import contextlib
import heapq
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from mappings.ids import namespace_of
from spark_store.errors import SchemaTooNew, StoreUnavailable, translate_sqlite_error, translate_system_error
from spark_store.journal.erasure import Erasure, records, unfinished_erasures
from spark_store.journal.schema import STEPS
from spark_store.records import StateGuard

_LOCK_SECONDS = 10.0
_FETCH = 500

_NEWEST = "SELECT value FROM counters WHERE name = 'seq'"
_OLDEST = "SELECT seq FROM entries ORDER BY seq LIMIT 1"
_NEXT = "SELECT seq, timestamp FROM entries WHERE seq > ? ORDER BY seq LIMIT 1"
_ENTRY_COLUMNS = """
    SELECT entities.type, entities.id, entries.revision, entries.seq, entries.timestamp, entries.action, entries.path,
           entries.value, entries.headers
"""
_ENTRIES = f"""{_ENTRY_COLUMNS}
    FROM entries JOIN entities ON entities.key = entries.entity
    WHERE entries.seq BETWEEN ? AND ? ORDER BY entries.seq
"""
# Revisions grow with numbers. So the first and last revision of each entity are found by number, and the entries between are
# read in the order of the file. Only the entities are sorted (the limit is there because SQLite would drop the order); the
# plus prevents a second use of the index.
ENTRIES_BY_ENTITY = f"""{_ENTRY_COLUMNS}
    FROM (SELECT entities.key, entities.type, entities.id, oldest, newest
          FROM (SELECT entity, min(revision) AS oldest, max(revision) AS newest FROM entries
                WHERE seq BETWEEN ?1 AND ?2 GROUP BY entity) AS wanted
          CROSS JOIN entities ON entities.key = wanted.entity ORDER BY entities.id, entities.type LIMIT -1) AS entities
    CROSS JOIN entries ON entries.entity = entities.key
         AND entries.revision BETWEEN entities.oldest AND entities.newest AND +entries.seq BETWEEN ?1 AND ?2
"""
"""The events numbered ?1 to ?2 with the columns of `JournalEntry`, by entity (as text) and revision."""

_STATE_COLUMNS = "SELECT type, id, policy, revision, newest_seq, created, modified, state FROM entities"
# An erased entity keeps a row that says nothing.
_ALL_STATES = f"{_STATE_COLUMNS} WHERE newest_seq > 0 AND key % ? = ?"
_HOLES = "SELECT count(*) FROM holes WHERE seq BETWEEN ? AND ?"
_HOLES_BELOW = "SELECT seq FROM holes WHERE seq < ? ORDER BY seq DESC"
_STATE = f"{_STATE_COLUMNS} WHERE newest_seq > 0 AND type = ? AND id = ?"
_GUARD = """
    SELECT policy, erased, state IS NULL, first, text FROM entities
    LEFT JOIN incarnations ON entity = entities.key
        AND last = (SELECT min(last) FROM incarnations WHERE entity = entities.key AND last >= ?)
    LEFT JOIN permissions ON permissions.key = permissions
    WHERE newest_seq > 0 AND type = ? AND id = ?
"""
_HAS_BEFORE = "SELECT EXISTS (SELECT 1 FROM entries WHERE seq > ? AND timestamp < ?)"
_REVISION_AT = """
    SELECT CASE WHEN count(entries.entity) = 0 THEN entities.revision
                ELSE coalesce(max(entries.revision) FILTER (WHERE entries.seq <= ?), min(entries.revision) - 1) END
    FROM entities LEFT JOIN entries ON entries.entity = entities.key WHERE entities.type = ? AND entities.id = ?
    GROUP BY entities.key
"""
_BEGINNING = """
    SELECT erased, (SELECT min(revision) FROM entries WHERE entries.entity = entities.key) FROM entities
    WHERE type = ? AND id = ?
"""
_TYPE_BEHIND = "SELECT min(type) FROM entities WHERE type > ?"
_KEYS = "SELECT id, type, revision - erased FROM entities WHERE type = ? AND id >= ? ORDER BY id"
_HISTORY = f"""{_ENTRY_COLUMNS}
    FROM entities JOIN entries ON entries.entity = entities.key
    WHERE entities.type = ? AND entities.id = ? AND entries.seq <= ? ORDER BY entries.revision
"""
_STATES = f"{_ALL_STATES} AND key IN (SELECT entity FROM entries WHERE seq BETWEEN ? AND ?)"


class JournalEntry(NamedTuple):
    """One event of the journal."""

    entity_type: str
    entity: str
    revision: int
    seq: int
    timestamp: str
    action: str
    path: str
    value: bytes | None
    headers: bytes


class EntityState(NamedTuple):
    """An entity after its newest event with number `seq`; `state` is None once it is deleted."""

    entity_type: str
    entity: str
    policy: str | None
    revision: int
    seq: int
    created: str
    modified: str
    state: bytes | None


def expect_journal(path: Path) -> None:
    """See that there is a journal. Raises StoreUnavailable, and makes nothing."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise translate_system_error(path, error) from error
    if not is_there:
        raise StoreUnavailable(
            f"{path}: found no journal; start the service once, or name the settings file with --settings"
        )


class JournalReader:
    """A reader of one journal file. Every method raises StoreUnavailable when it cannot be read now."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use `open`."""
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the journal in this file, which must exist. Raises SchemaTooNew, StoreUnavailable."""
        expect_journal(path)
        with contextlib.ExitStack() as undo:
            with _translate_errors(path):
                # The write-ahead log needs a connection that could write, even to read.
                connection = undo.enter_context(
                    contextlib.closing(
                        sqlite3.connect(
                            f"{path.absolute().as_uri()}?mode=rw",
                            uri=True,
                            timeout=_LOCK_SECONDS,
                            isolation_level=None,
                            check_same_thread=False,
                        )
                    )
                )
                connection.execute("PRAGMA query_only = ON")
                (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(STEPS):
                raise SchemaTooNew(str(path), version, len(STEPS))
            if version < len(STEPS):
                raise StoreUnavailable(
                    f"{path}: found schema version {version}, expected {len(STEPS)}; start the service, which updates it"
                )
            undo.pop_all()
        return cls(path, connection)

    def newest(self) -> int:
        """Return the number of the newest committed event; 0 if there is none."""
        row = self._one(_NEWEST, ())
        return 0 if row is None else int(row[0])

    def oldest(self) -> int | None:
        """Return the number of the oldest event; None if there is none."""
        row = self._one(_OLDEST, ())
        return None if row is None else int(row[0])

    def oldest_known(self) -> int:
        """Return the first number from which nothing was trimmed, erased events included.

        In an empty journal it is the next one.
        """
        # In this order: an event that comes in between is newer.
        newest, oldest = self.newest(), self.oldest()
        known = newest + 1 if oldest is None else oldest
        with contextlib.closing(self._rows(_HOLES_BELOW, (known,))) as holes:
            for (seq,) in holes:
                if seq != known - 1:
                    break
                known = seq
        return known

    def holes(self, first: int, last: int) -> int:
        """Return how many events with these numbers, both inclusive, were erased."""
        row = self._one(_HOLES, (first, last))
        return 0 if row is None else int(row[0])

    def erasures(self, after: int = 0) -> list[Erasure]:
        """The erasures with a number above `after`, oldest first."""
        with _translate_errors(self.path):
            return records(self._connection, after)

    def unfinished_erasures(self) -> list[Erasure]:
        """Return the erasures that journal or lake have not done, oldest first."""
        with _translate_errors(self.path):
            return unfinished_erasures(self._connection)

    def next_after(self, seq: int) -> tuple[int, str] | None:
        """Return number and timestamp of the first event after `seq`; None if there is none."""
        row = self._one(_NEXT, (seq,))
        return None if row is None else (int(row[0]), str(row[1]))

    def entries(self, first: int, last: int) -> Iterator[JournalEntry]:
        """The events with these numbers, both inclusive, in order."""
        return map(JournalEntry._make, self._rows(_ENTRIES, (first, last)))

    def entries_by_entity(self, first: int, last: int) -> Iterator[JournalEntry]:
        """The same events, by entity and revision: a large range is read much faster this way."""
        return map(JournalEntry._make, self._rows(ENTRIES_BY_ENTITY, (first, last)))

    def states(self, first: int, last: int, part: int = 0, parts: int = 1) -> Iterator[EntityState]:
        """Yield the present states of the entities with events of these numbers, each once.

        With `first` 1 these are all entities, also those whose first events were trimmed. `part` selects one of `parts`
        disjoint parts.
        """
        if first <= 1:
            rows = self._rows(_ALL_STATES, (parts, part))
        else:
            rows = self._rows(_STATES, (parts, part, first, last))
        return map(EntityState._make, rows)

    def state(self, type: str, id: str) -> EntityState | None:
        """Return the present state of one entity; None if it never existed."""
        row = self._one(_STATE, (type, id))
        return None if row is None else EntityState._make(row)

    def guards(self, type: str, states: Iterable[tuple[str, int]]) -> list[StateGuard | None]:
        """Return who decides about each state, given by ID and revision; None for states that nobody may read."""
        return [self._guard(type, id, revision) for id, revision in states]

    def _guard(self, type: str, id: str, revision: int) -> StateGuard | None:
        row = self._one(_GUARD, (revision, type, id))
        if row is None:
            return None
        policy, erased, is_deleted, first, permissions = row
        if policy is None or revision <= erased or (first is None and is_deleted):
            return None
        if first is None:
            return StateGuard(policy, namespace_of(id))
        return StateGuard("", namespace_of(id), permissions) if permissions and first <= revision else None

    def has_before(self, seq: int, timestamp: str) -> bool:
        """Whether an event above a number happened before an instant, as events write it."""
        row = self._one(_HAS_BEFORE, (seq, timestamp))
        return row is not None and bool(row[0])

    def revision_at(self, type: str, id: str, seq: int) -> int:
        """Return the entity's revision after event `seq`, even if its entries were trimmed; 0 for none."""
        row = self._one(_REVISION_AT, (seq, type, id))
        return 0 if row is None else int(row[0])

    def beginning(self, type: str, id: str) -> tuple[int, int | None]:
        """Return up to which revision the entity was erased (0 for none), and its oldest revision."""
        row = self._one(_BEGINNING, (type, id))
        return (0, None) if row is None else (row[0], row[1])

    def history(self, type: str, id: str, last: int) -> Iterator[JournalEntry]:
        """The events of one entity with numbers up to `last`, in order."""
        return map(JournalEntry._make, self._rows(_HISTORY, (type, id, last)))

    def keys(self, first: str) -> Iterator[tuple[str, str, int]]:
        """Yield ID, type, and number of events since the erasure, in this order, from the ID `first` on."""
        return heapq.merge(*(self._rows(_KEYS, (type, first)) for type in self._types()))

    def _types(self) -> Iterator[str]:
        """Which types of entities there are, by the index alone."""
        type = ""
        while (row := self._one(_TYPE_BEHIND, (type,))) is not None and row[0] is not None:
            type = row[0]
            yield type

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, statement: str, parameters: tuple[object, ...]) -> tuple[Any, ...] | None:
        with _translate_errors(self.path):
            row: tuple[Any, ...] | None = self._connection.execute(statement, parameters).fetchone()
        return row

    def _rows(self, statement: str, parameters: tuple[object, ...]) -> Generator[tuple[Any, ...], None, None]:
        with (
            _translate_errors(self.path),
            contextlib.closing(self._connection.execute(statement, parameters)) as cursor,
        ):
            while rows := cursor.fetchmany(_FETCH):
                yield from rows


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate_sqlite_error(path, error) from error

"""The journal: events of all entities, newest states, and answers, in one SQLite file.

`write` puts changes into the open transaction: short statements that do not wait for the disk. `commit` makes them durable,
in a worker thread. SQLite's binding releases the interpreter's lock for every statement, so `write` runs on the event loop:
a worker would wait for the lock after each of its many statements. Reads use a connection of their own and see what is
committed.

WAL with `synchronous=FULL`: a commit that returned survives a power cut. `cache_spill=OFF`: an open transaction waits for no
disk before its commit. `spark_store.journal.schema` describes the tables.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mappings.ids import EntityId
from mappings.json_values import decode_state
from mappings.model.signals import Event
from spark_store.errors import (
    DAMAGED_JOURNAL,
    MOVED_JOURNAL,
    CommitFailed,
    StateDamaged,
    StoreError,
    StoreUnavailable,
    Unstorable,
    translate_sqlite_error,
)
from spark_store.files import identity_of, is_elsewhere
from spark_store.journal import creators, incarnations, schema
from spark_store.journal.batch import answer_owners, batched, encode, plan
from spark_store.journal.published_events import cause_columns
from spark_store.records import (
    Change,
    DeliveryName,
    HistoryStart,
    NumberedEvent,
    OldestEvent,
    Snapshot,
    entity_of,
    event_size,
    read_events,
)
from spark_store.search import index
from spark_store.search.index import EntityHead, SearchIndex

T = TypeVar("T")

# Before it stores bytes or None, the binding looks for an adapter, which is slow where it finds none.
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(type(None), lambda _: None)

TRIM_EVENTS = 250
"""How many events are trimmed at once: about a millisecond."""

MAX_ANSWERS = 100_000
"""The most answers that are remembered, however recent they are."""

_SNAPSHOT = "SELECT revision, created, modified, state, policy FROM entities WHERE type = ? AND id = ?"
_LATEST = "SELECT revision FROM entities WHERE type = ? AND id = ?"
_BEGINNING = """
    SELECT erased, coalesce((SELECT min(revision) FROM entries WHERE entity = key AND revision > erased), revision + 1)
    FROM entities WHERE type = ? AND id = ?
"""
_INSERT_ENTITY = """
    INSERT INTO entities (type, id, revision, created, modified, state, policy, newest_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_UPDATE_ENTITY = """
    UPDATE entities SET revision = ?, created = ?, modified = ?, state = ?, policy = ?, newest_seq = ? WHERE key = ?
"""
_INSERT_ENTRY = """
    INSERT INTO entries (entity, revision, seq, timestamp, action, path, value, headers, origin, cause)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_EVENTS = """
    SELECT revision, timestamp, action, path, value, headers FROM entries
    WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ?) AND revision BETWEEN ? AND ?
    ORDER BY revision LIMIT ?
"""
_INSERT_ANSWER = """
    INSERT INTO answers (at, connection, source, name, digest, log_partition, log_offset, answer, entity, others)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ANSWER = """
    SELECT digest, answer, at, log_partition, log_offset FROM answers
    WHERE connection = ? AND source = ? AND name = ? ORDER BY id DESC LIMIT 1
"""
_NEWEST_ANSWERED = """
    SELECT connection, source, log_partition, max(log_offset) FROM answers WHERE log_partition != ''
    GROUP BY connection, source, log_partition
"""
_ANSWERS_ENDS = """
    SELECT (SELECT id FROM answers ORDER BY id LIMIT 1), (SELECT id FROM answers ORDER BY id DESC LIMIT 1)
"""
_NAMES = """
    SELECT name FROM answers WHERE connection = ? AND source = ? AND name >= ? AND name < ? ORDER BY name DESC LIMIT ?
    """
_FIRST_YOUNG_ANSWER = "SELECT id FROM answers WHERE id BETWEEN ? AND ? AND at >= ? ORDER BY id LIMIT 1"
_LOG_ANSWERS = """
    SELECT id, connection, log_partition, log_offset FROM answers WHERE id >= ? AND id < ? AND log_partition != ''
"""
_FORGET_ANSWERS = "DELETE FROM answers WHERE id >= ? AND id < ? AND id NOT IN (SELECT value FROM json_each(?))"
_SEQ = "SELECT value FROM counters WHERE name = 'seq'"
_OLDEST = "SELECT seq, timestamp FROM entries WHERE seq > ? ORDER BY seq LIMIT 1"
_OLDEST_ENTRIES = "SELECT seq, timestamp FROM entries WHERE seq <= ? ORDER BY seq LIMIT ?"
_NEWEST_UNTIL = """
    SELECT entries.seq, type, id, entries.revision, timestamp, action, path, value, headers
    FROM entries JOIN entities ON entities.key = entries.entity WHERE entries.seq <= ? ORDER BY entries.seq DESC LIMIT 1
"""
_TRIM = "DELETE FROM entries WHERE seq <= ?"
_SET_SEQ = "UPDATE counters SET value = ? WHERE name = 'seq'"
_PROBE = "INSERT OR REPLACE INTO probes (id, filling) VALUES (1, zeroblob(65536))"
_PROBED = "DELETE FROM probes"

_LOCK_SECONDS = 0.2
"""How long to wait for another process's lock: short, because `write` runs on the event loop."""

_CHECKPOINT_PAGES = 8000
"""After how many pages (32 MiB) a commit moves the log into the file.

Not in the background: before 3.51.3, checkpoints of two connections can corrupt the file (SQLite, "the WAL-reset bug").
"""

_WRITER_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "cache_spill = OFF",
    # Deleted data is overwritten: an erasure (`spark_store.journal.erasure`) leaves no bytes behind.
    "secure_delete = ON",
    "temp_store = MEMORY",
    "cache_size = -32768",
    f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
    "journal_size_limit = 67108864",
)
_READER_PRAGMAS = ("query_only = ON", "temp_store = MEMORY", "cache_size = -32768")

_INVALID_VALUE_ERRORS = (
    TypeError,
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeError,
)
"""Exceptions for values that SQLite cannot store: the change is invalid, not the store."""


class Journal:
    """Append-only events, the state of each entity, and the answers to deliveries, changed together.

    One process writes the file; others may read it at the same time. Every method raises StoreUnavailable if the file
    cannot be used now, and after `close`.
    """

    def __init__(
        self, path: str, writer: sqlite3.Connection, reader: sqlite3.Connection, clock: Callable[[], int]
    ) -> None:
        """Use `open`."""
        self.path = path
        self._identity = identity_of(path)
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._is_closed = False
        self._must_roll_back = False
        self.committed: dict[tuple[str, str], int] = {}
        """By connection and partition, the offset that its deliveries come again from after a lost link."""
        self.known: Callable[[EntityId], Snapshot | None] = lambda _entity: None
        """Returns a committed state that is in memory, if any, so that it is not read and parsed again."""
        self._newest_answered: dict[tuple[str, int, str], int] = {}
        """By connection, source and partition, an offset beyond which no delivery has an answer."""
        self._next_forgotten = 0
        """The answer to continue with, behind those that were kept."""

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        clock: Callable[[], int] = time.time_ns,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> Journal:
        """Open the journal in this file, which is created or migrated if necessary; its folder exists.

        `clock` gives nanoseconds since 1970. Raises SchemaTooNew and StoreUnavailable.
        """
        path = str(path)
        with contextlib.ExitStack() as undo:
            try:
                writer = undo.enter_context(contextlib.closing(_connect(path, factory)))
                for pragma in _WRITER_PRAGMAS:
                    writer.execute(f"PRAGMA {pragma}").fetchall()
                (mode,) = writer.execute("PRAGMA journal_mode").fetchone()
                if mode != "wal":
                    raise StoreUnavailable(f"{path}: expected a file system that allows journal mode wal, found {mode}")
                schema.migrate(writer, path)
                reader = undo.enter_context(contextlib.closing(_connect(path, factory)))
                for pragma in _READER_PRAGMAS:
                    reader.execute(f"PRAGMA {pragma}").fetchall()
                answered = reader.execute(_NEWEST_ANSWERED).fetchall()
            except sqlite3.Error as error:
                raise translate_sqlite_error(path, error) from error
            undo.pop_all()
        journal = cls(path, writer, reader, clock)
        journal._newest_answered.update({tuple(log): offset for *log, offset in answered})
        return journal

    def write(self, changes: Sequence[Change]) -> None:
        """Store `changes` in the open transaction (a first call opens one), all of them or none.

        Raises RevisionConflict if an event does not follow its entity's newest one, Unstorable for an invalid change;
        earlier changes stay in the transaction. After StoreUnavailable nothing does.
        """
        for _ in self.steps(changes):
            pass

    def steps(self, changes: Sequence[Change]) -> Iterator[None]:
        """Do what `write` does in short steps, between which nothing else may use the transaction."""
        with self._writing(), self._all_or_nothing():
            try:
                heads: dict[EntityId, EntityHead] = {}
                for part in batched([*dict.fromkeys(event.entity for change in changes for event in change.events)]):
                    for entity in part:
                        self._look_up(entity, heads)
                    yield
                states = plan(changes, lambda entity: heads[entity].revision if entity in heads else 0)
                yield from self._store(changes, states, heads)
            except _INVALID_VALUE_ERRORS as error:
                raise Unstorable(f"a change with a value that cannot be stored: {error}") from error

    def commit(self) -> None:
        """Make everything written durable. After StoreUnavailable it is gone, after CommitFailed perhaps not."""
        with self._writing():
            self._repair()
            if self._writer.in_transaction:
                self._expect_file()
                try:
                    self._writer.execute("COMMIT")
                except sqlite3.Error as error:
                    self.rollback()
                    raise CommitFailed(str(translate_sqlite_error(self.path, error))) from error

    def _expect_file(self) -> None:
        """Raises StoreUnavailable if the file is not at its path: commits would be lost at the next start."""
        if is_elsewhere(self.path, self._identity):
            self.rollback()
            raise StoreUnavailable(f"{self.path}: {MOVED_JOURNAL}")

    def rollback(self) -> None:
        """Discard everything written since the last commit. Never raises."""
        self._must_roll_back = True
        # If it fails, the next transaction begins with it.
        with contextlib.suppress(sqlite3.Error):
            self._repair()

    def append(self, changes: Sequence[Change]) -> None:
        """Write and commit changes. Raises what they raise; then the open transaction is discarded."""
        try:
            self.write(changes)
        except StoreError:
            self.rollback()
            raise
        self.commit()

    def forget_answers(self, before: int, keep: int = MAX_ANSWERS, limit: int = 1000) -> int:
        """Delete answers older than `before`, except uncommitted ones, and all but the newest `keep`.

        `before` is in nanoseconds. Examines about `limit` answers, in the open transaction; returns how many it deletes.
        """
        with self._writing():
            self._begin()
            oldest, newest = self._writer.execute(_ANSWERS_ENDS).fetchone()
            if oldest is None:
                return 0
            surplus = min(newest + 1 - keep, oldest + limit)
            forgotten = self._writer.execute(_FORGET_ANSWERS, (oldest, surplus, "[]")).rowcount
            start = max(oldest, surplus)
            if start < self._next_forgotten <= newest:
                start = self._next_forgotten
            end = oldest + limit if forgotten > 0 else start + limit
            young = self._writer.execute(_FIRST_YOUNG_ANSWER, (start, end, before)).fetchone()
            end = end if young is None else min(end, young[0])
            found = self._writer.execute(_LOG_ANSWERS, (start, end)).fetchall()
            kept = [id for id, *place in found if self._is_uncommitted(*place)]
            forgotten += self._writer.execute(_FORGET_ANSWERS, (start, end, json.dumps(kept))).rowcount
            # At the first young one it begins again: what was kept may be committed by then.
            self._next_forgotten = end if young is None else 0
            return forgotten

    def trim(self, last: int, before: str, limit: int = TRIM_EVENTS) -> int:
        """Delete the oldest events with numbers up to `last` and timestamps before `before`.

        At most `limit`, in the open transaction; returns how many. States, numbers and revisions stay.
        """
        with self._writing():
            self._begin()
            oldest = self._writer.execute(_OLDEST_ENTRIES, (last, limit)).fetchall()
            leaving = [seq for seq, _ in itertools.takewhile(lambda entry: entry[1] < before, oldest)]
            if leaving:
                self._writer.execute(_TRIM, (leaving[-1],))
            return len(leaving)

    def newest_written(self) -> int:
        """The number of the newest event in the open transaction, or before it."""
        with self._writing():
            (seq,) = self._writer.execute(_SEQ).fetchone()
            return int(seq)

    def within(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Carry out a short step of another module in the open transaction, all of it or nothing.

        Raises what it raises, and StoreUnavailable; after that the transaction is gone.
        """
        with self._writing(), self._all_or_nothing():
            return step(self._writer)

    def scrub(self) -> bool:
        """Move the log into the file and empty it; return False while a reader prevents it.

        Call it in a worker thread while no transaction is open. Raises StoreUnavailable.
        """
        with self._writing():
            (is_busy, *_) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not is_busy

    def probe(self) -> None:
        """Write some pages durably and delete them again, to check that writing works."""
        self.rollback()
        self._expect_file()
        with self._writing():
            # Otherwise probes alone would use up the little room there is.
            with contextlib.suppress(sqlite3.OperationalError):
                self._writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            for statement in (_PROBE, _PROBED):
                self._begin()
                self._writer.execute(statement)
                self._writer.execute("COMMIT")

    def _repair(self) -> None:
        """Do the rollback that failed."""
        if self._must_roll_back:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._must_roll_back = False

    def _begin(self) -> bool:
        """Open a transaction unless one is open; return whether it was opened."""
        if self._must_roll_back:
            self._repair()
        if is_first := not self._writer.in_transaction:
            self._writer.execute("BEGIN IMMEDIATE")
        return is_first

    def _look_up(self, entity: EntityId, heads: dict[EntityId, EntityHead]) -> None:
        """Add the row of an entity in the open transaction, if it has one."""
        known = self.known(entity)
        revision = 0 if known is None else known.revision
        row = self._writer.execute(index.HEAD, (entity.type.value, entity.id, revision)).fetchone()
        if row is None:
            return
        key, found, created, state, is_large = row
        if known is not None and found == revision:
            # Nothing was written since that state was committed.
            state = known.state
        heads[entity] = EntityHead(key, found, created, state, is_large)

    def _store(
        self, changes: Sequence[Change], states: dict[EntityId, Snapshot], heads: dict[EntityId, EntityHead]
    ) -> Iterator[None]:
        events = [
            (event, (None, None) if change.cause is None else cause_columns(change.cause))
            for change in changes
            for event in change.events
        ]
        if events:
            (seq,) = self._writer.execute(_SEQ).fetchone()
            newest = {event.entity: n for n, (event, _) in enumerate(events, seq + 1)}
        keys, indexing = {}, SearchIndex(self._writer)
        encoded = ((entity, snapshot, encode(snapshot)) for entity, snapshot in states.items())
        for part in batched(encoded, lambda it: 0 if it[2] is None else len(it[2])):
            updates = []
            for entity, snapshot, text in part:
                row = (snapshot.revision, snapshot.created, snapshot.modified, text, snapshot.policy, newest[entity])
                type_and_id = (entity.type.value, entity.id)
                if (head := heads.get(entity)) is not None:
                    key = head.key
                    updates.append((*row, key))
                else:
                    inserted = self._writer.execute(_INSERT_ENTITY, (*type_and_id, *row)).lastrowid
                    assert inserted is not None
                    key = inserted
                keys[entity] = key
                size = None if text is None else len(text)
                indexing.change(*type_and_id, key, head, snapshot.created, size, snapshot.state)
            indexing.end()
            self._writer.executemany(_UPDATE_ENTITY, updates)
            yield
        incarnations.store(self._writer, changes, states, keys)
        creators.store(self._writer, changes)
        if events:
            for rows in batched(enumerate(events, seq + 1), lambda it: event_size(it[1][0])):
                self._writer.executemany(
                    _INSERT_ENTRY,
                    [(keys[event.entity], event.revision, n, *event[2:], *cause) for n, (event, cause) in rows],
                )
                yield
            self._writer.execute(_SET_SEQ, (seq + len(events),))
        at = self._clock()
        answering = ((change, change.answer) for change in changes if change.answer is not None)
        for answered in batched(answering, lambda it: len(it[1].answer)):
            answers = []
            for change, stored in answered:
                name = stored.delivery
                if name.partition:
                    log = name.connection, name.source, name.partition
                    self._newest_answered[log] = max(name.offset, self._newest_answered.get(log, -1))
                answers.append((at, *name, stored.answer, *answer_owners(change, keys)))
            self._writer.executemany(_INSERT_ANSWER, answers)
            yield

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undo everything that was written within if it fails."""
        # A savepoint makes SQLite copy every page, so what opens the transaction has none.
        is_first = self._begin()
        if not is_first:
            self._writer.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            # A full disk makes SQLite end the transaction by itself, and the savepoint with it.
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK" if is_first else "ROLLBACK TO part")
            raise
        finally:
            if not is_first and self._writer.in_transaction:
                self._writer.execute("RELEASE part")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Translate errors, and leave no half-written transaction behind."""
        try:
            yield
        except sqlite3.Error as error:
            self.rollback()
            raise translate_sqlite_error(self.path, error) from error

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """Return the newest committed state, also of a deleted entity; None if it never existed."""
        if (row := self._one(_SNAPSHOT, (entity.type.value, entity.id))) is None:
            return None
        revision, created, modified, text, policy = row
        try:
            state = None if text is None else decode_state(text)
        except msgspec.DecodeError as error:
            raise StateDamaged(f"{self.path}: state of {entity}: {error}; {DAMAGED_JOURNAL}") from error
        return Snapshot(entity, revision, created, modified, state, policy)

    def latest(self, entity: EntityId) -> int:
        """The newest committed revision; 0 for an entity that never was."""
        row = self._one(_LATEST, (entity.type.value, entity.id))
        return row[0] if row is not None else 0

    def beginning(self, entity: EntityId) -> HistoryStart:
        """Return where the committed events of an entity begin: revision 1 if it never existed."""
        row = self._one(_BEGINNING, (entity.type.value, entity.id))
        return HistoryStart(0, 1) if row is None else HistoryStart(*row)

    def events(self, entity: EntityId, first: int, last: int, limit: int, max_bytes: int) -> list[Event]:
        """Committed events with first ≤ revision ≤ last in ascending order.

        At most `limit` of them; the one with which values and headers come to `max_bytes` is the last one.
        """
        try:
            rows = self._reader.execute(_EVENTS, (entity.type.value, entity.id, first, last, max(limit, 0)))
            found = read_events(entity, rows, max_bytes)
            # An unfinished statement would keep the log from being moved into the file.
            rows.close()
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error
        return found

    def answer(self, name: DeliveryName, since: int = 0) -> bytes | None:
        """Return the answer to the newest delivery with this name; None if unknown or older than `since`.

        `since` is in nanoseconds; an uncommitted delivery can come again after any time.
        """
        if name.is_position:
            # Most deliveries of a log are newer than all answered ones.
            log = name.connection, name.source, name.partition
            if name.offset > self._newest_answered.get(log, -1):
                return None
        row = self._one(_ANSWER, name.place)
        if row is None or row[0] != name.digest:
            return None
        _, answer, at, partition, offset = row
        return bytes(answer) if at >= since or self._is_uncommitted(name.connection, partition, offset) else None

    def answered_names(self, connection: str, source: int, prefix: str, limit: int = 2000) -> list[str]:
        """Return the last names of answered deliveries with this prefix, in the order of their texts."""
        rows = self.read(
            lambda it: it.execute(_NAMES, (connection, source, prefix, prefix + chr(0x10FFFF), limit)).fetchall()
        )
        return [name for (name,) in reversed(rows)]

    def _is_uncommitted(self, connection: str, partition: str, offset: int) -> bool:
        """Whether a delivery comes from a log and its offset is not known to be committed."""
        return bool(partition) and offset >= self.committed.get((connection, partition), 0)

    def newest_seq(self) -> int:
        """Return the number of the newest committed event."""
        row = self._one(_SEQ, ())
        return 0 if row is None else int(row[0])

    def oldest(self, after: int = 0) -> OldestEvent | None:
        """Return the oldest event of all entities with a number above `after`; None if there is none."""
        row = self._one(_OLDEST, (after,))
        return None if row is None else OldestEvent(*row)

    def last_trimmed(self) -> int:
        """Return the number of the last trimmed event; 0 for none."""
        oldest = self.oldest()
        return self.newest_seq() if oldest is None else oldest.seq - 1

    def newest_up_to(self, seq: int) -> NumberedEvent | None:
        """The newest committed event with a number up to this one, if it is still here."""
        if (row := self._one(_NEWEST_UNTIL, (seq,))) is None:
            return None
        number, type, id, *others = row
        return NumberedEvent(number, Event(entity_of(type, id), *others))

    def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a short query finds in the committed tables. Raises StoreUnavailable."""
        try:
            return ask(self._reader)
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error

    def read_in_worker(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a long query finds, on a connection of its own, in any thread.

        Raises StoreUnavailable.
        """
        return self.read_snapshot(self.open_snapshot(), query)

    def open_snapshot(self) -> sqlite3.Connection:
        """Return a connection to the tables as they are now, for `read_snapshot`. Raises StoreUnavailable."""
        try:
            connection = _connect(self.path, sqlite3.Connection)
            connection.execute("BEGIN")
            # Only a query fixes what the transaction reads.
            connection.execute("SELECT 1 FROM entities LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error
        return connection

    def read_snapshot(self, snapshot: sqlite3.Connection, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a long query finds, in any thread, and close the connection. Raises StoreUnavailable."""
        try:
            with contextlib.closing(snapshot):
                return query(snapshot)
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error

    def _one(self, statement: str, parameters: tuple[object, ...]) -> tuple[Any, ...] | None:
        try:
            row: tuple[Any, ...] | None = self._reader.execute(statement, parameters).fetchone()
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error
        return row

    def close(self) -> None:
        """Close the file; uncommitted changes are discarded. May be repeated."""
        if self._is_closed:
            return
        self.rollback()
        self._is_closed = True
        try:
            # The writer last: the last connection that closes moves the log into the file.
            self._reader.close()
            self._writer.close()
        except sqlite3.Error as error:
            raise translate_sqlite_error(self.path, error) from error


def _connect(path: str, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Open a connection in autocommit mode; the caller lets one thread use it at a time."""
    return sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False, factory=factory)

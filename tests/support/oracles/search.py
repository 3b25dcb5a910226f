"""A file with things and their index, and the expected results of a search, computed slowly."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spark_store.journal import schema
from spark_store.rql.order import key_of, sort_key
from spark_store.rql.query import Access, SearchHit, SortKey, Thing, ThingQuery
from spark_store.rql.search_evaluator import holds
from spark_store.search import index_builder
from spark_store.search.index import HEAD, EntityHead, SearchIndex

_INSERT = """
    INSERT INTO entities (type, id, revision, created, modified, state, policy) VALUES ('thing', ?, ?, ?, ?, ?, ?)
"""
_TABLES = ("paths", "values", "declared", "large", "subjects", "imports")
HIDDEN = ("_revision", "_created", "_modified")


class StateDatabase:
    """A journal's file with current states only, written fast and not safe against a power cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        schema.migrate(self.connection, str(path))

    def put(self, *things: Thing) -> None:
        self._change([(thing["thingId"], thing) for thing in things])

    def delete(self, *ids: str) -> None:
        self._change([(id, None) for id in ids])

    def clear(self) -> None:
        """Delete all content."""
        self.connection.execute("BEGIN")
        for table in ("entities", *(f"search_{name}" for name in _TABLES)):
            self.connection.execute(f"DELETE FROM {table}")
        self.connection.execute("COMMIT")

    def name(self, subject: str, policies: Collection[str]) -> None:
        """Add a subject to the index of these policies."""
        self.connection.executemany(
            "INSERT OR IGNORE INTO search_subjects (subject, policy) VALUES (?, ?)", [(subject, it) for it in policies]
        )

    def declare(self, *paths: str) -> None:
        """Declare exactly these paths, which get their own index."""
        self.connection.execute("BEGIN")
        index_builder.declare(self.connection, paths)
        while index_builder.step(self.connection):
            pass
        self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()

    def _change(self, changes: Sequence[tuple[str, Thing | None]]) -> None:
        self.connection.execute("BEGIN")
        index = SearchIndex(self.connection)
        for id, thing in changes:
            row = self.connection.execute(HEAD, ("thing", id, 0)).fetchone()
            head = None if row is None else EntityHead._make(row)
            state = None if thing is None else {name: value for name, value in thing.items() if name not in HIDDEN}
            text = None if state is None else msgspec.json.encode(state)
            created, modified, revision = (
                ("", "", 9) if thing is None else (thing["_created"], thing["_modified"], thing["_revision"])
            )
            policy = None if thing is None else thing.get("policyId")
            columns = (revision, created, modified, text, policy)
            if head is None:
                key = self.connection.execute(
                    _INSERT,
                    (id, *columns),
                ).lastrowid
                assert key is not None
            else:
                key = head.key
                self.connection.execute(
                    "UPDATE entities SET revision = ?, created = ?, modified = ?, state = ?, policy = ? WHERE key = ?",
                    (*columns, key),
                )
            index.change("thing", id, key, head, created, None if text is None else len(text), state)
        index.end()
        self.connection.execute("COMMIT")


class PartialReader:
    """Access of a subject that may read only the paths for which `allows` is true."""

    def __init__(self, allows: Callable[[Sequence[str]], bool], is_whole: bool) -> None:
        self.is_whole = is_whole
        self._allows = allows

    def may(self, path: Sequence[str]) -> bool:
        return self.is_whole or self._allows(path)

    def view(self, thing: Thing) -> Thing | None:
        if self.is_whole:
            return thing
        seen = {name: value for name, value in thing.items() if name not in HIDDEN and self._allows((name,))}
        return {**seen, **{name: thing[name] for name in (*HIDDEN, "thingId")}} if seen else None


class ReaderRights:
    """The permissions of the subject `reader`, by policy."""

    subjects = frozenset({"reader"})

    def __init__(self, accesses: Mapping[str, Access]) -> None:
        self._accesses = accesses

    def access(self, policy: str, namespace: str) -> Access | None:
        return self._accesses.get(policy)


def answer(things: Collection[Thing], question: ThingQuery, rights: ReaderRights) -> list[tuple[SortKey, SearchHit]]:
    """Return all hits of a query, in order."""
    found = []
    for thing in things:
        id = thing["thingId"]
        if question.namespaces and id.partition(":")[0] not in question.namespaces:
            continue
        access = rights.access(thing["policyId"], id.partition(":")[0])
        if access is None:
            continue
        may = None if access.is_whole else access.may
        if question.predicate is not None and not holds(question.predicate, thing, may):
            continue
        seen = access.view(thing)
        if seen is not None:
            found.append((sort_key(thing, question.order, may), SearchHit(id, seen)))
    key = key_of(question.order)
    return sorted(found, key=lambda each: key(each[0]))


def with_rights(named: Mapping[str, Any], database: StateDatabase) -> ReaderRights:
    """Return these permissions by policy, and add the subject to the index of the policies."""
    database.name("reader", named)
    return ReaderRights(named)

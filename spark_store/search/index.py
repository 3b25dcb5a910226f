"""The search index of the present things, changed in the same transaction as their states.

It selects candidates, whose states decide, so it may select too many and never too few (Ditto search). Its tables:

- `search_paths`: escaped paths with values, `features/lamp/properties/on`; `wildcard` has `*` for a feature's ID. A path is
  deleted with its last value: names may reveal something, and clients may use new ones all the time.
- `search_values`: a row (path, rank, value, thing) for every value below `attributes`, `features`, `_metadata`, and for
  `policyId`, `definition`, `_created`. Elements of arrays have rows at the array's path; objects and arrays have one, too.
- `search_declared`: the rows of declared paths again, in the order of things' IDs.
- `search_large`: things with more than `LARGE` bytes or too long paths; without rows, they are always candidates.
- `search_subjects`, `search_imports`: the subjects and imports of policies.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mappings.ids import EntityType
from mappings.json_values import NUMBER_TYPES, encode_value, parse_json
from spark_store.rql.binding import fixed_width
from spark_store.rql.order import TypeRank
from spark_store.search.index_sql import TEXT, escape_key


class DeclaredPathState(IntEnum):
    """The state of a path's rows in `search_declared`. Only `THERE` may be used."""

    LEAVING = -1
    NO = 0
    COMING = 1
    THERE = 2


LARGE = 32768
"""Things with longer states, in bytes of JSON, have no rows."""

LONGEST = 512
"""Things with longer escaped paths, in characters, have no rows either."""

COMPLETE = 2**63 - 1
"""The value of `search_progress.indexed` once every entity is in the index."""

IndexRow: TypeAlias = tuple[str, int, Any]
"""Path, rank and value."""

_EMPTY_ARRAY, _NULL, _NUMBER, _TEXT, _OBJECT, _ARRAY, _BOOLEAN = map(int, TypeRank)
_THING, _POLICY = EntityType.THING.value, EntityType.POLICY.value
_PARTS = ("attributes", "features", "_metadata")
_LEAVES = ("policyId", "definition")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_SCALARS = frozenset({str, bool, type(None), *NUMBER_TYPES})
_NOTHING: dict[str, Any] = {}
_MISSING = object()
_path_of = itemgetter(0)

_INDEXED = "SELECT indexed FROM search_progress"
_PATH = "SELECT id, declared FROM search_paths WHERE path = ?"
_INSERT_PATH = "INSERT INTO search_paths (path, wildcard) VALUES (?, ?)"
_INSERT = "INSERT OR IGNORE INTO search_values (path, rank, value, thing) VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM search_values WHERE path = ? AND rank = ? AND value = ? AND thing = ?"
_INSERT_DECLARED = "INSERT OR IGNORE INTO search_declared (path, rank, value, id, thing) VALUES (?, ?, ?, ?, ?)"
_DELETE_DECLARED = "DELETE FROM search_declared WHERE path = ? AND rank = ? AND value = ? AND id = ?"
_INSERT_LARGE = "INSERT OR IGNORE INTO search_large (thing) VALUES (?)"
_DELETE_LARGE = "DELETE FROM search_large WHERE thing = ?"
_INSERT_SUBJECT = "INSERT OR IGNORE INTO search_subjects (subject, policy) VALUES (?, ?)"
_DELETE_SUBJECT = "DELETE FROM search_subjects WHERE subject = ? AND policy = ?"
_INSERT_IMPORT = "INSERT OR IGNORE INTO search_imports (importer, imported) VALUES (?, ?)"
_DELETE_IMPORT = "DELETE FROM search_imports WHERE importer = ? AND imported = ?"

# The state of a large one is not asked for, and neither is one that the caller knows.
HEAD = f"""
    SELECT key, revision, created,
        CASE WHEN revision != ?3 AND (type = 'policy' OR length(state) <= {LARGE}) THEN state END,
        EXISTS (SELECT 1 FROM search_large WHERE thing = key)
    FROM entities WHERE type = ?1 AND id = ?2
"""
"""An entity's row as the index needs it before it is changed: see `EntityHead`.

The third parameter is the revision whose state the caller knows, 0 for none.
"""


DELETE_PATH = """
    DELETE FROM search_paths WHERE id = ?1 AND declared = 0 AND NOT EXISTS (SELECT 1 FROM search_values WHERE path = ?1)
"""
"""Deletes a path at which no thing has a value, unless it is declared."""


class EntityHead(NamedTuple):
    """An entity before a change.

    `state` is JSON, or the value that is known; None if it was deleted; that of a large thing is not read.
    """

    key: int
    revision: int
    created: str
    state: bytes | str | Mapping[str, Any] | None
    is_large: int
    """1 for a thing that has no rows."""


class LongPath(Exception):
    """A path of a state has more than `LONGEST` characters."""


class SearchIndex:
    """The index in an open transaction. It is created for one batch; `end` writes the collected rows."""

    __slots__ = ("_added", "_connection", "_declared", "_ids", "_removed", "indexed")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[str, int] = {}
        self._declared: dict[int, int] = {}
        self._removed: list[tuple[int, int, Any, int]] = []
        self._added: list[tuple[int, int, Any, int]] = []
        (self.indexed,) = connection.execute(_INDEXED).fetchone()

    def change(
        self, type: str, id: str, key: int, head: EntityHead | None, created: str, size: int | None, state: Any
    ) -> None:
        """Process a new state of an entity, of `size` bytes as it is stored; both are None if it is deleted.

        `head` is None if the entity is new. The state of a large thing is not needed.
        """
        if key > self.indexed:
            return
        if type == _THING:
            self._change_thing(id, key, head, created, size, state)
        elif type == _POLICY:
            self._change_policy(id, _parsed(head), _NOTHING if state is None else state)

    def _change_thing(
        self, id: str, key: int, head: EntityHead | None, created: str, size: int | None, state: Any
    ) -> None:
        was_large = head is not None and bool(head.is_large)
        is_large = size is not None and size > LARGE
        before: Mapping[str, Any] = _NOTHING
        after: Mapping[str, Any] = _NOTHING
        created_before = created_after = ""
        if head is not None and head.state is not None and not was_large:
            before, created_before = _parsed(head), head.created
        if state is not None and not is_large:
            after, created_after = state, created
        removed: list[IndexRow] = []
        added: list[IndexRow] = []
        try:
            changed_rows(before, after, removed, added)
        except LongPath:
            is_large, created_after = True, ""
            removed, added = [], []
            changed_rows(before, _NOTHING, removed, added)
        if was_large != is_large:
            self._connection.execute(_INSERT_LARGE if is_large else _DELETE_LARGE, (key,))
        if created_before != created_after:
            removed += _created(created_before)
            added += _created(created_after)
        ids = self._ids
        if removed:
            rows = [(ids.get(path) or self._id(path), rank, value, key) for path, rank, value in removed]
            self._removed += rows
            if self._declared:
                self._change_declared(_DELETE_DECLARED, [(*row[:3], id) for row in rows if row[0] in self._declared])
        if added:
            rows = [(ids.get(path) or self._id(path), rank, value, key) for path, rank, value in added]
            self._added += rows
            if self._declared:
                wanted = [
                    row for row in rows if self._declared.get(row[0], DeclaredPathState.NO) > DeclaredPathState.NO
                ]
                self._change_declared(_INSERT_DECLARED, [(*row[:3], id, key) for row in wanted])

    def _change_declared(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self._connection.executemany(statement, rows)

    def _change_policy(self, id: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for named, delete, insert in (
            (subjects, _DELETE_SUBJECT, _INSERT_SUBJECT),
            (imports, _DELETE_IMPORT, _INSERT_IMPORT),
        ):
            known, wanted = named(before), named(after)
            is_importer = named is imports
            for statement, found in ((delete, known - wanted), (insert, wanted - known)):
                if found:
                    rows = [(id, it) if is_importer else (it, id) for it in sorted(found)]
                    self._connection.executemany(statement, rows)

    def end(self) -> None:
        """Write the collected rows, and delete the paths at which no thing has a value any more."""
        gone = set(map(_path_of, self._removed)).difference(map(_path_of, self._added))
        if self._removed:
            self._connection.executemany(_DELETE, self._removed)
            self._removed = []
        if self._added:
            # In this order, many are neighbors in the file.
            self._added.sort()
            self._connection.executemany(_INSERT, self._added)
            self._added = []
        if gone and self._connection.executemany(DELETE_PATH, [(path,) for path in gone]).rowcount:
            self._ids.clear()

    def _id(self, path: str) -> int:
        """Look a path up, or add it, when it first occurs in the batch."""
        row = self._connection.execute(_PATH, (path,)).fetchone()
        if row is None:
            cursor = self._connection.execute(_INSERT_PATH, (path, wildcard(path)))
            found = cursor.lastrowid
            assert found is not None
        else:
            found, declared = row
            if declared != DeclaredPathState.NO:
                self._declared[found] = declared
        self._ids[path] = found
        return found


def _parsed(head: EntityHead | None) -> Mapping[str, Any]:
    """Return the parsed state before a change. The rows of a damaged one stay."""
    if head is None or head.state is None:
        return _NOTHING
    if isinstance(head.state, Mapping):
        return head.state
    try:
        found = parse_json(head.state)
    except msgspec.DecodeError:
        return _NOTHING
    return found if isinstance(found, Mapping) else _NOTHING


def forget(connection: sqlite3.Connection, type: str, id: str) -> None:
    """Take an entity out of the index, which still has its state."""
    row = connection.execute(HEAD, (type, id, 0)).fetchone()
    if row is not None:
        head = EntityHead._make(row)
        index = SearchIndex(connection)
        index.change(type, id, head.key, head, "", None, None)
        index.end()


def rows_of(state: Mapping[str, Any], created: str) -> set[IndexRow] | None:
    """Return every row of a thing that is not large; None if one of its paths is too long."""
    added: list[IndexRow] = []
    try:
        changed_rows(_NOTHING, state, [], added)
    except LongPath:
        return None
    return {*added, *_created(created)}


def subjects(policy: Mapping[str, Any]) -> set[str]:
    """Return the subjects in the entries of a policy."""
    entries = policy.get("entries")
    if not isinstance(entries, Mapping):
        return set()
    found = [entry.get("subjects") for entry in entries.values() if isinstance(entry, Mapping)]
    return {subject for named in found if isinstance(named, Mapping) for subject in named}


def imports(policy: Mapping[str, Any]) -> set[str]:
    """Return the IDs of the policies that a policy imports."""
    found = policy.get("imports")
    return set(found) if isinstance(found, Mapping) else set()


def wildcard(path: str) -> str | None:
    """Return a path with `*` for the ID of a feature; None for other paths."""
    if not path.startswith("features/"):
        return None
    _, _, rest = path.partition("/")
    _, slash, rest = rest.partition("/")
    return f"features/*{slash}{rest}"


def changed_rows(
    before: Mapping[str, Any], after: Mapping[str, Any], removed: list[IndexRow], added: list[IndexRow]
) -> None:
    """Collect the rows that a thing loses and gains with its state, without equal parts. Raises LongPath."""
    for part in _PARTS:
        old, new = before.get(part, _NOTHING), after.get(part, _NOTHING)
        if old is new:
            continue
        if type(old) is dict and type(new) is dict:
            _changed_members(part, old, new, removed, added)
        else:
            _changed_value(part, old, new, removed, added)
    for leaf in _LEAVES:
        old, new = before.get(leaf, _MISSING), after.get(leaf, _MISSING)
        if old is new:
            continue
        if type(old) is not type(new) or old != new:
            _changed_value(leaf, old, new, removed, added)


def _changed_members(
    path: str, before: dict[str, Any], after: dict[str, Any], removed: list[IndexRow], added: list[IndexRow]
) -> None:
    """The members of an object. Unchanged ones are usually the same objects, which are skipped."""
    kept = 0
    for key, new in after.items():
        old = before.get(key, _MISSING)
        if old is not _MISSING:
            kept += 1
        if old is new:
            continue
        kind = type(new)
        # Python takes True for 1, and the index does not.
        if kind is not type(old):
            _changed_value(f"{path}/{escape_key(key)}", old, new, removed, added)
        elif kind is dict:
            part = _changed_members if old and new else _changed_value
            part(f"{path}/{escape_key(key)}", old, new, removed, added)
        elif old != new or (kind is list and encode_value(old) != encode_value(new)):
            _changed_value(f"{path}/{escape_key(key)}", old, new, removed, added)
    if kept != len(before):
        for key in before.keys() - after.keys():
            _changed_value(f"{path}/{escape_key(key)}", before[key], _MISSING, removed, added)


def _changed_value(path: str, old: Any, new: Any, removed: list[IndexRow], added: list[IndexRow]) -> None:
    """Process a value that is completely different."""
    if type(old) in _SCALARS and type(new) in _SCALARS and len(path) <= LONGEST:
        old_row, new_row = _row(path, old), _row(path, new)
        if old_row != new_row:
            removed.append(old_row)
            added.append(new_row)
        return
    # Elements of an array may have the same rows.
    old_rows: set[IndexRow] = set()
    new_rows: set[IndexRow] = set()
    if old is not _MISSING:
        _collect(path, old, old_rows, sys.maxsize)
    if new is not _MISSING:
        _collect(path, new, new_rows, LONGEST)
    removed += old_rows - new_rows
    added += new_rows - old_rows


def _collect(path: str, value: Any, rows: set[IndexRow], longest: int) -> None:
    """Every row of a value at a path. Raises LongPath."""
    if len(path) > longest:
        raise LongPath
    kind = type(value)
    if kind in _SCALARS:
        rows.add(_row(path, value))
    elif kind is list:
        rows.add((path, _ARRAY, 1) if value else (path, _EMPTY_ARRAY, 0))
        for element in value:
            _collect(path, element, rows, longest)
    else:
        rows.add((path, _OBJECT, int(bool(value))))
        for key, member in value.items():
            _collect(f"{path}/{escape_key(key)}", member, rows, longest)


def _row(path: str, value: Any) -> IndexRow:
    """The row of a value without members or elements."""
    kind = type(value)
    if kind is str:
        return path, _TEXT, value if len(value) <= TEXT else value[:TEXT]
    if kind is int:
        return path, _NUMBER, value if _SMALLEST <= value <= _LARGEST else _double(value)
    if kind in NUMBER_TYPES:
        return path, _NUMBER, float(value)
    return (path, _NULL, 0) if value is None else (path, _BOOLEAN, int(value))


def _double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _created(created: str) -> Iterable[IndexRow]:
    return [("_created", _TEXT, fixed_width(created))] if created else []

"""The search index of a journal's file, and its expected content, computed slowly from the states."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from spark_store.rql.binding import fixed_width
from spark_store.rql.order import TypeRank
from spark_store.search.index import LARGE, LONGEST
from spark_store.search.index_sql import TEXT


class Indexed(NamedTuple):
    """The rows of the index.

    `values` have path, rank, value and thing, `declared` path, rank, value, ID and thing. `large` are the keys of large
    things. `subjects` and `imports` belong to policies.
    """

    values: set[tuple[str, int, Any, int]]
    large: set[int]
    subjects: set[tuple[str, str]]
    imports: set[tuple[str, str]]
    declared: set[tuple[str, int, Any, str, int]]


def found(file: sqlite3.Connection | Path) -> Indexed:
    """Return the content of the index. Checks that rows are unique, and that wildcards are correct."""
    if isinstance(file, Path):
        with closing(sqlite3.connect(file)) as connection:
            return found(connection)
    rows = file.execute("""
        SELECT search_paths.path, rank, value, thing FROM search_values LEFT JOIN search_paths ON id = search_values.path
    """).fetchall()
    for path, star in file.execute("SELECT path, wildcard FROM search_paths"):
        segments = path.split("/")
        is_inside = segments[0] == "features" and len(segments) > 1
        assert star == ("/".join(["features", "*", *segments[2:]]) if is_inside else None)
    assert len(set(rows)) == len(rows)
    return Indexed(
        set(rows),
        {thing for (thing,) in file.execute("SELECT thing FROM search_large")},
        set(file.execute("SELECT subject, policy FROM search_subjects").fetchall()),
        set(file.execute("SELECT importer, imported FROM search_imports").fetchall()),
        set(
            file.execute("""
                SELECT search_paths.path, rank, value, d.id, thing
                FROM search_declared AS d JOIN search_paths ON search_paths.id = d.path AND declared = 2
            """).fetchall()
        ),
    )


def expected(file: sqlite3.Connection | Path) -> Indexed:
    """Return the expected content of the index, up to where it is built."""
    if isinstance(file, Path):
        with closing(sqlite3.connect(file)) as connection:
            return expected(connection)
    (progress,) = file.execute("SELECT indexed FROM search_progress").fetchone()
    wanted = Indexed(set(), set(), set(), set(), set())
    declared = {path for (path,) in file.execute("SELECT path FROM search_paths WHERE declared = 2")}
    states = file.execute("SELECT key, type, id, created, state FROM entities WHERE key <= ?", (progress,))
    for key, type, id, created, text in states:
        if text is None:
            continue
        state = json.loads(text)
        if type == "policy":
            for entry in state.get("entries", {}).values():
                wanted.subjects.update((subject, id) for subject in entry["subjects"])
            wanted.imports.update((id, imported) for imported in state.get("imports", {}))
        elif type != "thing":
            continue
        elif len(text) > LARGE or any(len(path) > LONGEST for path, _ in places(state, created)):
            wanted.large.add(key)
        else:
            for path, value in places(state, created):
                wanted.values.add((path, *ranked(value), key))
                if path in declared:
                    wanted.declared.add((path, *ranked(value), id, key))
    return wanted


def places(state: dict[str, Any], created: str) -> Iterator[tuple[str, Any]]:
    yield "_created", fixed_width(created)
    for name in ("policyId", "definition"):
        if name in state:
            yield from nodes(name, state[name])
    for name in ("attributes", "features", "_metadata"):
        for key, value in state.get(name, {}).items():
            yield from nodes(f"{name}/{escaped(key)}", value)


def nodes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, member in value.items():
            yield from nodes(f"{path}/{escaped(key)}", member)
    if isinstance(value, list):
        for element in value:
            yield from nodes(path, element)


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def ranked(value: Any) -> tuple[int, Any]:
    match value:
        case None:
            return TypeRank.NULL, 0
        case bool():
            return TypeRank.BOOLEAN, int(value)
        case int():
            return TypeRank.NUMBER, value if -(2**63) <= value < 2**63 else float(value)
        case float():
            return TypeRank.NUMBER, value
        case str():
            return TypeRank.TEXT, value[:TEXT]
        case list():
            return (TypeRank.ARRAY, 1) if value else (TypeRank.EMPTY_ARRAY, 0)
        case _:
            return TypeRank.OBJECT, 1 if value else 0

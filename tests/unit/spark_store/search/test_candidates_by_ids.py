"""Things in the order of their ids: all of them, and those of one value by an index of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_store.rql.order import TypeRank
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.search.candidates import IdScan, ValueCandidates
from spark_store.search.index import LARGE
from spark_store.search.read_view import Deadline, ReadView
from tests.support.oracles.search import StateDatabase

BESIDE = {"_revision": 1, "_created": "2024-05-01T10:00:00Z", "_modified": "2024-05-01T10:00:00Z"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[StateDatabase]:
    """Four things in a room, one elsewhere and a large one, in each of two namespaces."""
    found = StateDatabase(tmp_path / "journal.db")
    found.declare("attributes/room")
    for namespace in ("b", "a"):
        found.put(*(thing(f"{namespace}:{name}", "hall") for name in "dbca"), thing(f"{namespace}:e", "attic"))
        found.put(thing(f"{namespace}:bb", "hall", note="x" * LARGE))
    yield found
    found.close()


def thing(id: str, room: str, **attributes: Any) -> dict[str, Any]:
    return {"thingId": id, "attributes": {"room": room, **attributes}, **BESIDE}


def by_ids(database: StateDatabase, *namespaces: str) -> tuple[ReadView, IdScan]:
    read_view = ReadView(database.connection, Deadline(float("inf"), 60.0, ThreadPace(SearchPace())))
    return read_view, IdScan(read_view, namespaces)


def in_the_hall(
    database: StateDatabase, *namespaces: str, start: str | None = None, is_descending: bool = False
) -> list[str]:
    read_view, ids = by_ids(database, *namespaces)
    path = read_view.declared_path("attributes/room")
    assert path is not None
    wanted = ValueCandidates("attributes/room", path, int(TypeRank.TEXT), "hall")
    return [id for id, _ in ids.of_value(wanted, read_view.large(), start, is_descending)]


def test_things_come_in_the_order_of_their_ids_after_an_id(database: StateDatabase) -> None:
    _, ids = by_ids(database)
    behind = ["a:d", "a:e", "b:a", "b:b", "b:bb", "b:c", "b:d", "b:e"]
    assert [row[1] for row in ids.things("a:c", False)] == behind
    assert [row[1] for row in ids.things("a:c", True)] == ["a:bb", "a:b", "a:a"]
    _, ids = by_ids(database, "b")
    assert [row[1] for row in ids.things(None, True, " AND id < ?", ("b:bb",))] == ["b:b", "b:a"]


def test_things_of_one_value_come_with_the_large_ones_in_the_middle_of_them(database: StateDatabase) -> None:
    in_a = ["a:a", "a:b", "a:bb", "a:c", "a:d"]
    everything = [*in_a, *(id.replace("a:", "b:", 1) for id in in_a)]
    assert in_the_hall(database) == everything
    assert in_the_hall(database, is_descending=True) == everything[::-1]
    assert in_the_hall(database, start="a:b") == everything[2:]
    assert in_the_hall(database, start="a:bb", is_descending=True) == ["a:b", "a:a"]


def test_of_some_namespaces_large_things_of_others_may_come_along(database: StateDatabase) -> None:
    assert [id for id in in_the_hall(database, "a") if id.startswith("a:")] == ["a:a", "a:b", "a:bb", "a:c", "a:d"]


def test_an_incomplete_index_of_a_path_is_not_used(database: StateDatabase) -> None:
    read_view, _ = by_ids(database)
    database.connection.execute("UPDATE search_paths SET declared = 1 WHERE path = 'attributes/room'")
    assert read_view.declared_path("attributes/room") is None
    assert read_view.declared_path("attributes/none") is None


def test_things_of_one_value_are_read_in_order_and_not_sorted(database: StateDatabase) -> None:
    plan = database.connection.execute(
        "EXPLAIN QUERY PLAN SELECT id, thing FROM search_declared WHERE path = 1 AND rank = 3 AND value = 'hall' "
        "AND id >= 'a:' AND id < 'a;' AND id > 'a:b' ORDER BY id DESC"
    ).fetchall()
    assert [row[3] for row in plan] == [
        "SEARCH search_declared USING PRIMARY KEY (path=? AND rank=? AND value=? AND id>? AND id<?)"
    ]

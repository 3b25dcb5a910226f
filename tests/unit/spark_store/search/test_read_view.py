"""A read view of one state of a file: what it reads, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.search.read_view import IMPORTS, NAMESPACES, POLICIES, Deadline, ReadView
from tests.support.oracles.search import StateDatabase

BESIDE = {"_revision": 1, "_created": "2024-05-01T10:00:00Z", "_modified": "2024-05-01T10:00:00Z"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path / "journal.db")
    yield found
    found.close()


def read_view(database: StateDatabase) -> ReadView:
    return ReadView(database.connection, Deadline(float("inf"), 60.0, ThreadPace(SearchPace())))


def test_a_clock_stops_at_its_deadline_and_is_late_after_its_slice() -> None:
    clock = Deadline(deadline=0.0, slice_seconds=60.0, pace=ThreadPace(SearchPace()))
    assert clock.is_late()
    assert clock.tick()
    assert clock.has_stopped
    patient = Deadline(deadline=float("inf"), slice_seconds=60.0, pace=ThreadPace(SearchPace()))
    assert not patient.is_late()
    assert not patient.tick()


@pytest.mark.parametrize("number", [0, 3, 300])
def test_any_number_of_things_is_loaded_by_keys(database: StateDatabase, number: int) -> None:
    database.put(*({"thingId": f"acme:{n}", **BESIDE} for n in range(number)), {"thingId": "acme:gone", **BESIDE})
    database.delete("acme:gone")
    keys = range(1, number + 2)
    assert sorted(row[0] for row in read_view(database).load(keys)) == list(range(1, number + 1))
    assert sorted(read_view(database).ids(keys)) == sorted(
        [*((f"acme:{n}", n + 1) for n in range(number)), ("acme:gone", number + 1)]
    )


def test_policies_of_subjects_are_those_that_name_them_and_those_that_import_them(database: StateDatabase) -> None:
    database.name("a", ["acme:p", "acme:q"])
    database.name("b", ["acme:r"])
    imports = [("acme:s", "acme:p"), ("acme:t", "acme:s"), ("acme:p", "acme:t"), ("acme:u", "acme:r")]
    database.connection.executemany("INSERT INTO search_imports (importer, imported) VALUES (?, ?)", imports)
    assert read_view(database).policies({"a"}) == ["acme:p", "acme:q", "acme:s", "acme:t"]
    assert read_view(database).policies({"b", "nobody"}) == ["acme:r", "acme:u"]
    assert read_view(database).policies(set()) == []
    database.name("all", [f"acme:{n}" for n in range(POLICIES + 1)])
    assert read_view(database).policies({"all"}) is None


@pytest.mark.parametrize("most", [200, 1])
def test_things_whose_policy_names_a_subject_or_imports_one_that_does_are_visible(
    database: StateDatabase, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("spark_store.search.read_view.POLICIES", most)
    policies = ["own", "importing", "importing-again", "other", "importing-other", "circle"]
    database.put(*({"thingId": f"acme:{it}", "policyId": f"acme:{it}", **BESIDE} for it in policies))
    database.name("reader", ["acme:own"])
    database.name("stranger", ["acme:other"])
    imports = [
        ("importing", "own"),
        ("importing-again", "importing"),
        ("importing-other", "other"),
        ("circle", "circle"),
    ]
    database.connection.executemany(
        "INSERT INTO search_imports (importer, imported) VALUES (?, ?)",
        [(f"acme:{importer}", f"acme:{imported}") for importer, imported in imports],
    )
    seen = read_view(database)
    seen.restrict({"reader", "acme:nothing"})
    keys = range(1, len(policies) + 1)
    assert {(row[1], row[0]) for row in seen.load(keys)} == set(seen.ids(keys))
    assert {row[1] for row in seen.load(keys)} == {"acme:own", "acme:importing", "acme:importing-again"}
    assert [row[1] for key in keys for row in seen.load([key])] == [
        "acme:own",
        "acme:importing",
        "acme:importing-again",
    ]


@pytest.mark.parametrize(("length", "is_visible"), [(IMPORTS - 1, False), (IMPORTS, True), (100_000, True)])
def test_only_some_of_very_many_imports_of_a_policy_are_read(
    database: StateDatabase, monkeypatch: pytest.MonkeyPatch, length: int, is_visible: bool
) -> None:
    monkeypatch.setattr("spark_store.search.read_view.POLICIES", 0)
    database.put({"thingId": "acme:a", "policyId": "acme:0", **BESIDE})
    database.name("reader", ["acme:own"])
    database.connection.executemany(
        "INSERT INTO search_imports (importer, imported) VALUES (?, ?)",
        [(f"acme:{number}", f"acme:{number + 1}") for number in range(length)],
    )
    seen = read_view(database)
    seen.restrict({"reader"})
    operations = 0

    def count() -> None:
        nonlocal operations
        operations += 1

    database.connection.set_progress_handler(count, 1)
    assert [key for _, key in seen.ids([1])] == ([1] if is_visible else [])
    assert operations < 200 * IMPORTS, "as few as for the longest chain that is read completely"


def test_namespaces_are_those_of_things(database: StateDatabase) -> None:
    database.put(*({"thingId": id, **BESIDE} for id in ("acme:a", "acme:b", "acme.lab:a", ":free")))
    assert sorted(read_view(database).namespaces() or ()) == ["", "acme", "acme.lab"]
    database.put(*({"thingId": f"n{n}:a", **BESIDE} for n in range(NAMESPACES)))
    assert read_view(database).namespaces() is None

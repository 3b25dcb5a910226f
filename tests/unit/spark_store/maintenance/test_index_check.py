"""The search index compared with the states: missing and superfluous rows are found, and no others."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.maintenance import index_check
from spark_store.maintenance.index_check import IndexComparison, IndexDifference, compare
from spark_store.search import index_builder
from spark_store.search.index import LARGE, LONGEST
from tests.support.dice import dice
from tests.support.journal_entries import POLICY
from tests.support.paths import ROOT
from tests.support.state_change import change

THINGS: list[dict[str, Any] | None] = [
    {"policyId": "a:p", "attributes": {"room": "hall", "n": [1, {"x": 2**70}], "odd": 1.5}},
    {"attributes": {"room": "hall"}, "features": {"lamp": {"properties": {"on": True}}}},
    {"attributes": {"bulk": "x" * LARGE}},
    None,
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with contextlib.closing(Journal.open(tmp_path / "journal.db")) as journal:
        for number, state in enumerate(THINGS, 1):
            entity = EntityId(EntityType.THING, "acme", str(number))
            journal.append([change(entity, 1, {"attributes": {"a": 1}}), change(entity, 2, state)])
        policy = {"entries": {"E": {"subjects": {"a:anna": {}}}}, "imports": {"a:b": {}}}
        journal.append([change(POLICY, 1, policy)])
        journal.within(lambda it: index_builder.declare(it, ["features/lamp/properties/on"]))
        while journal.within(index_builder.step):
            journal.commit()
        journal.commit()
    return tmp_path / "journal.db"


def tamper(file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(statement)


def test_where_all_is_well_nothing_is_found(file: Path) -> None:
    assert compare(file) == IndexComparison(4, 0, 0, [])


def test_a_thing_with_a_path_that_is_too_long_is_to_be_among_the_large_ones(file: Path) -> None:
    with contextlib.closing(Journal.open(file)) as journal:
        entity = EntityId(EntityType.THING, "acme", "long")
        journal.append([change(entity, 1, {"attributes": {"k" * LONGEST: 1}})])
    assert compare(file) == IndexComparison(5, 0, 0, [])
    tamper(file, "DELETE FROM search_large WHERE thing > 4")
    assert compare(file).examples == [IndexDifference("rows different from the state", "acme:long", 1)]


def test_numbers_with_the_same_hash_are_different(file: Path) -> None:
    assert hash(-1) == hash(-2)
    with contextlib.closing(Journal.open(file)) as journal:
        journal.append([change(EntityId(EntityType.THING, "acme", "cold"), 1, {"attributes": {"t": -1}})])
    assert compare(file) == IndexComparison(5, 0, 0, [])
    tamper(file, "UPDATE search_values SET value = -2 WHERE value = -1")
    assert compare(file).examples == [IndexDifference("rows different from the state", "acme:cold", 1)]


def different(*entities: tuple[str, int]) -> list[IndexDifference]:
    return [IndexDifference("rows different from the state", *each) for each in entities]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM search_values WHERE value = 'hall' AND thing = 1", different(("acme:1", 2))),
        ("UPDATE search_values SET value = 'cellar' WHERE value = 'hall' AND thing = 1", different(("acme:1", 2))),
        ("UPDATE search_values SET thing = 2 WHERE value = 1.5", different(("acme:1", 2), ("acme:2", 2))),
        (
            "INSERT INTO search_values SELECT path, 3, 'x', 4 FROM search_values WHERE value = 1.5",
            different(("acme:4", 2)),
        ),
        (
            "INSERT INTO search_values SELECT path, 3, 'x', 99 FROM search_values WHERE value = 1.5",
            [IndexDifference("rows without an entity", "", 0)],
        ),
        (
            "INSERT INTO search_values SELECT path, 3, 'x', 'no key' FROM search_values WHERE value = 1.5",
            [IndexDifference("rows without an entity", "", 0)],
        ),
        (
            "INSERT INTO search_values SELECT path, 3, 'x', 1.5 FROM search_values WHERE value = 1.5",
            [IndexDifference("rows without an entity", "", 0)],
        ),
        ("DELETE FROM search_paths WHERE path = 'features/lamp/properties/on'", different(("acme:2", 2))),
        (
            "DELETE FROM search_declared WHERE id = 'acme:2'",
            [IndexDifference("declared: features/lamp/properties/on", "acme:2", 0)],
        ),
        (
            "UPDATE search_declared SET id = 'acme:9' WHERE id = 'acme:2'",
            [IndexDifference("declared: features/lamp/properties/on", name, 0) for name in ("acme:2", "acme:9")],
        ),
        ("DELETE FROM search_large", different(("acme:3", 2))),
        ("INSERT INTO search_large VALUES (1)", different(("acme:1", 2))),
        ("DELETE FROM search_subjects", different((POLICY.id, 1))),
        ("INSERT INTO search_imports VALUES ('a:q', 'a:r')", [IndexDifference("rows without an entity", "", 0)]),
        ("UPDATE search_imports SET imported = 'a:r'", different((POLICY.id, 1))),
        ('UPDATE entities SET state = \'{"attributes":{"room":"hall"}}\' WHERE key = 2', different(("acme:2", 2))),
        ("UPDATE entities SET state = '{' WHERE key = 2", different(("acme:2", 2))),
    ],
)
def test_every_difference_between_index_and_states_is_reported(
    file: Path, statement: str, found: list[IndexDifference]
) -> None:
    tamper(file, statement)
    compared = compare(file)
    assert compared.examples == found
    assert compared.differing == len({it.entity for it in found})


def test_unindexed_entities_are_counted_as_waiting_and_not_as_missing(file: Path) -> None:
    tamper(file, "UPDATE search_progress SET indexed = 1")
    tamper(file, "DELETE FROM search_values WHERE thing > 1")
    tamper(file, "DELETE FROM search_large")
    tamper(file, "DELETE FROM search_subjects")
    tamper(file, "DELETE FROM search_imports")
    tamper(file, "DELETE FROM search_declared WHERE thing > 1")
    assert compare(file) == IndexComparison(1, 4, 0, [])
    tamper(file, "UPDATE search_progress SET is_stale = 1")
    assert compare(file).waiting == 5


def test_of_many_only_some_are_reported_one_by_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tamper(file, "DELETE FROM search_values")
    monkeypatch.setattr(index_check, "SHOWN", 1)
    compared = compare(file)
    assert (compared.differing, len(compared.examples)) == (3, 1)


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.soak(shard="kills-operators"))])
def test_index_and_states_agree_after_a_kill_of_the_writer_at_any_step(tmp_path: Path, kills: int) -> None:
    """Also while the index is rebuilt."""
    path, random_source = tmp_path / "journal.db", dice("index writer", kills)
    waited, compared = 0, 0
    for _ in range(kills):
        command = [
            sys.executable,
            "-m",
            "tests.support.kill_series.index_writer",
            str(path),
            str(random_source.randrange(1 << 32)),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for _ in range(random_source.randrange(1, 120)):
                assert writer.stdout.readline() == b"committed\n"
            writer.send_signal(signal.SIGKILL)
        found = compare(path)
        assert found.examples == []
        waited += found.waiting > 0
        compared += found.entities
    # A quarter of the kills interrupts an index build; of ten series of eight kills, one interrupts none.
    assert waited >= kills // 100
    assert compared > kills
    # The next process completes the unfinished work.
    with contextlib.closing(Journal.open(path)) as journal:
        while journal.within(index_builder.step):
            journal.commit()
        journal.commit()
    assert compare(path)[1:] == (0, 0, [])


def test_a_missing_journal_raises_store_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open"):
        compare(tmp_path / "journal.db")

"""Events and known states, in order, become one state for each entity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_store.errors import LakeUnfit
from spark_store.pipeline import folding
from tests.support.journal_entries import timestamp


def fold_rows(items: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The folded rows, with their texts last."""
    for ground, *key, policy, revision, seq, created, modified, state in folding.fold_rows(items):
        yield (*key, policy, revision, created, modified, None if state is None else state.decode(), seq, ground)


def item(entity: str, revision: int, seq: int) -> tuple[Any, ...]:
    at = f"2030-01-15T07:30:{revision:02}.000000Z"
    return ("thing", entity, revision, 0, seq, at, "modified", "/attributes/n", str(revision), "{}", None, None)


def known(entity: str, revision: int, state: str | None) -> tuple[Any, ...]:
    at = f"2030-01-15T07:30:{revision:02}.000000Z"
    return ("thing", entity, revision, 1, 0, at, "known", "/", state, "{}", "a:policy", at)


def test_rows_of_one_entity_after_the_other_become_one_state_each() -> None:
    found = list(
        fold_rows(
            [
                item("a:1", 1, 10),
                item("a:1", 2, 13),
                known("a:1", 2, "{}"),
                item("a:2", 3, 11),
                item("a:3", 3, 12),
                known("a:3", 3, '{"policyId":"a:policy"}'),
                item("a:3", 4, 14),
                known("a:4", 7, None),
            ]
        )
    )
    assert [(row[1], row[2], row[3], row[6], row[7], row[8]) for row in found] == [
        ("a:1", None, 2, '{"attributes":{"n":2}}', 13, "events"),
        ("a:2", None, 3, None, 11, "nothing"),
        ("a:3", "a:policy", 4, '{"policyId":"a:policy","attributes":{"n":4}}', 14, "known"),
        ("a:4", "a:policy", 7, None, 0, "known"),
    ]
    assert list(fold_rows([])) == []


def test_a_damaged_row_of_the_lake_is_not_reported_as_one_of_the_journal() -> None:
    damaged = (*item("a:1", 1, 10)[:5], "soon", *item("a:1", 1, 10)[6:])
    batch = pa.RecordBatch.from_arrays([pa.array([value]) for value in damaged], [f"c{n}" for n in range(len(damaged))])
    with pytest.raises(
        LakeUnfit,
        match=r"^lake, rows of events, latest or snapshots, column created: found: .*soon.*; stop the pipeline",
    ):
        list(folding._fold_batches([batch]))


@pytest.mark.parametrize(("value", "headers"), [("{", "{}"), ("2", '{"_metadata":[')])
def test_an_event_of_the_lake_without_valid_json_is_named(value: str, headers: str) -> None:
    damaged = (*item("a:1", 2, 13)[:8], value, headers, None, None)
    with pytest.raises(
        LakeUnfit, match=r"^lake, table events, thing a:1 at revision 2: expected JSON, found: .*; stop the pipeline"
    ):
        list(fold_rows([item("a:1", 1, 10), damaged]))


def test_a_rebuilt_state_has_the_sequence_number_of_its_last_event() -> None:
    """Otherwise a restored table would ignore its missing events when they are read again."""
    newer = known("a:1", 9, "{}")
    (row,) = fold_rows([item("a:1", 1, 10), item("a:1", 2, 13), (*newer[:4], 900, *newer[5:])])
    assert (row[3], row[6], row[7]) == (2, '{"attributes":{"n":2}}', 13)


def test_a_rebuilt_state_contains_the_metadata_of_its_events() -> None:
    """Metadata is in the stored headers of events; without them a rebuild would remove it from all things."""
    *event, _, _, _ = item("a:1", 1, 10)
    metadata = '{"_metadata":[["/attributes/n/unit","kg"]]}'
    (row,) = fold_rows([(*event, metadata, None, None)])
    assert row[6] == '{"attributes":{"n":1},"_metadata":{"attributes":{"n":{"unit":"kg"}}}}'


def event(
    revision: int, value: str | None = "1", action: str = "modified", path: str = "/attributes/n"
) -> tuple[Any, ...]:
    return ("thing", "a:1", revision, 0, revision + 50, timestamp(revision), action, path, value, "{}", None, None)


def folded(*items: tuple[Any, ...]) -> tuple[Any, ...]:
    (row,) = fold_rows(items)
    return row


CREATED = event(1, '{"policyId":"a:pol","attributes":{"big":9007199254740993}}', "created", "/")


def test_folding_continues_from_a_known_state_and_ends_where_something_is_missing() -> None:
    text = '{"policyId":"a:pol","attributes":{"big":9007199254740993,"n":1}}'
    key = ("thing", "a:1")
    assert folded(CREATED, event(2)) == (*key, "a:pol", 2, timestamp(1), timestamp(2), text, 52, "events")
    base = (*key, 2, 1, 52, timestamp(2), "known", "/", text, "{}", "a:pol", timestamp(1))
    assert folded(base) == (*key, "a:pol", 2, timestamp(1), timestamp(2), text, 52, "known")
    assert folded(base, event(3, None, "deleted", "/"))[2:4] == ("a:pol", 3)
    assert folded(base, event(3, None, "deleted", "/"))[6:] == (None, 53, "known")
    assert folded(event(2))[8] == "nothing", "the first event is not there"
    assert folded(base, event(3), event(5))[8] == "nothing"


def test_a_creation_needs_nothing_before_it() -> None:
    """The remaining events of an erased and recreated entity begin with its creation."""
    row = folded(event(7, '{"attributes":{"n":5}}', "created", "/"), event(8))
    assert (row[3], row[4], row[6]) == (8, timestamp(7), '{"attributes":{"n":1}}')

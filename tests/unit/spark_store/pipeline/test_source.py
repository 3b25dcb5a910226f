"""Partitions and Arrow batches of the journal."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectivity.maintenance.erasure import erase_offline
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.reader import EntityState, JournalEntry
from spark_store.lake.arrow_rows import EVENTS, STATES, arrow
from spark_store.pipeline.source import (
    PARTITION_ROWS,
    _read_in_worker,
    event_batches,
    event_batches_alone,
    few_rows,
    split_range,
    state_batches,
)
from spark_store.records import Change
from tests.support.journal_entries import LAMP, POLICY, change, timestamp
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.twin_changes import tamper, trim

ODD = EntityId(EntityType.THING, "acme.site", "lämp %?#/" + "é" * 100)


def test_a_range_is_cut_without_hole_or_overlap() -> None:
    assert split_range(1, 0, 4) == []
    assert split_range(5, 5, 4) == [(5, 5)]
    assert split_range(1, PARTITION_ROWS * 2 - 1, 4) == [(1, PARTITION_ROWS * 2 - 1)]
    edges = split_range(11, 10 + PARTITION_ROWS * 7, 3)
    assert (edges[0][0], edges[-1][1], len(edges)) == (11, 10 + PARTITION_ROWS * 7, 3)
    assert all(later[0] == earlier[1] + 1 for earlier, later in itertools.pairwise(edges))


AT = "2030-01-15T07:30:00.250000Z"


def entry(seq: int, value: bytes | None = b"1") -> JournalEntry:
    return JournalEntry("thing", "acme:lamp", seq, seq, AT, "modified", "/", value, b"{}")


def test_arrow_batches_are_bounded_in_rows_and_in_bytes() -> None:
    assert [batch.num_rows for batch in arrow((entry(n) for n in range(25_000)), EVENTS)] == [10_000, 10_000, 5_000]
    large = b'"' + b"x" * (5 << 20) + b'"'
    assert [batch.num_rows for batch in arrow((entry(n, large) for n in range(5)), EVENTS)] == [2, 2, 1]
    assert list(arrow([], EVENTS)) == []


def events_of(data_folder: DataFolder, first: int, last: int, most: int = 1_000) -> pa.Table | None:
    return few_rows(event_batches(data_folder.lake.journal, first, last), EVENTS, most)


def states_of(data_folder: DataFolder, first: int, last: int, most: int = 7) -> pa.Table | None:
    return few_rows(state_batches(data_folder.lake.journal, first, last), STATES, most)


def test_few_states_are_read_at_once_with_any_number_of_events(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_folder.write(50, entities=7)
    read = states_of(data_folder, 1, 50)
    assert read is not None
    assert sorted(read.column("seq").to_pylist()) == list(range(44, 51))
    later = states_of(data_folder, 49, 50)
    assert later is not None
    assert sorted(later.column("seq").to_pylist()) == [49, 50]
    assert states_of(data_folder, 1, 50, 6) is None, "too many"
    monkeypatch.setattr("spark_store.pipeline.source._FEW_BYTES", read.nbytes - 1)
    assert states_of(data_folder, 1, 50) is None, "too many bytes"


def test_states_of_a_range_that_was_trimmed_meanwhile_are_refused(data_folder: DataFolder) -> None:
    """The entities of the batch are unknown; the list of all entities is still available."""
    data_folder.write(50, entities=7)
    erase_offline(data_folder.folder, lamp(6), "anna")  # the event 21, among others
    trim(data_folder, 20)
    tamper(data_folder, "DELETE FROM holes WHERE seq <= 20")
    for first in (1, 21):
        read = states_of(data_folder, first, 50)
        assert read is not None
        assert read.num_rows == 6
    with pytest.raises(StoreUnavailable, match="events from number 20 on were trimmed"):
        states_of(data_folder, 20, 50)


def test_a_worker_reads_its_parts_and_leaves_the_collector_as_it_was(data_folder: DataFolder) -> None:
    data_folder.write(50)
    read = partial(event_batches_alone, data_folder.lake.journal)
    numbers = [pa.RecordBatch.from_pydict({"id": [2, 0]})]
    found = _read_in_worker(read, [(1, 10), (11, 20), (21, 50)], numbers)
    assert next(found).num_rows == 30
    assert not gc.isenabled()
    assert [batch.num_rows for batch in found] == [10]
    assert gc.isenabled()


def test_json_becomes_text_byte_for_byte_and_nothing_stays_nothing() -> None:
    (batch,) = arrow([entry(1, '"Zürich 1.50 😀"'.encode()), entry(2, None)], EVENTS)
    assert batch.schema.field("value").type == pa.string()
    assert batch.column("value").to_pylist() == ['"Zürich 1.50 😀"', None]
    (states,) = arrow([EntityState("thing", "acme:lamp", None, 3, 9, AT, AT, None)], STATES)
    assert (states.column("state").to_pylist(), states.column("policy").to_pylist()) == ([None], [None])


def test_timestamps_become_arrow_times_and_an_invalid_one_raises_an_error() -> None:
    (batch,) = arrow([entry(1)], EVENTS)
    assert batch.column("timestamp").to_pylist() == [datetime(2030, 1, 15, 7, 30, 0, 250_000, UTC)]
    with pytest.raises(StoreUnavailable, match=r"column timestamp: found: .*soon.*; the file is damaged"):
        list(arrow([entry(1)._replace(timestamp="soon")], EVENTS))


def test_a_range_is_the_same_events_whenever_it_is_read(data_folder: DataFolder) -> None:
    data_folder.write(25)
    before = events_of(data_folder, 6, 15)
    data_folder.write(25)
    assert before is not None
    assert before == events_of(data_folder, 6, 15)
    assert sorted(before.column("seq").to_pylist()) == list(range(6, 16))
    names = before.column("entity").to_pylist()
    assert len([name for name, _ in itertools.groupby(names)]) == len(set(names)), "those of an entity lie together"


def test_many_or_large_events_are_not_read_at_once(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    data_folder.write(25)
    assert events_of(data_folder, 1, 25, 24) is None
    monkeypatch.setattr("spark_store.pipeline.source._FEW_BYTES", 100)
    assert events_of(data_folder, 1, 25) is None


def event(entity: EntityId, revision: int, value: bytes | None) -> Change:
    action = "modified" if value is not None else "deleted"
    happened = Event(entity, revision, timestamp(revision), action, "/größe", value, '{"a":"ß"}'.encode())
    return Change((happened,), change(entity, revision).snapshots)


@pytest.mark.parametrize("read", [event_batches, event_batches_alone])
def test_events_of_any_entity_and_length_are_read_each_once_in_order(read: Callable[..., Any], tmp_path: Path) -> None:
    # Characters with a meaning in URIs have none in paths.
    data_folder = DataFolder(tmp_path / "a folder%20with?all #of it")
    values = [None, b'{"big":9007199254740993,"same":1.50}', '"😀\\u0000"'.encode(), None, b"null"]
    data_folder.append([event(ODD, revision, value) for revision, value in enumerate(values, 1)])
    data_folder.append([change(POLICY, 1), change(LAMP, 1)])
    rows: list[dict[str, Any]] = [row for batch in read(data_folder.lake.journal, 1, 7) for row in batch.to_pylist()]
    assert sorted(row["seq"] for row in rows) == list(range(1, 8))
    odd = [row for row in rows if row["entity"] == ODD.id]
    assert [row["revision"] for row in odd] == [1, 2, 3, 4, 5]
    assert [row["value"] and row["value"].encode() for row in odd] == values
    assert {row["headers"] for row in odd} == {'{"a":"ß"}'}


def test_both_readers_yield_the_same_rows(data_folder: DataFolder) -> None:
    data_folder.write(60)
    found = [
        pa.Table.from_batches(read(data_folder.lake.journal, 11, 50)) for read in (event_batches, event_batches_alone)
    ]
    assert found[0] == found[1]


def test_an_erased_and_recreated_entity_is_read_from_its_creation_on(data_folder: DataFolder) -> None:
    data_folder.append([event(ODD, 1, b"1"), event(ODD, 2, b"2"), change(LAMP, 1)])
    tamper(data_folder, "INSERT INTO holes SELECT seq FROM entries WHERE seq <= 2")
    tamper(data_folder, "DELETE FROM entries WHERE seq <= 2")
    data_folder.append([event(ODD, 3, b"3")])
    found = events_of(data_folder, 1, 4)
    assert found is not None
    assert sorted(found["seq"].to_pylist()) == [3, 4]


def test_a_hole_in_the_journal_stops_the_batch(data_folder: DataFolder) -> None:
    data_folder.write(5)
    with pytest.raises(LakeUnfit, match="every event from 1 to 9, found only 5"):
        events_of(data_folder, 1, 9)
    with pytest.raises(LakeUnfit, match="every event from 1 to 9, found only 5"):
        list(event_batches_alone(data_folder.lake.journal, 1, 9))

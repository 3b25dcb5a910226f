"""How the journal is cut into partitions and Arrow batches."""

from __future__ import annotations

import gc
import itertools
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from connectivity.maintenance.erasure import erase_offline
from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.reader import EntityState, JournalEntry
from spark_store.pipeline import arrow_reader
from spark_store.pipeline.source import (
    PARTITION_ROWS,
    EventRange,
    JournalEvents,
    JournalStates,
    _EventsReader,
    arrow,
    events_of,
    split_range,
    states_of,
)
from tests.support.journal_entries import change
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.twin_changes import tamper, trim


def ranges(first: int, last: int, parallelism: int) -> list[tuple[int, int]]:
    return [(it.first, it.last) for it in split_range(first, last, parallelism)]


def test_a_range_is_cut_without_hole_or_overlap() -> None:
    assert ranges(1, 0, 4) == []
    assert ranges(5, 5, 4) == [(5, 5)]
    assert ranges(1, PARTITION_ROWS * 2 - 1, 4) == [(1, PARTITION_ROWS * 2 - 1)]
    edges = ranges(11, 10 + PARTITION_ROWS * 7, 3)
    assert (edges[0][0], edges[-1][1], len(edges)) == (11, 10 + PARTITION_ROWS * 7, 3)
    assert all(later[0] == earlier[1] + 1 for earlier, later in itertools.pairwise(edges))


AT = "2030-01-15T07:30:00.250000Z"


def entry(seq: int, value: bytes | None = b"1") -> JournalEntry:
    return JournalEntry("thing", "acme:lamp", seq, seq, AT, "modified", "/", value, b"{}")


def test_arrow_batches_are_bounded_in_rows_and_in_bytes() -> None:
    assert [batch.num_rows for batch in arrow((entry(n) for n in range(25_000)), JournalEntry)] == [
        10_000,
        10_000,
        5_000,
    ]
    large = b'"' + b"x" * (5 << 20) + b'"'
    assert [batch.num_rows for batch in arrow((entry(n, large) for n in range(5)), JournalEntry)] == [2, 2, 1]
    assert list(arrow([], JournalEntry)) == []


def test_few_states_are_read_at_once_however_many_events_have_led_to_them(
    data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_folder.write(50, entities=7)
    read = states_of(data_folder.lake.journal, 1, 50, 7)
    assert read is not None
    assert sorted(read.column("seq").to_pylist()) == list(range(44, 51))
    later = states_of(data_folder.lake.journal, 49, 50, 7)
    assert later is not None
    assert sorted(later.column("seq").to_pylist()) == [49, 50]
    assert states_of(data_folder.lake.journal, 1, 50, 6) is None, "too many"
    monkeypatch.setattr("spark_store.pipeline.source._BATCH_BYTES", read.nbytes - 1)
    assert states_of(data_folder.lake.journal, 1, 50, 7) is None, "too many bytes"
    assert gc.isenabled()


def test_states_of_a_range_that_was_trimmed_meanwhile_are_refused(data_folder: DataFolder) -> None:
    """Which entities it touched nobody knows any more; all entities there are can still be told."""
    data_folder.write(50, entities=7)
    erase_offline(data_folder.folder, lamp(6), "anna")  # the event 21, among others
    trim(data_folder, 20)
    tamper(data_folder, "DELETE FROM holes WHERE seq <= 20")
    states = JournalStates(
        {"path": str(data_folder.lake.journal), "first": "21", "last": "50", "parallelism": "1"}
    ).reader(StructType())
    for first in (1, 21):
        assert states_of(data_folder.lake.journal, first, 50, 7) is not None
        [batch] = states.read(EventRange(first, 50))
        assert isinstance(batch, pa.RecordBatch)
        assert batch.num_rows == 6
    with pytest.raises(StoreUnavailable, match="events from number 20 on were trimmed"):
        states_of(data_folder.lake.journal, 20, 50, 7)
    with pytest.raises(StoreUnavailable, match="events from number 20 on"):
        list(states.read(EventRange(20, 50)))


def test_reading_leaves_the_collector_as_it_was() -> None:
    for _ in arrow((entry(n) for n in range(11_000)), JournalEntry):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_json_becomes_text_byte_for_byte_and_nothing_stays_nothing() -> None:
    (batch,) = arrow([entry(1, '"Zürich 1.50 😀"'.encode()), entry(2, None)], JournalEntry)
    assert batch.schema.field("value").type == pa.string()
    assert batch.column("value").to_pylist() == ['"Zürich 1.50 😀"', None]
    (states,) = arrow([EntityState("thing", "acme:lamp", None, 3, 9, AT, AT, None)], EntityState)
    assert (states.column("state").to_pylist(), states.column("policy").to_pylist()) == ([None], [None])


def test_timestamps_become_arrow_times_and_an_invalid_one_raises_an_error() -> None:
    (batch,) = arrow([entry(1)], JournalEntry)
    assert batch.column("timestamp").to_pylist() == [datetime(2030, 1, 15, 7, 30, 0, 250_000, UTC)]
    with pytest.raises(pa.ArrowInvalid, match="soon"):
        list(arrow([entry(1)._replace(timestamp="soon")], JournalEntry))


def test_short_and_long_events_have_the_same_columns() -> None:
    (batch,) = arrow([entry(1)], JournalEntry)
    assert batch.schema == arrow_reader.EVENTS


def reader(data_folder: DataFolder, first: int = 1, last: int = 1) -> _EventsReader:
    options = {"path": str(data_folder.lake.journal), "first": str(first), "last": str(last), "parallelism": "2"}
    made = JournalEvents(options).reader(StructType())
    assert isinstance(made, _EventsReader)
    return made


def test_a_range_is_the_same_events_whenever_it_is_read(data_folder: DataFolder) -> None:
    data_folder.write(25)
    (part,) = reader(data_folder, 6, 15).partitions()
    data_folder.write(25)
    (batch,) = reader(data_folder).read(part)
    few = events_of(data_folder.lake.journal, 6, 15, 10)
    assert few is not None
    assert few.sort_by("seq") == pa.Table.from_batches([batch]).sort_by("seq")
    assert sorted(batch.column("seq").to_pylist()) == list(range(6, 16))
    names = batch.column("entity").to_pylist()
    assert len([name for name, _ in itertools.groupby(names)]) == len(set(names)), "those of an entity lie together"


def test_many_or_large_events_are_not_read_at_once(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    data_folder.write(25)
    assert events_of(data_folder.lake.journal, 1, 25, 24) is None
    monkeypatch.setattr("spark_store.pipeline.source._BATCH_BYTES", 100)
    assert events_of(data_folder.lake.journal, 1, 25, 25) is None


def test_events_of_any_length_are_read_each_once(data_folder: DataFolder) -> None:
    data_folder.write(20)
    long = b'"' + b"x" * (arrow_reader.LONG + 1) + b'"'
    data_folder.append([change(lamp(50), revision, long if revision % 2 else b"1") for revision in range(1, 5)])
    batches = list(reader(data_folder).read(EventRange(1, 24)))
    assert sorted(seq for batch in batches for seq in batch.column("seq").to_pylist()) == list(range(1, 25))
    assert {batch.schema.names == arrow_reader.EVENTS.names for batch in batches} == {True}


def test_a_hole_in_the_journal_stops_the_batch(data_folder: DataFolder) -> None:
    data_folder.write(5)
    with pytest.raises(LakeUnfit, match="every event from 1 to 9, found only 5"):
        list(reader(data_folder).read(EventRange(1, 9)))
    with pytest.raises(LakeUnfit, match="every event from 1 to 9, found only 5"):
        events_of(data_folder.lake.journal, 1, 9, 10)

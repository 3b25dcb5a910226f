"""The journal's events as Arrow batches that SQLite fills directly."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.lake.arrow_rows import EVENTS
from spark_store.pipeline import arrow_reader
from spark_store.pipeline.arrow_reader import read_events
from spark_store.records import Change
from tests.support.journal_entries import change, timestamp
from tests.support.lake.pipeline_process import DataFolder, lamp

ODD = EntityId(EntityType.THING, "acme.site", "lämp-7")


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


def event(entity: EntityId, revision: int, value: bytes | None) -> Change:
    action = "modified" if value is not None else "deleted"
    happened = Event(entity, revision, timestamp(revision), action, "/größe", value, '{"a":"ß"}'.encode())
    return Change((happened,), change(entity, revision).snapshots)


def read(data_folder: DataFolder, first: int, last: int) -> pa.Table:
    return pa.Table.from_batches(read_events(data_folder.lake.journal, first, last, EVENTS), EVENTS)


@pytest.mark.parametrize("values", [[None, b"1"], [None, None], [b"1", None, b'"x"']])
def test_a_deletion_has_no_value_at_any_position(data_folder: DataFolder, values: list[bytes | None]) -> None:
    """The library guesses the type of a column from what it meets first."""
    data_folder.append([event(ODD, revision, value) for revision, value in enumerate(values, 1)])
    found = read(data_folder, 1, len(values))
    assert found["value"].to_pylist() == [None if value is None else value.decode() for value in values]
    assert found.schema == EVENTS


def test_batches_are_bounded_and_those_of_long_events_are_small(data_folder: DataFolder) -> None:
    journal = Journal.open(data_folder.lake.journal)
    try:
        journal.append([change(lamp(number), 1) for number in range(arrow_reader.BATCH_ROWS + 10)])
        longest, longer = (b'"' + b"x" * (arrow_reader.SHORT - 2 + more) + b'"' for more in (0, 1))
        journal.append([event(ODD, 1, longest), event(ODD, 2, b"1")])
        journal.append([Change((event(ODD, 3, b"1").events[0]._replace(headers=longer),), change(ODD, 3).snapshots)])
        journal.append([event(ODD, revision, longer) for revision in range(4, arrow_reader.LONG_BATCH_ROWS + 5)])
    finally:
        journal.close()
    last = arrow_reader.BATCH_ROWS + arrow_reader.LONG_BATCH_ROWS + 14
    batches = list(read_events(data_folder.lake.journal, 1, last, EVENTS))
    assert [batch.num_rows for batch in batches] == [
        arrow_reader.BATCH_ROWS,
        12,
        arrow_reader.LONG_BATCH_ROWS,
        2,
    ]
    assert batches[-2].column("revision").to_pylist() == list(range(3, arrow_reader.LONG_BATCH_ROWS + 3))


def test_a_damaged_page_is_reported_with_the_next_step(data_folder: DataFolder) -> None:
    data_folder.append([event(ODD, revision, b'"' + b"x" * 3000 + b'"') for revision in range(1, 200)])
    with sqlite3.connect(data_folder.lake.journal) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(data_folder.lake.journal.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 40 * 4096] = b"\xff" * 40 * 4096
    data_folder.lake.journal.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="damaged: stop the service, and restore the file"):
        read(data_folder, 1, 199)


def test_a_journal_that_is_gone_is_reported(data_folder: DataFolder) -> None:
    with pytest.raises(StoreUnavailable, match="found no journal"):
        list(read_events(data_folder.folder / "none.db", 1, 2, EVENTS))

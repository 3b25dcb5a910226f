"""The journal's events as Arrow batches that SQLite fills by itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalEntry, JournalReader
from spark_store.pipeline import arrow_reader
from spark_store.pipeline.arrow_reader import short_events
from spark_store.pipeline.source import arrow
from spark_store.records import Change
from tests.support.journal_entries import LAMP, POLICY, change, timestamp
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.twin_changes import tamper

ODD = EntityId(EntityType.THING, "acme.site", "lämp %?#/" + "é" * 100)


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    # What means something in an address means nothing in a path.
    return DataFolder(tmp_path / "a folder%20with?all #of it")


def event(entity: EntityId, revision: int, value: bytes | None) -> Change:
    action = "modified" if value is not None else "deleted"
    happened = Event(entity, revision, timestamp(revision), action, "/größe", value, '{"a":"ß"}'.encode())
    return Change((happened,), change(entity, revision).snapshots)


def read(data_folder: DataFolder, first: int, last: int) -> pa.Table:
    return pa.Table.from_batches(short_events(data_folder.lake.journal, first, last), arrow_reader.EVENTS)


def expected(data_folder: DataFolder, first: int, last: int) -> pa.Table:
    """The same by way of Python's SQLite."""
    with JournalReader.open(data_folder.lake.journal) as follower:
        return pa.Table.from_batches(arrow(follower.entries_by_entity(first, last), JournalEntry), arrow_reader.EVENTS)


def test_arrow_events_equal_the_events_python_reads_byte_for_byte(data_folder: DataFolder) -> None:
    data_folder.append([event(ODD, 1, b'{"big":9007199254740993,"same":1.50}'), event(ODD, 2, '"😀\\u0000"'.encode())])
    data_folder.append([event(ODD, 3, None), change(POLICY, 1), change(LAMP, 1), event(ODD, 4, b"null")])
    data_folder.write(60)
    found = read(data_folder, 1, 66)
    assert found.num_rows == 66
    assert found == expected(data_folder, 1, 66)
    assert read(data_folder, 3, 9) == expected(data_folder, 3, 9)
    assert read(data_folder, 67, 90).num_rows == 0


@pytest.mark.parametrize("values", [[None, b"1"], [None, None], [b"1", None, b'"x"']])
def test_a_deletion_has_no_value_wherever_it_is_valid(data_folder: DataFolder, values: list[bytes | None]) -> None:
    """The library guesses the type of a column from what it meets first."""
    data_folder.append([event(ODD, revision, value) for revision, value in enumerate(values, 1)])
    found = read(data_folder, 1, len(values))
    assert found["value"].to_pylist() == [None if value is None else value.decode() for value in values]
    assert found.schema == arrow_reader.EVENTS


def test_batches_are_bounded_and_long_events_are_left_to_others(data_folder: DataFolder) -> None:
    journal = Journal.open(data_folder.lake.journal)
    try:
        journal.append([change(lamp(number), 1) for number in range(arrow_reader.BATCH_ROWS + 10)])
        longest, longer = (b'"' + b"x" * (arrow_reader.LONG - 2 + more) + b'"' for more in (0, 1))
        journal.append([event(ODD, 1, longest), event(ODD, 2, longer), event(ODD, 3, b"1")])
        journal.append([Change((event(ODD, 4, b"1").events[0]._replace(headers=longer),), change(ODD, 4).snapshots)])
    finally:
        journal.close()
    last = arrow_reader.BATCH_ROWS + 14
    assert [batch.num_rows for batch in short_events(data_folder.lake.journal, 1, last)] == [
        arrow_reader.BATCH_ROWS,
        12,
    ]
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert [it.revision for it in follower.long_entries(1, last, arrow_reader.LONG)] == [2, 4]


def test_an_entity_that_was_erased_and_made_again_is_read_from_there_on(data_folder: DataFolder) -> None:
    data_folder.append([event(ODD, 1, b"1"), event(ODD, 2, b"2"), change(LAMP, 1)])
    tamper(data_folder, "DELETE FROM entries WHERE seq <= 2")
    data_folder.append([event(ODD, 3, b"3")])
    assert read(data_folder, 1, 4)["seq"].to_pylist() == expected(data_folder, 1, 4)["seq"].to_pylist()


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
        list(short_events(data_folder.folder / "none.db", 1, 2))

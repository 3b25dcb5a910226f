"""Reading the lake without Spark."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_store.errors import LakeUnfit, StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.tables import ERASURES, EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS, Lake
from spark_store.lake.watermark import Watermark, publish_watermark
from spark_store.pipeline.tables import LakeWriter, check_same_journal
from tests.support.journal_entries import LAMP, event, history
from tests.support.lake.tables import append_events


def write(place: Lake, first: int, last: int) -> None:
    numbers = pa.array(range(first, last + 1), pa.int64())
    properties = CommitProperties(app_transactions=[Transaction("journal", last)])
    write_deltalake(place.path(EVENTS), pa.table({"seq": numbers}), mode="append", commit_properties=properties)


def test_a_table_knows_its_last_transaction_its_rows_and_its_size(tmp_path: Path) -> None:
    place = Lake(tmp_path)
    write(place, 1, 5)
    write(place, 6, 9)
    assert (reader.last_transaction(place, EVENTS, "journal"), reader.last_transaction(place, EVENTS, "other")) == (
        9,
        0,
    )
    assert (reader.event(place, 7), reader.event(place, 10)) == ({"seq": 7}, None)
    assert reader.size(place, EVENTS).files == 2
    assert reader.size(place, EVENTS).bytes > 0


def test_versions_of_different_times_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if retention committed to two tables while their versions are read."""
    place, read = Lake(tmp_path), reader._newest_changes
    for table in (EVENTS, SNAPSHOTS, FULL_SNAPSHOTS):
        write_deltalake(place.path(table), pa.table({"n": [1]}))
    commits = iter([SNAPSHOTS, EVENTS])

    def while_a_writer_commits(delta: DeltaTable) -> dict[int, datetime]:
        found = read(delta)
        if (table := next(commits, None)) is not None:
            write_deltalake(place.path(table), pa.table({"n": [2]}), mode="append")
        return found

    monkeypatch.setattr(reader, "_newest_changes", while_a_writer_commits)
    found = reader.versions_before(place, datetime.now(UTC))
    assert found == (1, 1, 0, 0)


def test_versions_that_change_during_every_read_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a batch were appended whenever the versions are read."""
    place, versions = Lake(tmp_path), itertools.count()
    write_deltalake(place.path(FULL_SNAPSHOTS), pa.table({"n": [1]}))
    monkeypatch.setattr(reader, "_version", lambda *_: next(versions))
    monkeypatch.setattr(reader, "_newest_changes", lambda _: {})
    with pytest.raises(StoreUnavailable, match="changed each time they were read; retry"):
        reader.versions_before(place, datetime.now(UTC))


def test_the_times_of_events_are_read_from_the_log(tmp_path: Path) -> None:
    place = Lake(tmp_path)
    at = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
    for days in (1, 3, 2):
        times = pa.array([at, at + timedelta(days=days)], pa.timestamp("us", "UTC"))
        write_deltalake(place.path(EVENTS), pa.table({"ts": times}), mode="append")
    assert reader.event_times(place) == (at, at + timedelta(days=3))
    write_deltalake(place.path(EVENTS), pa.table({"n": [1]}), mode="overwrite", schema_mode="overwrite")
    assert reader.event_times(place) is None


def test_a_table_knows_when_it_was_made(tmp_path: Path) -> None:
    begun = datetime.now(UTC)
    write(Lake(tmp_path), 1, 5)
    made = reader.created_at(Lake(tmp_path), EVENTS)
    write(Lake(tmp_path), 6, 9)
    assert made is not None
    assert timedelta(seconds=-1) < made - begun < timedelta(minutes=1)
    assert reader.created_at(Lake(tmp_path), EVENTS) == made


def test_an_erasure_is_pending_while_one_table_has_not_carried_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake that was restored from a backup, before the pipeline has seen it."""
    place = Lake(tmp_path)
    Journal.open(place.journal).close()
    monkeypatch.setattr(JournalReader, "erasures", lambda _, after: list(range(after + 1, 6)))
    place.pipeline.mkdir(parents=True)
    publish_watermark(place.watermark, Watermark(7, erased=4))
    pending: Callable[[Lake], list[Any]] = reader.pending_erasures
    assert pending(place) == [5], "no table"
    for table, erased in ((EVENTS, 4), (LATEST, 3)):
        properties = CommitProperties(app_transactions=[Transaction(ERASURES, erased)])
        write_deltalake(place.path(table), pa.table({"seq": [1]}), commit_properties=properties)
    assert pending(place) == [4, 5]


def test_a_missing_table_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="expected a Delta table that can be read"):
        reader.last_transaction(Lake(tmp_path), EVENTS, "journal")


def test_an_empty_part_of_a_log_is_damage_not_a_version(tmp_path: Path) -> None:
    place = Lake(tmp_path)
    write(place, 1, 5)
    write(place, 6, 9)
    reader.check_log(place, EVENTS)
    (tmp_path / "lake" / "events" / "_delta_log" / f"{1:020}.json").write_bytes(b"")
    with pytest.raises(LakeUnfit, match=r"00001\.json: found an empty file, .*; stop the pipeline; restore"):
        reader.check_log(place, EVENTS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({}, None), ({"timestamp": "2030-01-15T00:00:05.250001Z"}, "do not match"), ({"value": b"17"}, "do not match")],
    ids=["the same", "time", "value"],
)
def test_an_event_of_another_past_is_recognized_by_its_time_or_value(
    changed: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    """The same entity, the same revision, the same number: as after an old journal was restored."""
    place = Lake(tmp_path)
    journal = Journal.open(place.journal)
    journal.append(history(LAMP, 5))
    journal.close()
    append_events(place, [(5, event(LAMP, 5)._replace(**changed))])
    with (
        JournalReader.open(place.journal) as follower,
        pytest.raises(LakeUnfit, match=message) if message else contextlib.nullcontext(),
    ):
        check_same_journal(LakeWriter(cast(Any, None), place), follower, 5)

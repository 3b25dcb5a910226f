"""The lag of the lake."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from spark_store.journal.reader import JournalReader
from spark_store.lake.status import read_status
from spark_store.lake.tables import EVENTS, LATEST
from spark_store.lake.watermark import (
    BatchProgress,
    Failure,
    LakeLag,
    Watermark,
    measure_lag,
    note_failure,
    publish_watermark,
)
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import write_lake
from tests.support.lake.twin_changes import trim

NOW = datetime(2030, 1, 15, 0, 1, 0, 250_000, tzinfo=UTC)


def test_the_lag_gives_the_event_count_and_the_age_of_the_oldest_event(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    data_folder.write(10, entities=1)
    with JournalReader.open(data_folder.lake.journal) as follower:
        # Event 5, of second 5, is the first one that is not in the lake.
        assert measure_lag(follower, 4, NOW) == LakeLag(6, 55.0)
        assert measure_lag(follower, 10, NOW) == LakeLag(0, 0.0)
        assert measure_lag(follower, 4, datetime(2000, 1, 1, tzinfo=UTC)) == LakeLag(6, 0.0), "a clock that jumped back"


def test_the_status_shows_the_last_batch(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    data_folder.write(10, entities=1)
    assert read_status(data_folder.lake, NOW)["lag_events"] == 10
    data_folder.lake.pipeline.mkdir(parents=True)
    publish_watermark(data_folder.lake.watermark, Watermark(10, batch=BatchProgress(10, 0.5)))
    found = read_status(data_folder.lake, NOW)
    assert (found["seq"], found["newest"], found["lag_events"], found["batch_rows_per_second"]) == (10, 10, 0, 20)
    assert (found["watermark_failure"], found["lake_failure"]) == (None, None)


def test_the_status_reports_events_missing_from_both_journal_and_lake(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    data_folder.write(10)
    trim(data_folder, 10)
    assert "restore the folder `lake` from a backup" in read_status(data_folder.lake, NOW)["lake_failure"]


def test_the_status_is_reported_though_a_table_and_the_watermark_cannot_be_read(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path)
    data_folder.write(10, entities=1)
    write_lake(data_folder.folder)
    note_failure(data_folder.lake.failure, Failure("2030-01-15T00:00:00Z", 5, "a log is damaged"))
    commit = sorted((Path(data_folder.lake.path(EVENTS)) / "_delta_log").glob("*.json"))[-1]
    whole = commit.read_text()
    commit.write_text(whole[: len(whole) // 2])
    log = Path(data_folder.lake.path(LATEST)) / "_delta_log"
    tomorrow = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_text(json.dumps(tomorrow))
    data_folder.lake.watermark.write_text("half of")
    found = read_status(data_folder.lake, NOW)
    assert str(data_folder.lake.path(EVENTS)) in found["tables"]["events"]["error"]
    assert str(data_folder.lake.path(LATEST)) in found["tables"]["latest"]["error"]
    assert "expected a watermark, found b'half of'" in found["watermark_failure"]
    assert (found["seq"], found["lag_events"], found["erasures_pending"]) == (0, 10, 0)
    assert found["failure"]["reason"] == "a log is damaged"

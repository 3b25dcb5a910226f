"""The lake's checker of the kill series finds every kind of fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_store.lake.tables import EVENTS, LATEST
from spark_store.lake.watermark import Watermark, publish_watermark
from tests.support.lake.checker import assert_whole, check
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import write_events, write_lake, write_latest

Rows = list[dict[str, Any]]


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    data_folder = DataFolder(tmp_path / "data")
    data_folder.write(20)
    return data_folder


def test_a_lake_that_is_the_journal_is_whole(data_folder: DataFolder) -> None:
    write_lake(data_folder.folder)
    assert check(data_folder.folder) == []
    assert check(data_folder.folder, after_kill=True) == []
    assert_whole(data_folder.folder)


def test_in_the_middle_of_a_batch_the_lake_is_the_journals_beginning(data_folder: DataFolder) -> None:
    assert check(data_folder.folder, after_kill=True) == [], "no table yet"
    write_lake(data_folder.folder, 14)
    data_folder.write(3)
    assert check(data_folder.folder, after_kill=True) == []
    assert "events: missing: number 15" in check(data_folder.folder)
    assert "watermark: expected 23, found 14" in check(data_folder.folder)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (lambda rows: [row for row in rows if row["seq"] != 20], "events: missing: number 20"),
        (lambda rows: [row for row in rows if row["seq"] != 9], "events: missing: number 9"),
        (lambda rows: [*rows, rows[4]], "events: there more than once: number 5"),
        (
            lambda rows: [{**row, "value": "7"} if row["seq"] == 3 else row for row in rows],
            "events: in the journal and",
        ),
    ],
    ids=["loss", "gap", "repeat", "change"],
)
@pytest.mark.parametrize("after_kill", [False, True])
def test_the_checker_finds_a_fault_in_the_events_table(
    plant: Callable[[Rows], Rows], expected: str, after_kill: bool, data_folder: DataFolder
) -> None:
    write_lake(data_folder.folder)
    write_events(data_folder.folder, plant(sorted(data_folder.table(EVENTS), key=lambda row: row["seq"])))
    found = check(data_folder.folder, after_kill=after_kill)
    if after_kill and expected.endswith("20"):
        expected = "watermark: found 20, expected at most the 19"
    assert any(line.startswith(expected) for line in found), found


def test_a_lake_with_a_missing_event_fails_with_the_checker_findings(data_folder: DataFolder) -> None:
    write_lake(data_folder.folder)
    write_events(data_folder.folder, [row for row in data_folder.table(EVENTS) if row["seq"] != 9])
    with pytest.raises(AssertionError, match="events: missing: number 9"):
        assert_whole(data_folder.folder, after_kill=True)


def test_the_checker_finds_a_fault_in_the_latest_table(data_folder: DataFolder) -> None:
    write_lake(data_folder.folder)
    rows = sorted(data_folder.table(LATEST), key=lambda row: row["entity"])
    write_latest(data_folder.folder, rows[1:])
    assert any("'acme.site:lamp-0'" in line for line in check(data_folder.folder))
    assert any("expected acme.site:lamp-0 at revision 3" in line for line in check(data_folder.folder, after_kill=True))
    write_latest(data_folder.folder, [*rows, rows[0]])
    assert check(data_folder.folder) != []
    assert "latest: an entity is there more than once" in check(data_folder.folder, after_kill=True)
    write_latest(data_folder.folder, [{**rows[0], "revision": 9}, *rows[1:]])
    assert "latest: acme.site:lamp-0 is newer than the journal" in check(data_folder.folder, after_kill=True)
    write_latest(data_folder.folder, [{**rows[0], "state": "{}"}, *rows[1:]])
    assert len(check(data_folder.folder)) == 2


def test_a_watermark_before_its_time_is_caught(data_folder: DataFolder) -> None:
    write_lake(data_folder.folder, 10)
    publish_watermark(data_folder.lake.watermark, Watermark(11))
    assert (
        check(data_folder.folder, after_kill=True)[0]
        == "watermark: found 11, expected at most the 10 events in the lake"
    )

"""The checker of the kill series catches what it is there for."""

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
def site(tmp_path: Path) -> DataFolder:
    site = DataFolder(tmp_path / "data")
    site.write(20)
    return site


def test_a_lake_that_is_the_journal_is_whole(site: DataFolder) -> None:
    write_lake(site.folder)
    assert check(site.folder) == []
    assert check(site.folder, amid=True) == []
    assert_whole(site.folder)


def test_in_the_middle_of_a_batch_the_lake_is_the_journals_beginning(site: DataFolder) -> None:
    assert check(site.folder, amid=True) == [], "no table yet"
    write_lake(site.folder, 14)
    site.write(3)
    assert check(site.folder, amid=True) == []
    assert "events: missing: number 15" in check(site.folder)
    assert "watermark: expected 23, found 14" in check(site.folder)


@pytest.mark.parametrize(
    ("plant", "said"),
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
@pytest.mark.parametrize("amid", [False, True])
def test_the_checker_finds_a_fault_in_the_events_table(
    plant: Callable[[Rows], Rows], said: str, amid: bool, site: DataFolder
) -> None:
    write_lake(site.folder)
    write_events(site.folder, plant(sorted(site.table(EVENTS), key=lambda row: row["seq"])))
    found = check(site.folder, amid=amid)
    if amid and said.endswith("20"):
        said = "watermark: found 20, expected at most the 19"
    assert any(line.startswith(said) for line in found), found


def test_a_lake_with_a_missing_event_fails_with_the_checker_findings(site: DataFolder) -> None:
    write_lake(site.folder)
    write_events(site.folder, [row for row in site.table(EVENTS) if row["seq"] != 9])
    with pytest.raises(AssertionError, match="events: missing: number 9"):
        assert_whole(site.folder, amid=True)


def test_the_checker_finds_a_fault_in_the_latest_table(site: DataFolder) -> None:
    write_lake(site.folder)
    rows = sorted(site.table(LATEST), key=lambda row: row["entity"])
    write_latest(site.folder, rows[1:])
    assert any("'acme.site:lamp-0'" in line for line in check(site.folder))
    assert any("expected acme.site:lamp-0 at revision 3" in line for line in check(site.folder, amid=True))
    write_latest(site.folder, [*rows, rows[0]])
    assert check(site.folder) != []
    assert "latest: an entity is there more than once" in check(site.folder, amid=True)
    write_latest(site.folder, [{**rows[0], "revision": 9}, *rows[1:]])
    assert "latest: acme.site:lamp-0 is newer than the journal" in check(site.folder, amid=True)
    write_latest(site.folder, [{**rows[0], "state": "{}"}, *rows[1:]])
    assert len(check(site.folder)) == 2


def test_a_watermark_before_its_time_is_caught(site: DataFolder) -> None:
    write_lake(site.folder, 10)
    publish_watermark(site.lake.watermark, Watermark(11))
    assert check(site.folder, amid=True)[0] == "watermark: found 11, expected at most the 10 events in the lake"

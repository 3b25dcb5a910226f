"""The pages for analysts are correct: columns and types of the tables, and examples run over a lake."""

from __future__ import annotations

import re
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS, Table
from spark_store.records import Change, Snapshot
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.pipeline_tables import write_lake
from tests.support.markdown import blocks
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "reference" / "lake.md").read_text(encoding="utf-8")
GUIDE = ROOT / "docs" / "how-to" / "read-lake.md"
EXAMPLES = [block.text for block in blocks(GUIDE) if block.language == "python"]

REVISIONS = 4
DELETED = lamp(0)


def columns(table: Table) -> dict[str, tuple[str, str]]:
    """Type and meaning of each column, as the page has them: a row may tell several columns of one type."""
    _, _, section = TEXT.partition(f"The table `{table.name}` is clustered by")
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \| (.+?) \|$", section.partition("\n\nThe table `")[0], re.MULTILINE)
    return {name: (kind, meaning) for names, kind, meaning in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("table", [EVENTS, LATEST], ids=lambda table: str(table.name))
def test_the_page_reports_the_columns_of_a_table_as_they_are(table: Table) -> None:
    documented = columns(table)
    assert {name: kind for name, (kind, _) in documented.items()} == {it.name: it.type for it in table.columns}
    for column in table.columns:
        _, meaning = documented[column.name]
        assert meaning in (column.meaning, "as in `events`")


def test_snapshots_have_the_columns_of_latest() -> None:
    assert SNAPSHOTS.columns == LATEST.columns
    assert "The table `snapshots` is clustered by entity and revision, and has the columns of `latest`." in TEXT


def test_moments_have_one_column_more() -> None:
    moment, *others = FULL_SNAPSHOTS.columns
    assert tuple(others) == LATEST.columns
    text = " ".join(TEXT.split())
    assert "The table `full_snapshots` is partitioned by `as_of`, and has rows for things only." in text
    assert "Its first column is `as_of`; the others are the columns of `latest`:" in text
    assert f"| `{moment.name}` | {moment.type} | {moment.meaning} |" in TEXT


def change(entity: EntityId, revision: int, *, is_last: bool) -> Change:
    """Return an hourly change of one attribute; the last change of one entity is its deletion."""
    at = f"2030-01-15T{7 + revision:02}:30:00.000000Z"
    if is_last and entity == DELETED:
        return Change(
            (Event(entity, revision, at, "deleted", "/", None, b"{}"),),
            (Snapshot(entity, revision, at, at, None, None),),
        )
    event = Event(entity, revision, at, "modified", "/attributes", b'{"n":%d}' % revision, b"{}")
    return Change((event,), (Snapshot(entity, revision, at, at, {"attributes": {"n": revision}}, None),))


def fill(data_folder: DataFolder) -> None:
    """Write three things with four events each."""
    changes = [
        change(lamp(number), revision, is_last=revision == REVISIONS)
        for revision in range(1, REVISIONS + 1)
        for number in range(3)
    ]
    data_folder.append(changes)
    write_lake(data_folder.folder)


@pytest.mark.spark
def test_every_example_on_the_page_returns_the_documented_result(
    spark: SparkSession, data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data_folder)
    monkeypatch.chdir(data_folder.folder.parent)
    # Spark's Java process keeps its working directory, so it gets the absolute path.
    there = f"delta.`{data_folder.lake.folder}"
    found: dict[str, Any] = {}
    for example in EXAMPLES:
        text = example.replace('.load("data/lake', f'.load("{data_folder.lake.folder}').replace(
            "delta.`data/lake", there
        )
        exec(compile(text, str(GUIDE), "exec"), found)
    history = found["history"]
    assert list(history["revision"]) == [1, 2, 3, 4]
    assert list(history["value"]) == [{"n": n} for n in range(1, 5)]
    assert [row["count"] for row in found["changes_by_hour"]] == [3, 3, 3, 3]
    assert {row["entity"]: row["value"] for row in found["newest_of_each"]} == {
        "acme.site:lamp-0": '{"n":3}',
        "acme.site:lamp-1": '{"n":4}',
        "acme.site:lamp-2": '{"n":4}',
    }
    assert found["changes"].select("entity", "changes").rows() == [
        (f"acme.site:lamp-{number}", 4) for number in range(3)
    ]
    assert sorted(found["as_it_was"]["seq"]) == [1, 2, 3, 4, 5, 6]
    assert [(row["revision"], row["value"]) for row in found["before_ten"].to_dicts()] == [(2, '{"n":2}')] * 3
    assert (found["version"], found["rows"]) == (DeltaTable(str(data_folder.lake.folder / "events")).version(), 12)

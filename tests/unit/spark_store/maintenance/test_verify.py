"""Lake and journal compared without Spark: differences are reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from spark_store.errors import LakeUnfit
from spark_store.lake import rows as lake_rows
from spark_store.lake.clock import ClockReading, Uptime
from spark_store.lake.rows import TableRows
from spark_store.lake.tables import EVENTS, LATEST, SNAPSHOTS
from spark_store.lake.watermark import RetentionRun, Watermark, publish_watermark, read_watermark
from spark_store.maintenance.rebuild import rebuild_index
from spark_store.maintenance.verify import RANGE, SHOWN, VerifyReport, boundary, verify
from tests.support.lake.pipeline_process import DataFolder, counted, lamp
from tests.support.lake.pipeline_tables import add_states, write_events, write_lake, write_latest
from tests.support.lake.twin_changes import tamper, trim, write_eventful_past
from tests.support.table import each_row

Rows = list[dict[str, Any]]


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    write_lake(data_folder.folder)
    return data_folder


def differences(data_folder: DataFolder, range: int = RANGE) -> list[str]:
    return [str(it) for it in verify(data_folder.lake, range=range).differences]


def events(data_folder: DataFolder) -> Rows:
    return sorted(data_folder.table(EVENTS), key=lambda row: row["seq"])


def latest(data_folder: DataFolder) -> dict[str, dict[str, Any]]:
    return {row["entity"]: row for row in data_folder.table(LATEST)}


@pytest.mark.parametrize("range", [RANGE, 7])
def test_a_lake_that_is_the_journal_has_no_difference(range: int, data_folder: DataFolder) -> None:
    found = verify(data_folder.lake, range=range)
    assert (found.first, found.last, found.compared, found.total, found.entities) == (1, 48, 10, 10, 10)
    assert (found.count, found.differences) == (0, [])


def test_nothing_is_compared_where_nothing_is(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    data_folder.write(3)
    assert verify(data_folder.lake) == VerifyReport(1, 0, indexed=3, waiting=3)


def test_verify_fails_when_the_lake_with_the_trimmed_events_is_missing(data_folder: DataFolder) -> None:
    trim(data_folder, read_watermark(data_folder.lake.watermark).seq)
    shutil.rmtree(data_folder.lake.folder)
    with pytest.raises(LakeUnfit, match="restore the folder `lake` from a backup"):
        verify(data_folder.lake)


def test_events_in_transit_to_the_lake_are_not_a_difference(tmp_path: Path) -> None:
    other = DataFolder(tmp_path / "data")
    write_eventful_past(other)
    write_lake(other.folder, 20)
    assert differences(other) == []
    # Merged, and not yet published; appended, and not yet merged.
    publish_watermark(other.lake.watermark, Watermark(12))
    assert differences(other) == []
    # Only the newest events are still in the journal.
    publish_watermark(other.lake.watermark, Watermark(20))
    trim(other, 15)
    found = verify(other.lake)
    assert (found.first, found.last, found.count) == (16, 20, 0)
    trim(other, 20)
    assert verify(other.lake).count == 0


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (lambda rows: rows[:-1], "events: missing in the lake: acme.site:hall/tank/0 at revision 3, event 48"),
        (lambda rows: rows[:8] + rows[9:], "events: missing in the lake: acme.site:lamp-1 at revision 3, event 9"),
        (lambda rows: [*rows, rows[4]], "events: there more than once: acme.site:lamp-0 at revision 4, event 5"),
        (
            lambda rows: [*rows[:2], {**rows[2], "value": "9007199254740992", "path": "/x"}, *rows[3:]],
            "events: path, value different from the journal: acme.site:lamp-0 at revision 2, event 3",
        ),
        (
            lambda rows: [{**rows[0], "headers": '{"a":1}'}, *rows[1:]],
            "events: headers different from the journal: acme.site:owner at revision 1, event 1",
        ),
    ],
    ids=["loss", "gap", "repeat", "change", "headers"],
)
@pytest.mark.parametrize("range", [1000, 3])
def test_a_fault_in_the_events_table_is_reported_with_its_sequence_number(
    plant: Callable[[Rows], Rows], expected: str, range: int, data_folder: DataFolder
) -> None:
    write_events(data_folder.folder, plant(events(data_folder)))
    assert differences(data_folder, range) == [expected]
    expired = verify(data_folder.lake, lambda _entry, _newest: True).differences
    assert [str(it) for it in expired] == ([] if "missing" in expected else [expected])


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({5}, ["events: missing in the lake: acme.site:lamp-0 at revision 4"]),
        ({2, 3}, ["events: 2 missing in the lake: acme.site:lamp-0 at revision 1"]),
        ({2, 5}, [f"events: missing in the lake: acme.site:lamp-0 at revision {revision}" for revision in (1, 4)]),
        ({26}, ["events: missing in the lake: acme.site:lamp-4 at revision 5"]),
        (set(range(12, 17)), ["events: 5 missing in the lake: acme.site:lamp-2 at revision 1"]),
        ({40, 41}, [f"events: missing in the lake: acme.site:lamp-7 at revision {revision}, event {revision + 36}"
                    for revision in (4, 5)]),
    ],
    ids=["one", "a beginning", "two", "an end", "everything", "what the journal has"],
)  # fmt: skip
def test_missing_trimmed_events_are_reported(lost: set[int], expected: list[str], data_folder: DataFolder) -> None:
    trim(data_folder, 30)
    assert differences(data_folder) == []
    write_events(data_folder.folder, [row for row in events(data_folder) if row["seq"] not in lost])
    assert differences(data_folder) == expected


def test_only_events_after_an_erasure_are_reported_as_missing(data_folder: DataFolder) -> None:
    trim(data_folder, 30)
    write_events(
        data_folder.folder,
        [row for row in events(data_folder) if row["entity"] != "acme.site:lamp-3" or row["revision"] > 2],
    )
    assert differences(data_folder) == ["events: 2 missing in the lake: acme.site:lamp-3 at revision 1"]
    tamper(data_folder, "UPDATE entities SET erased = 2 WHERE id = 'acme.site:lamp-3'")
    assert differences(data_folder) == []
    tamper(data_folder, "UPDATE entities SET erased = 1 WHERE id = 'acme.site:lamp-3'")
    assert differences(data_folder) == ["events: missing in the lake: acme.site:lamp-3 at revision 2"]


def test_events_that_retention_deleted_by_an_earlier_rule_are_not_missing(data_folder: DataFolder) -> None:
    rows = events(data_folder)
    (known,) = [row for row in latest(data_folder).values() if row["entity"] == "acme.site:lamp-0"]
    kept = [row for row in rows if row["entity"] != known["entity"]]
    write_events(data_folder.folder, kept)
    add_states(data_folder.folder, SNAPSHOTS, [known])
    missing = [f"events: missing in the lake: acme.site:lamp-0 at revision {revision}" for revision in range(1, 7)]
    assert [it.partition(", event")[0] for it in differences(data_folder)] == missing
    now = datetime(2030, 2, 1, tzinfo=UTC)
    run = RetentionRun(ClockReading(now, now, Uptime("", 0.0), 0.0), 6)
    publish_watermark(data_folder.lake.watermark, Watermark(48, retention=run))
    assert differences(data_folder) == []
    # An event that is older than a remaining one was deleted by something else.
    write_events(data_folder.folder, [*kept, *(it for it in rows if it["seq"] in (2, 3))])
    assert [it.partition(", event")[0] for it in differences(data_folder)] == missing[2:]


ERASE = "INSERT INTO erasures (type, entity, seq, requested_at, requested_by) VALUES"


def erase_and_create_again(data_folder: DataFolder) -> None:
    """Erase a thing up to revision 5 and create it again; the lake has the erasure only."""
    tamper(data_folder, f"{ERASE} ('thing', 'acme.site:lamp-3', 48, '', '')")
    tamper(data_folder, "DELETE FROM entries WHERE entity = (SELECT key FROM entities WHERE id = 'acme.site:lamp-3')")
    tamper(data_folder, "UPDATE entities SET erased = 5 WHERE id = 'acme.site:lamp-3'")
    data_folder.append([counted(lamp(3), 6)])
    publish_watermark(data_folder.lake.watermark, Watermark(48, erased=1))


def test_an_entity_created_again_above_the_watermark_is_not_missing_in_latest(data_folder: DataFolder) -> None:
    rows = latest(data_folder)
    row = rows.pop("acme.site:lamp-3")
    write_events(data_folder.folder, [it for it in events(data_folder) if it["entity"] != "acme.site:lamp-3"])
    erase_and_create_again(data_folder)
    write_latest(data_folder.folder, rows.values())
    assert differences(data_folder) == []
    write_latest(data_folder.folder, [*rows.values(), {**row, "revision": 3, "seq": 19}])
    assert differences(data_folder) == ["latest: erased, and still there: acme.site:lamp-3 at revision 3, event 19"]
    publish_watermark(data_folder.lake.watermark, Watermark(48))
    assert differences(data_folder) == [], "the pipeline has still to do it"
    publish_watermark(data_folder.lake.watermark, Watermark(49))
    write_latest(data_folder.folder, rows.values())
    assert "latest: missing in the lake: acme.site:lamp-3 at revision 6" in differences(data_folder)


@each_row(
    ("erased", "first", "is_expired", "snapshots", "expected"),
    [
        (0, 1, False, [], 0),
        (0, 5, False, [], 0),
        (3, 5, False, [2], 3),
        (0, 5, False, [4, 100], 4),
        (0, 6, False, [4, 100], 4),
        (0, None, False, [9], 9),
        (0, 2, False, [100], 0),
        (0, 2, True, [100], 1),
        (0, None, False, [], 0),
    ],
)
def test_events_may_be_missing_up_to_the_retention_or_erasure_boundary(
    erased: int, first: int | None, is_expired: bool, snapshots: list[int], expected: int
) -> None:
    assert boundary(erased, first, is_expired, snapshots) == expected


def test_an_event_that_the_journal_lost_is_reported(data_folder: DataFolder) -> None:
    tamper(data_folder, "DELETE FROM entries WHERE seq = 7")
    assert differences(data_folder) == ["events: not in the journal: acme.site:lamp-1 at revision 1, event 7"]


def test_events_trimmed_during_a_verify_are_not_reported_as_missing(data_folder: DataFolder) -> None:
    found = verify(data_folder.lake, say=lambda _: trim(data_folder, 25), range=3)
    assert (found.first, found.compared, found.count) == (1, 10, 0)


def test_a_fault_in_the_latest_table_is_reported(data_folder: DataFolder) -> None:
    rows = latest(data_folder)
    row = rows["acme.site:lamp-3"]

    def differences_of(*planted: dict[str, Any]) -> list[str]:
        write_latest(data_folder.folder, planted)
        return differences(data_folder)

    others = [it for name, it in rows.items() if name != "acme.site:lamp-3"]
    assert differences_of(*others) == ["latest: missing in the lake: acme.site:lamp-3 at revision 5"]
    assert differences_of(*others, row, row) == ["latest: there more than once: acme.site:lamp-3 at revision 5"]
    older = {**row, "revision": 4}
    assert differences_of(*others, older)[0] == "latest: older than the entity's events: acme.site:lamp-3 at revision 4"
    assert differences_of(*others, {**row, "revision": 6}) == [
        "latest: unknown to the journal: acme.site:lamp-3 at revision 6"
    ]
    wrong = {**row, "state": "{}", "policy_id": None}
    assert differences_of(*others, wrong) == [
        "latest: policy, state different from the journal: acme.site:lamp-3 at revision 5",
        "latest: policy, state different from a replay of the events: acme.site:lamp-3 at revision 5",
    ]
    # The same value in other words.
    assert differences_of(*others, {**row, "state": f" {row['state']}"}) == []


def test_verify_reports_a_wrong_search_index_but_not_an_unfinished_one(
    data_folder: DataFolder,
) -> None:
    tamper(data_folder, "DELETE FROM search_values WHERE value = 'acme.site:other'")
    found = verify(data_folder.lake)
    assert [str(it) for it in found.differences] == [
        "search index: rows different from the state: acme.site:lamp-1 at revision 7",
    ]
    assert (found.count, found.indexed, found.unindexed) == (1, 9, 0)
    tamper(data_folder, "UPDATE search_progress SET indexed = 1, is_stale = 1")
    assert (verify(data_folder.lake).count, verify(data_folder.lake).unindexed) == (0, 10)


def test_a_state_that_is_wrong_in_journal_and_lake_is_found_by_the_events(data_folder: DataFolder) -> None:
    tamper(data_folder, "UPDATE entities SET state = '{}' WHERE id = 'acme.site:lamp-5'")
    write_latest(
        data_folder.folder,
        [{**row, "state": "{}"} if name.endswith("5") else row for name, row in latest(data_folder).items()],
    )
    rebuild_index(data_folder.lake)
    assert differences(data_folder) == [
        "latest: state different from a replay of the events: acme.site:lamp-5 at revision 5"
    ]


@pytest.mark.parametrize("value", ["7b", "22ff22"], ids=["no JSON", "no UTF-8"])
def test_a_damaged_event_is_reported(value: str, tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    write_lake(data_folder.folder)
    tamper(data_folder, f"UPDATE entries SET value = x'{value}' WHERE seq = ?", 3)
    (found,) = verify(data_folder.lake).differences
    assert (found.table, found.what, found.seq) == ("events", "value different from the journal", 3)


def test_an_event_that_is_damaged_in_journal_and_lake_is_reported(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    write_eventful_past(data_folder)
    tamper(data_folder, "UPDATE entries SET value = x'7b' WHERE seq = ?", 3)
    write_lake(data_folder.folder)
    (found,) = verify(data_folder.lake).differences
    assert (found.table, found.what, found.seq) == ("events", "value that is no JSON", 3)


def test_differences_are_counted_and_some_are_reported(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    data_folder.write(3 * SHOWN)
    write_lake(data_folder.folder)
    write_events(data_folder.folder, events(data_folder)[:10])
    found = verify(data_folder.lake, range=20)
    assert (found.count, len(found.differences)) == (3 * SHOWN - 10, SHOWN)


def test_the_size_of_a_part_does_not_change_the_report(data_folder: DataFolder) -> None:
    tamper(data_folder, "UPDATE entities SET state = '{}' WHERE id = 'acme.site:lamp-5'")
    rebuild_index(data_folder.lake)
    write_latest(
        data_folder.folder,
        [{**row, "state": "{}"} if name.endswith("5") else row for name, row in latest(data_folder).items()],
    )
    trim(data_folder, 48)
    write_events(
        data_folder.folder,
        [row for row in events(data_folder) if row["entity"] != "acme.site:lamp-3" or row["revision"] > 2],
    )
    expected = [
        "events: 2 missing in the lake: acme.site:lamp-3 at revision 1",
        "latest: state different from a replay of the events: acme.site:lamp-5 at revision 5",
    ]
    entities = set()
    for range in (1, 3, 10, 1_000):
        found = verify(data_folder.lake, range=range)
        assert [str(it) for it in found.differences] == expected
        entities.add(found.entities)
    assert entities == {10}


def test_the_memory_limit_does_not_change_the_report(data_folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_events(data_folder.folder, [row for row in events(data_folder) if row["seq"] not in (9, 10)])
    write_latest(
        data_folder.folder,
        [{**row, "state": "{}"} if name.endswith("5") else row for name, row in latest(data_folder).items()],
    )
    expected = verify(data_folder.lake)
    assert expected.count == 4
    held: list[int] = []
    in_parts = TableRows.in_parts

    def measured(*of: Any) -> Iterator[pa.Table]:
        for table in in_parts(*of):
            held.append(table.nbytes)
            yield table

    monkeypatch.setattr(TableRows, "in_parts", measured)
    for bytes in (600, 2_000):
        held.clear()
        monkeypatch.setattr(lake_rows, "MOST_BYTES", bytes)
        assert verify(data_folder.lake) == expected
        assert max(held) <= bytes


def test_events_that_only_the_lake_has_are_reported(data_folder: DataFolder) -> None:
    """Trimmed after the comparison began, or erased and not yet by the lake."""
    tamper(data_folder, "DELETE FROM entries WHERE seq BETWEEN 11 AND 40")
    found = verify(data_folder.lake, range=2)
    assert (found.compared, found.count) == (10, 30)


def test_entities_that_only_the_lake_has_are_reported_in_the_part_where_they_belong(data_folder: DataFolder) -> None:
    row = latest(data_folder)["acme.site:lamp-3"]
    others = [{**row, "entity": name} for name in ("aaa:first", "acme.site:lamp-3a", "zzz:last")]
    write_latest(data_folder.folder, [*latest(data_folder).values(), *others])
    for range in (1, 3, 1_000):
        found = differences(data_folder, range)
        assert [it for it in found if "latest" in it] == [
            f"latest: unknown to the journal: {it['entity']} at revision 5" for it in others
        ]


def test_the_lake_lacks_no_events_of_an_entity_that_the_journal_has_lost(
    data_folder: DataFolder,
) -> None:
    trim(data_folder, 30)
    tamper(data_folder, "DELETE FROM entries WHERE entity = (SELECT key FROM entities WHERE id = 'acme.site:lamp-5')")
    tamper(data_folder, "DELETE FROM entities WHERE id = 'acme.site:lamp-5'")
    assert [it for it in differences(data_folder) if not it.startswith("search index")] == [
        "latest: unknown to the journal: acme.site:lamp-5 at revision 5"
    ]


def test_idle_entities_are_taken_in_bounded_parts(tmp_path: Path) -> None:
    """The lake has states of them, and hardly any events."""
    data_folder = DataFolder(tmp_path / "data")
    data_folder.write(60, 60)
    write_lake(data_folder.folder)
    trim(data_folder, 60)
    write_events(data_folder.folder, events(data_folder)[:2])
    parts: list[int] = []
    found = verify(data_folder.lake, lambda *_: True, lambda it: parts.append(it.entities), range=7)
    assert len(parts) == 9, "parts of seven"
    assert found.entities == 2


def test_a_damaged_file_of_the_lake_is_reported(data_folder: DataFolder) -> None:
    for file in Path(data_folder.lake.path(EVENTS)).glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(LakeUnfit, match=r"events/.*parquet: expected \d+ bytes, found 100; .*restore"):
        verify(data_folder.lake)


def test_erasures_that_the_lake_has_not_done_are_counted(data_folder: DataFolder) -> None:
    assert verify(data_folder.lake).pending == 0
    tamper(data_folder, f"{ERASE} ('thing', 'acme.site:gone', 0, 'now', 'me')")
    assert verify(data_folder.lake).pending == 1
    publish_watermark(data_folder.lake.watermark, structs.replace(read_watermark(data_folder.lake.watermark), erased=1))
    assert verify(data_folder.lake).pending == 0

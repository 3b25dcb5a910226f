"""Exports without Spark: splitting into parts, joining lake and journal, refusals."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction

from mappings.ids import EntityId, EntityType
from spark_store import rql
from spark_store.errors import (
    LimitExceeded,
    OutputUnusable,
    QueryCancelled,
    QueryTimeout,
    StoreUnavailable,
)
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake.rows import RowKey
from spark_store.lake.tables import APP, EVENTS, Lake
from spark_store.lake.watermark import Watermark, publish_watermark
from spark_store.queries import export as module
from spark_store.queries.export import SCHEMA, export_events, filter_rows, merge_ordered, newest
from spark_store.queries.selection import EventSelection
from spark_store.queries.spark_query import Cancellation, QueryLimits
from tests.support.dice import dice
from tests.support.journal_entries import LAMP, change, history
from tests.support.lake.pipeline_tables import note_erased

OTHER = EntityId(EntityType.THING, "acme.site", "lamp-6")
POLICY = EntityId(EntityType.POLICY, "acme.site", "lamp-7")


def events(*keys: tuple[str, str, int]) -> pa.Table:
    rows = [dict.fromkeys(SCHEMA.names) | dict(zip(RowKey._fields, key, strict=True)) for key in keys]
    return pa.Table.from_pylist(rows, SCHEMA)


def keys(tables: Iterator[pa.Table]) -> list[tuple[str, str, int]]:
    return [tuple(row[name] for name in RowKey._fields) for table in tables for row in table.to_pylist()]


def exported_to(out: Path, lake: Lake, selection: EventSelection | None = None, **options: Any) -> dict[str, Any]:
    given = {"limits": QueryLimits(), "cancellation": Cancellation(), **options}
    return export_events(lake, selection or EventSelection(), out, **given)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with the first 4 of 9 events of three entities, whose pipeline is behind."""
    lake = Lake(tmp_path)
    lake.pipeline.mkdir(parents=True)
    journal = Journal.open(lake.journal)
    journal.append([*history(LAMP, 2), *history(OTHER, 3), *history(POLICY, 1), *history(LAMP, 5, first=3)])
    journal.close()
    _, rows = newest(lake, EventSelection())
    assert rows is not None
    rows = rows.filter(pa.compute.field("seq") <= 4)
    transaction = CommitProperties(app_transactions=[Transaction(APP, 4)])
    deltalake.write_deltalake(lake.path(EVENTS), rows, commit_properties=transaction)
    publish_watermark(lake.watermark, Watermark(4))
    return lake


def test_lake_and_journal_are_joined_in_order_for_any_boundary() -> None:
    random_source = dice("export")
    for _ in range(200):
        everything = sorted(
            (f"e{entity}", kind, revision)
            for entity in range(4)
            for kind in ("policy", "thing")
            for revision in range(1, random_source.randint(1, 6))
        )
        border = {(entity, kind): random_source.randint(0, 6) for entity, kind, _ in everything}
        old = [key for key in everything if key[2] <= border[key[:2]]]
        new = [key for key in everything if key[2] > border[key[:2]]]
        places = sorted(random_source.sample(range(len(old) + 1), min(3, len(old))))
        parts = [old[low:high] for low, high in zip([0, *places], [*places, len(old)], strict=True)]
        tables = (events(*part) for part in parts if part)
        assert keys(merge_ordered(tables, events(*new) if new else None)) == everything


def test_the_journal_provides_the_events_that_the_lake_lacks(lake: Lake) -> None:
    version, rows = newest(lake, EventSelection())
    assert version == 0
    assert keys(iter([rows])) == [
        ("acme.site:lamp-6", "thing", 3),
        ("acme.site:lamp-7", "policy", 1),
        *(("acme.site:lamp-7", "thing", revision) for revision in (3, 4, 5)),
    ]
    assert rows is not None
    assert rows.column("value").to_pylist() == ["2", "0", "2", "3", "4"]
    assert newest(lake, EventSelection(entity="acme.site:lamp-1"))[1] is None


def test_a_journal_that_was_trimmed_meanwhile_is_read_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # The pipeline continues while the journal is read, so the next check finds a later position.
    monkeypatch.setattr(JournalReader, "oldest", lambda _: 9)
    monkeypatch.setattr(module, "read_watermark", lambda _: Watermark(8))
    positions = iter([(0, 4), (1, 6), (2, 8)])
    monkeypatch.setattr("spark_store.queries.export.lakes.position", lambda _: next(positions))
    version, rows = newest(lake, EventSelection())
    assert rows is not None
    assert (version, rows.num_rows) == (2, 1)
    monkeypatch.setattr("spark_store.queries.export.lakes.position", lambda _: (0, 4))
    with pytest.raises(StoreUnavailable, match="trimmed repeatedly"):
        newest(lake, EventSelection())


def test_too_many_waiting_events_are_not_kept_in_memory(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 4)
    with pytest.raises(StoreUnavailable, match="wait until the lake has caught up"):
        newest(lake, EventSelection())


@pytest.mark.parametrize("damage", ["value = x'22ff22'", "timestamp = 'yesterday'"])
def test_a_damaged_event_of_the_journal_is_reported_and_nothing_written(
    damage: str, lake: Lake, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(lake.journal, isolation_level=None)) as journal:
        journal.execute(f"UPDATE entries SET {damage} WHERE seq = 5")
    with pytest.raises(StoreUnavailable, match=r"found: .*; the file is damaged: stop the service, and restore"):
        exported_to(tmp_path / "it.parquet", lake)
    assert list(tmp_path.glob("*it*")) == []


def test_too_many_bytes_of_waiting_events_are_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING_BYTES", 100)
    with pytest.raises(StoreUnavailable, match="wait until the lake has caught up"):
        newest(lake, EventSelection())


def test_of_waiting_events_only_those_that_the_filter_takes_are_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 1)
    _, rows = newest(lake, EventSelection(predicate=rql.parse('eq(thingId,"acme.site:lamp-6")')))
    assert keys(iter([rows])) == [("acme.site:lamp-6", "thing", 3)]


def test_an_export_checks_for_cancellation_after_each_journal_slice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_store.lake.arrow_rows.BATCH_ROWS", 1)
    looked: list[None] = []
    newest(lake, EventSelection(entity="acme.site:lamp-1"), (), lambda: looked.append(None))
    assert len(looked) == 5


def test_cancellation_is_checked_after_each_filtered_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE_ROWS", 2)
    monkeypatch.setattr(module, "matches", lambda _, row: row[1] > 3)
    looked: list[None] = []
    table = events(*(("acme.site:lamp-7", "thing", revision) for revision in range(1, 6)))
    selection = EventSelection(predicate=rql.parse("exists(thingId)"))
    found = filter_rows([table], selection, lambda: looked.append(None))
    assert [revision for *_, revision in keys(found)] == [4, 5]
    assert len(looked) == 1 + 3


def test_an_export_is_complete_and_in_order(lake: Lake, tmp_path: Path) -> None:
    shown: list[int] = []
    out = tmp_path / "it.parquet"
    written = exported_to(out, lake, progress=shown.append)
    assert (written["rows"], written["first_revision"], written["last_revision"]) == (9, 1, 5)
    assert written["bytes"] == out.stat().st_size
    table = pq.read_table(out)
    assert table.schema.remove_metadata() == SCHEMA
    found = keys(iter([table]))
    assert found == sorted(set(found))
    assert len(found) == 9
    assert shown[-1] == 9


def test_a_lake_that_cannot_be_read_is_not_a_problem_of_the_output(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator without permission for the data folder would look for the cause at the wrong place."""
    log, is_dir = f"{lake.path(EVENTS)}/_delta_log", Path.is_dir

    def refuse(path: Path) -> bool:
        if str(path) == log:
            raise PermissionError(errno.EACCES, "Permission denied", log)
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    (tmp_path / "exports").mkdir()
    for out in (tmp_path / "exports" / "it.parquet", lake.folder.parent / "it.parquet"):
        with pytest.raises(StoreUnavailable) as refused:
            exported_to(out, lake)
        assert str(refused.value) == f"{log}: cannot be read: Permission denied"
        assert not list(out.parent.glob("*it.parquet*"))


def test_an_export_has_its_limits(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(LimitExceeded, match="found at least 9 events, expected at most 8"):
        exported_to(tmp_path / "it.parquet", lake, limits=QueryLimits(60, 8))
    assert not (tmp_path / "it.parquet").exists()
    with pytest.raises(OutputUnusable):
        exported_to(tmp_path, lake)


def test_an_export_that_is_cancelled_after_its_last_part_writes_nothing(lake: Lake, tmp_path: Path) -> None:
    cancellation = Cancellation()
    with pytest.raises(QueryCancelled, match="the query was cancelled"):
        exported_to(tmp_path / "it.parquet", lake, cancellation=cancellation, progress=lambda _: cancellation.cancel())
    assert not list(tmp_path.glob("*.parquet"))


def test_an_export_that_times_out_while_reading_the_journal_writes_no_file(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(QueryTimeout, match="the query did not end within 0 s"):
        exported_to(tmp_path / "it.parquet", lake, limits=QueryLimits(0.0))
    assert list(tmp_path.glob("*.parquet")) == []


def test_an_export_leaves_out_erased_events_that_lake_and_journal_still_have(lake: Lake, tmp_path: Path) -> None:
    def exported() -> list[tuple[str, str, int]]:
        exported_to(tmp_path / "it.parquet", lake, force=True)
        return keys(iter([pq.read_table(tmp_path / "it.parquet")]))

    everything = exported()
    assert len(everything) == 9
    with contextlib.closing(Journal.open(lake.journal)) as journal:
        journal.within(lambda it: erasure.begin(it, "thing", LAMP.id, "2030-01-15T00:00:00Z", "anna"))
        journal.commit()
        journal.append([change(LAMP, 6)])
    rest = [it for it in everything if it[:2] != (LAMP.id, "thing")]
    assert [it[:2] for it in rest] == [(OTHER.id, "thing")] * 3 + [(POLICY.id, "policy")]
    assert exported() == [*rest, (LAMP.id, "thing", 6)], "it has become something since"
    note_erased(lake.data_dir, 1)
    assert len(exported()) == 10, "what the lake has carried out is not asked about again"


def test_the_events_of_one_entity_are_those_of_lake_and_journal(lake: Lake, tmp_path: Path) -> None:
    found = exported_to(tmp_path / "it.parquet", lake, EventSelection(entity=LAMP.id, entity_type="thing"))
    assert (found["rows"], found["first_revision"], found["last_revision"]) == (5, 1, 5)


def test_an_export_with_an_empty_lake_returns_the_journal_events(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.pipeline.mkdir(parents=True)
    journal = Journal.open(lake.journal)
    journal.append([change(LAMP, 1)])
    journal.close()
    assert exported_to(tmp_path / "it.parquet", lake)["rows"] == 1
    nothing = exported_to(tmp_path / "none.parquet", lake, EventSelection(first=2))
    assert (nothing["rows"], nothing["first_revision"]) == (0, None)
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0

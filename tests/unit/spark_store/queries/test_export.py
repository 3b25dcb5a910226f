"""Exports without Spark: how parts are cut, how lake and journal are joined, what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction

from mappings.ids import EntityId, EntityType
from spark_store import rql
from spark_store.errors import (
    NoPipeline,
    NoSparkQueries,
    OutputUnusable,
    QueryCancelled,
    QueryTimeout,
    ResultTooLarge,
    StoreUnavailable,
    TooManyRows,
)
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake.reader import LakePosition
from spark_store.lake.rows import RowKey, cut
from spark_store.lake.tables import APP, EVENTS, Lake
from spark_store.lake.watermark import Watermark, publish_watermark
from spark_store.queries import export as module
from spark_store.queries import spark_query
from spark_store.queries.export import SCHEMA, Export, filter_rows, merge_ordered, newest, within
from spark_store.queries.selection import EventSelection
from spark_store.queries.spark_query import Cancellation, QueryLimits, SparkQueries, reason_to_stop
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


def test_parts_are_cut_where_their_shares_end() -> None:
    sample = [(RowKey(f"e{number // 10}", "thing", number % 10), 1 + (number % 3)) for number in range(100)]
    found = cut(sample, 4)
    assert [key for key, _ in sample if key in found] == found
    shares = []
    for low, high in zip([None, *found], [*found, None], strict=True):
        shares.append(sum(size for key, size in sample if (low is None or key > low) and (high is None or key <= high)))
    assert len(shares) == 4
    assert max(shares) - min(shares) <= 6
    assert cut([], 4) == []
    assert cut(sample[:1], 4) == []
    assert len(cut([(sample[0][0], 100), *sample[1:4]], 4)) <= 3


def test_a_part_is_a_range_of_keys_with_a_plain_bound() -> None:
    assert within("true", None, None) == "(true)"
    assert within("x", RowKey("a'", "thing", 3), RowKey("b", "policy", 5)) == (
        r"(x) AND entity >= 'a\'' AND (entity > 'a\'' OR entity_type > 'thing' OR (entity_type = 'thing' AND revision > 3))"
        " AND entity <= 'b' AND (entity < 'b' OR entity_type < 'policy' OR (entity_type = 'policy' AND revision <= 5))"
    )


def test_lake_and_journal_are_joined_in_order_however_they_are_cut() -> None:
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
    position, rows = newest(lake, EventSelection())
    assert position == LakePosition(0, 4)
    assert keys(iter([rows])) == [
        ("acme.site:lamp-6", "thing", 3),
        ("acme.site:lamp-7", "policy", 1),
        *(("acme.site:lamp-7", "thing", revision) for revision in (3, 4, 5)),
    ]
    assert rows is not None
    assert rows.column("value").to_pylist() == ["2", "0", "2", "3", "4"]
    assert newest(lake, EventSelection(entity="acme.site:lamp-1"))[1] is None


def test_a_journal_that_was_trimmed_meanwhile_is_read_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # The pipeline goes on while the journal is read: the next look finds it further.
    monkeypatch.setattr(JournalReader, "oldest", lambda _: 9)
    monkeypatch.setattr(module, "read_watermark", lambda _: Watermark(8))
    positions = iter([LakePosition(0, 4), LakePosition(1, 6), LakePosition(2, 8)])
    monkeypatch.setattr("spark_store.queries.export.lakes.position", lambda _: next(positions))
    position, rows = newest(lake, EventSelection())
    assert rows is not None
    assert (position, rows.num_rows) == (LakePosition(2, 8), 1)
    monkeypatch.setattr("spark_store.queries.export.lakes.position", lambda _: LakePosition(0, 4))
    with pytest.raises(StoreUnavailable, match="trimmed repeatedly"):
        newest(lake, EventSelection())


def test_too_many_waiting_events_are_not_kept_in_memory(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 4)
    with pytest.raises(StoreUnavailable, match="wait until it has caught up"):
        newest(lake, EventSelection())


def test_nor_are_too_many_bytes_of_them(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING_BYTES", 100)
    with pytest.raises(StoreUnavailable, match="wait until it has caught up"):
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
    monkeypatch.setattr(module, "_SLICE_ROWS", 1)
    looked: list[None] = []
    newest(lake, EventSelection(entity="acme.site:lamp-1"), (), lambda: looked.append(None))
    assert len(looked) == 5


def test_whether_to_stop_is_looked_at_after_each_slice_that_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE_ROWS", 2)
    monkeypatch.setattr(module, "matches", lambda _, row: row[1] > 3)
    looked: list[None] = []
    table = events(*(("acme.site:lamp-7", "thing", revision) for revision in range(1, 6)))
    selection = EventSelection(predicate=rql.parse("exists(thingId)"))
    found = filter_rows([table], selection, lambda: looked.append(None))
    assert [revision for *_, revision in keys(found)] == [4, 5]
    assert len(looked) == 1 + 3


class Answers:
    """Stands for the lake's Spark: sorts and cuts in this process, and refuses what is too large."""

    def __init__(self, lake: Lake, most_rows: int) -> None:
        self.table = deltalake.DeltaTable(lake.path(EVENTS)).to_pyarrow_table().cast(SCHEMA)
        self.table = self.table.sort_by([(name, "ascending") for name in RowKey._fields])
        self.most_rows = most_rows
        self.ranges: list[tuple[RowKey | None, RowKey | None]] = []

    def range(self, after: RowKey | None, upto: RowKey | None) -> Iterator[pa.Table]:
        self.ranges.append((after, upto))
        rows = [
            row
            for row in self.table.to_pylist()
            if (after is None or RowKey(*(row[name] for name in RowKey._fields)) > after)
            and (upto is None or RowKey(*(row[name] for name in RowKey._fields)) <= upto)
        ]
        for taken, row in enumerate(rows):
            if taken == self.most_rows:
                raise ResultTooLarge("too large")
            yield pa.Table.from_pylist([row], SCHEMA)


def exporting(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most_rows: int = 100, **options: object
) -> tuple[Export, Answers]:
    answers = Answers(lake, most_rows)
    export = Export(SparkQueries(lake, lambda: "sc://nowhere"), **options)  # type: ignore[arg-type]
    last: list[tuple[RowKey | None, RowKey | None]] = []

    def bounded(wanted: str, after: RowKey | None, upto: RowKey | None) -> str:
        last.append((after, upto))
        return wanted

    def ask(_self: object, text: str) -> Iterator[pa.Table]:
        if "count(*)" in text:
            return iter([pa.table({"n": [4], "size": [1]})])
        return answers.range(*last[-1])

    monkeypatch.setattr(module, "MOST_ROWS", 0)
    monkeypatch.setattr(module, "within", bounded)
    monkeypatch.setattr(module._SparkEvents, "_ask", ask)
    return export, answers


def test_an_export_is_complete_and_in_order(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    export, _ = exporting(lake, monkeypatch, progress=shown.append)
    out = tmp_path / "it.parquet"
    written = export.run(EventSelection(), out)
    assert (written.rows, written.first_revision, written.last_revision) == (9, 1, 5)
    assert written.bytes == out.stat().st_size
    table = pq.read_table(out)
    assert table.schema.remove_metadata() == SCHEMA
    found = keys(iter([table]))
    assert found == sorted(set(found))
    assert len(found) == 9
    assert shown == [9]


def test_a_part_that_is_refused_continues_in_smaller_ones(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, answers = exporting(lake, monkeypatch, most_rows=2)
    assert export.run(EventSelection(), tmp_path / "it.parquet").rows == 9
    assert [after and after.revision for after, _ in answers.ranges] == [None, 2]
    export, _ = exporting(lake, monkeypatch, most_rows=0)
    with pytest.raises(ResultTooLarge):
        export.run(EventSelection(), tmp_path / "other.parquet")
    assert not (tmp_path / "other.parquet").exists()


def test_an_export_has_its_limits(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export, _ = exporting(lake, monkeypatch, limits=QueryLimits(60, 8))
    with pytest.raises(TooManyRows, match="found at least 9 events, expected at most 8"):
        export.run(EventSelection(), tmp_path / "it.parquet")
    assert not (tmp_path / "it.parquet").exists()


def test_an_export_that_is_cancelled_after_its_last_query_writes_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancellation = Cancellation()
    export, answers = exporting(lake, monkeypatch, cancellation=cancellation)
    ask = answers.range

    def last(after: RowKey | None, upto: RowKey | None) -> Iterator[pa.Table]:
        yield from ask(after, upto)
        cancellation.cancel()

    monkeypatch.setattr(answers, "range", last)
    with pytest.raises(QueryCancelled, match="the query was cancelled"):
        export.run(EventSelection(), tmp_path / "it.parquet")
    assert not list(tmp_path.glob("*.parquet"))


def test_an_export_that_times_out_while_reading_the_journal_writes_no_file(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, answers = exporting(lake, monkeypatch, limits=QueryLimits(0.0))
    with pytest.raises(QueryTimeout, match="the query did not end within 0 s"):
        export.run(EventSelection(), tmp_path / "it.parquet")
    assert (answers.ranges, list(tmp_path.glob("*.parquet"))) == ([], [])


def test_a_timeout_error_names_the_configured_limit_and_not_the_time_left(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(spark_query, "time", clock)

    def late(_self: SparkQueries, _query: object, limits: QueryLimits, cancellation: Cancellation) -> None:
        nonlocal now
        now += limits.seconds
        why = reason_to_stop(limits, now, cancellation)
        assert why is not None
        raise why

    def found(*_: object) -> tuple[LakePosition, None]:
        nonlocal now
        now += 7.0
        return LakePosition(0, 4), None

    monkeypatch.setattr(SparkQueries, "run", late)
    monkeypatch.setattr(module, "newest", found)
    monkeypatch.setattr(module, "MOST_ROWS", 0)
    with pytest.raises(QueryTimeout, match=r"the query did not end within 8 s, its limit"):
        Export(SparkQueries(lake, lambda: "sc://nowhere"), QueryLimits(8.0)).run(
            EventSelection(), tmp_path / "it.parquet"
        )


def test_an_export_leaves_out_erased_events_that_lake_and_journal_still_have(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(events: Any, text: str) -> Iterator[pa.Table]:
        table = deltalake.DeltaTable(lake.path(EVENTS), events.version)
        yield pa.table(deltalake.QueryBuilder().register("events", table).execute(text).read_all())

    def exported() -> list[tuple[str, str, int]]:
        export, found = Export(SparkQueries(lake, lambda: "sc://nowhere")), list[list[tuple[str, str, int]]]()
        for most_rows in (0, 1_000_000):
            monkeypatch.setattr(module, "MOST_ROWS", most_rows)
            export.run(EventSelection(), tmp_path / "it.parquet", force=True)
            found.append(keys(iter([pq.read_table(tmp_path / "it.parquet")])))
        assert found[0] == found[1], "from the files as from Spark"
        return found[0]

    monkeypatch.setattr(module._SparkEvents, "_ask", ask)
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


def test_a_large_export_without_pipeline_is_refused_and_touches_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise NoSparkQueries("off")

    monkeypatch.setattr(module, "MOST_ROWS", 3)
    out = tmp_path / "it.parquet"
    with pytest.raises(NoSparkQueries):
        Export(SparkQueries(lake, refuse)).run(EventSelection(), out)
    with pytest.raises(NoPipeline):
        Export(SparkQueries(lake, lambda: "sc://localhost:1/;token=x")).run(EventSelection(), out)
    with pytest.raises(OutputUnusable):
        Export(SparkQueries(lake, lambda: "")).run(EventSelection(), tmp_path)
    assert not list(tmp_path.glob("*it*"))
    # The events of one entity are read from the files, however many rows these have.
    found = Export(SparkQueries(lake, refuse)).run(EventSelection(entity=LAMP.id, entity_type="thing"), out)
    assert (found.rows, found.first_revision, found.last_revision) == (5, 1, 5)
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    assert Export(SparkQueries(lake, refuse)).run(EventSelection(), out, force=True).rows == 9


def test_an_export_with_an_empty_lake_returns_the_journal_events(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.pipeline.mkdir(parents=True)
    journal = Journal.open(lake.journal)
    journal.append([change(LAMP, 1)])
    journal.close()
    assert Export(SparkQueries(lake, lambda: "sc://nowhere")).run(EventSelection(), tmp_path / "it.parquet").rows == 1
    nothing = Export(SparkQueries(lake, lambda: "sc://nowhere")).run(EventSelection(first=2), tmp_path / "none.parquet")
    assert (nothing.rows, nothing.first_revision) == (0, None)
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0

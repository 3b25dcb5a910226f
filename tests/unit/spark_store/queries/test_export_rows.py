"""Selected events read from the lake's files: all of them, in order, within a bound of memory."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from mappings.ids import namespace_of
from spark_store import rql
from spark_store.errors import QueryCancelled, StoreUnavailable
from spark_store.journal.erasure import Erasure
from spark_store.lake import rows as module
from spark_store.lake.rows import ORDER
from spark_store.lake.tables import EVENTS, Lake
from spark_store.queries.export import SCHEMA, filter_rows, lake_rows
from spark_store.queries.selection import EventSelection
from tests.support.dice import THOROUGH, dice

NOON = datetime(2030, 1, 15, 12, tzinfo=UTC)


def row(seq: int, type: str, entity: str, revision: int, value: str | None = "1") -> dict[str, Any]:
    at = NOON + timedelta(microseconds=250 * seq)
    names = {"entity_type": type, "entity": entity, "namespace": namespace_of(entity)}
    return {
        **names,
        "revision": revision,
        "ts": at,
        "action": "modified",
        "path": "/",
        "value": value,
        "headers": "{}",
        "seq": seq,
    }


def write(lake: Lake, rows: list[dict[str, Any]]) -> None:
    deltalake.write_deltalake(lake.path(EVENTS), pa.Table.from_pylist(rows, SCHEMA), mode="append")


def cut_times(lake: Lake) -> None:
    """Cut the times of the log to milliseconds, as Spark writes them."""
    for file in Path(lake.path(EVENTS), "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                stats = json.loads(action["add"]["stats"])
                for bounds in (stats["minValues"], stats["maxValues"]):
                    bounds["ts"] = datetime.fromisoformat(bounds["ts"]).isoformat(timespec="milliseconds")[:23] + "Z"
                action["add"]["stats"] = json.dumps(stats)
        file.write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake of five files whose entities overlap; names need quoting, and times differ by microseconds."""
    lake, random_source, seq = Lake(tmp_path), dice("event files"), 0
    revisions: dict[tuple[str, str], int] = {}
    for _ in range(5):
        rows = []
        for _ in range(30):
            key = (
                random_source.choice(["thing", "policy"]),
                random_source.choice(["a:ä%20'$", "a:b", "b:a", "b:ü/", "c"]),
            )
            seq, revisions[key] = seq + 1, revisions.get(key, 0) + 1
            rows.append(row(seq, *key, revisions[key]))
        write(lake, rows)
    cut_times(lake)
    return lake


def everything(lake: Lake) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(lake.path(EVENTS)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda it: [it[name] for name in ORDER])


def read(lake: Lake, selection: EventSelection, *erased: Erasure) -> list[dict[str, Any]]:
    files = lake_rows(lake, deltalake.DeltaTable(lake.path(EVENTS)).version(), selection, erased)
    tables = filter_rows(files.in_parts(), selection, lambda: None)
    return [row for table in tables for row in table.to_pylist()]


def selects(event: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether a bound of a selection includes an event."""
    match name:
        case "first":
            return bool(event["revision"] >= value)
        case "last":
            return bool(event["revision"] <= value)
        case "since":
            return bool(event["ts"] >= value)
        case "until":
            return bool(event["ts"] < value)
        case _:
            return bool(event[name] == value)


def test_every_selection_finds_the_events_that_it_selects_in_order(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, random_source = everything(lake), dice("selections")
    for _ in range(20 if THOROUGH else 4):
        entity, since, until = (
            random_source.choice(rows),
            *sorted(random_source.choices(rows, k=2), key=lambda it: it["seq"]),
        )
        options = {
            "entity": entity["entity"],
            "entity_type": entity["entity_type"],
            "namespace": entity["namespace"],
            "first": entity["revision"],
            "last": entity["revision"],
            "since": since["ts"],
            "until": until["ts"],
        }
        chosen = {name: options[name] for name in random_source.sample(sorted(options), random_source.randint(0, 3))}
        selection = EventSelection(**chosen)
        expected = [it for it in rows if all(selects(it, name, value) for name, value in chosen.items())]
        monkeypatch.setattr(module, "MOST_BYTES", random_source.choice([512, 4096, 1 << 20]))
        assert read(lake, selection) == expected, selection


def test_conditions_that_a_filter_implies_leave_files_out(lake: Lake) -> None:
    write(lake, [row(1000, "thing", "z:z", 1)])
    (others, last) = (deltalake.DeltaTable(lake.path(EVENTS), version).file_uris() for version in (4, 5))
    assert len(last) == 6
    for file in others:
        Path(file).unlink()
    chosen = EventSelection(predicate=rql.parse('and(in(thingId,"z:z","z:y"),eq(_revision,1))'))
    assert [it["entity"] for it in read(lake, chosen)] == ["z:z"]


def test_erased_events_are_left_out(lake: Lake) -> None:
    erased = Erasure(1, "thing", "b:a", 100, "", "", None, None)
    expected = [
        it for it in everything(lake) if (it["entity"], it["entity_type"]) != ("b:a", "thing") or it["seq"] > 100
    ]
    assert read(lake, EventSelection(), erased) == expected
    assert len(expected) < 150


def test_the_first_time_of_all_is_a_bound_like_any_other(lake: Lake) -> None:
    assert len(read(lake, EventSelection(since=datetime.min.replace(tzinfo=UTC)))) == 150


@pytest.mark.parametrize("groups", [1, 20])
def test_large_events_are_read_in_parts_within_the_bound(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    events = [row(1000 + number, "thing", "b:b", number, "x" * 1000) for number in range(1, 201)]
    for begin in range(0, 200, 200 // groups):
        write(lake, events[begin : begin + 200 // groups])
    monkeypatch.setattr(module, "MOST_BYTES", 20_000)
    parts = list(lake_rows(lake, 4 + groups, EventSelection()).in_parts())
    assert [it for table in parts for it in table.to_pylist()] == everything(lake)
    assert max(table.nbytes for table in parts) <= 20_000


def test_rows_of_a_compacted_table_are_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.Table.from_pylist(everything(lake), SCHEMA)
    deltalake.write_deltalake(
        lake.path(EVENTS),
        table,
        mode="overwrite",
        writer_properties=deltalake.WriterProperties(max_row_group_size=10, write_batch_size=10),
    )
    monkeypatch.setattr(module, "MOST_BYTES", 10_000)
    reads = list[None]()
    rows = lake_rows(lake, 5, EventSelection(), (), lambda: reads.append(None))
    parts = list(rows.in_parts())
    assert pa.concat_tables(parts).to_pylist() == table.to_pylist()
    assert len(reads) == -(-15 // module.AT_ONCE)


def test_an_export_is_stopped_between_two_slices(lake: Lake) -> None:
    def stop() -> None:
        raise QueryCancelled("the query was cancelled")

    with pytest.raises(QueryCancelled):
        list(lake_rows(lake, 4, EventSelection(), (), stop).in_parts())


def test_a_file_that_is_gone_is_an_error(lake: Lake) -> None:
    files = lake_rows(lake, 4, EventSelection())
    next(Path(lake.path(EVENTS)).glob("*.parquet")).unlink()
    with pytest.raises(StoreUnavailable):
        list(files.in_parts())

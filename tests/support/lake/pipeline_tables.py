"""A lake like one that Spark has written, but written without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from spark_store.journal.reader import EntityState, JournalEntry, JournalReader
from spark_store.lake.tables import APP, ERASURES, EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS, TABLES, Lake, Table
from spark_store.lake.watermark import Watermark, publish_watermark, read_watermark

_TYPES = {"string": pa.string(), "long": pa.int64(), "boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC")}


def write_lake(data_dir: Path, last: int | None = None) -> None:
    """Write both tables and the watermark, up to the journal's event `last`, by default the newest."""
    with JournalReader.open(Lake(data_dir).journal) as follower:
        last = follower.newest() if last is None else last
        entries, states = list(follower.entries(1, last)), list(follower.states(1, last))
    add_events(data_dir, map(event_row, entries), last)
    # Without the transaction number, a pipeline that starts would merge all states again.
    _write(data_dir, LATEST, map(latest_row, states), "overwrite", last)
    Lake(data_dir).pipeline.mkdir(parents=True, exist_ok=True)
    publish_watermark(Lake(data_dir).watermark, Watermark(last))


def write_all_tables(data_dir: Path) -> None:
    """Call `write_lake`, and create missing tables, so that a pipeline finds all of them."""
    write_lake(data_dir)
    for table in (SNAPSHOTS, FULL_SNAPSHOTS):
        if not Lake(data_dir).has(table):
            add_states(data_dir, table, [])


def write_full_snapshot(data_dir: Path) -> None:
    """Add a full snapshot of all things of the journal."""
    with JournalReader.open(Lake(data_dir).journal) as follower:
        last = follower.newest()
        rows = [
            {**latest_row(state), "as_of": last} for state in follower.states(1, last) if state.entity_type == "thing"
        ]
    _write(data_dir, FULL_SNAPSHOTS, rows, "append", last)


def add_events(data_dir: Path, rows: Iterable[Mapping[str, Any]], last: int) -> None:
    _write(data_dir, EVENTS, rows, "append", last)


def write_events(data_dir: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    _write(data_dir, EVENTS, rows, "overwrite")


def write_latest(data_dir: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    _write(data_dir, LATEST, rows, "overwrite")


def add_states(data_dir: Path, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to `snapshots` or `full_snapshots`."""
    _write(data_dir, table, rows, "append")


def note_erased(data_dir: Path, number: int) -> None:
    """Mark the erasures up to this number as done, in all existing tables and the watermark."""
    place = Lake(data_dir)
    for table in (table for table in TABLES if place.has(table)):
        noted = CommitProperties(app_transactions=[Transaction(ERASURES, number)])
        nothing = DeltaTable(place.path(table)).to_pyarrow_table().slice(0, 0)
        by = list(table.partitioned_by) or None
        write_deltalake(place.path(table), nothing, mode="append", partition_by=by, commit_properties=noted)
    publish_watermark(place.watermark, msgspec.structs.replace(read_watermark(place.watermark), erased=number))


def _write(data_dir: Path, table: Table, rows: Iterable[Mapping[str, Any]], mode: Any, last: int | None = None) -> None:
    schema = pa.schema([(column.name, _TYPES[column.type]) for column in table.columns])
    properties = None if last is None else CommitProperties(app_transactions=[Transaction(APP, last)])
    found = pa.Table.from_pylist([dict(row) for row in rows], schema)
    by = list(table.partitioned_by) or None
    write_deltalake(
        Lake(data_dir).path(table),
        found,
        mode=mode,
        partition_by=by,
        configuration=dict(table.properties),
        commit_properties=properties,
        # Uncompressed, so that tests can search the bytes of the files for a text.
        writer_properties=WriterProperties(compression="UNCOMPRESSED"),
    )


def event_row(entry: JournalEntry) -> dict[str, Any]:
    """Return an entry of the journal as a row of `events`."""
    row = entry._asdict()
    return {
        **row,
        "namespace": entry.entity.partition(":")[0] if ":" in entry.entity else "",
        "ts": datetime.fromisoformat(row.pop("timestamp")),
        "value": None if entry.value is None else entry.value.decode(),
        "headers": entry.headers.decode(),
    }


def latest_row(state: EntityState) -> dict[str, Any]:
    """Return a state of the journal as a row of `latest`."""
    return {
        **state._asdict(),
        "namespace": state.entity.partition(":")[0] if ":" in state.entity else "",
        "policy_id": state.policy,
        "created": datetime.fromisoformat(state.created),
        "modified": datetime.fromisoformat(state.modified),
        "deleted": state.state is None,
        "state": None if state.state is None else state.state.decode(),
    }

"""Tables of a lake written without Spark, for tests of readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import APP, EVENTS, Lake
from spark_store.records import Snapshot
from tests.support.journal_entries import LAMP, MUCH, event, revisions

OTHER = EntityId(EntityType.THING, "acme.site", "lamp-8")

_TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC"), "boolean": pa.bool_()}
_EVENTS = pa.schema([(column.name, _TYPES[column.type]) for column in EVENTS.columns])
_SNAPSHOTS = pa.schema(
    [
        *((name, pa.string()) for name in ("entity_type", "entity", "namespace", "policy_id")),
        *((name, pa.int64()) for name in ("revision", "seq")),
        *((name, pa.timestamp("us", "UTC")) for name in ("created", "modified")),
        ("deleted", pa.bool_()),
        ("state", pa.string()),
    ]
)


def append_events(lake: Lake, events: Sequence[tuple[int, Event]], rows: int = 1000) -> None:
    """Append events with their numbers, sorted like Spark, with `rows` in a row group."""
    found = sorted(events, key=lambda numbered: (numbered[1].entity.id, numbered[1].revision))
    write_deltalake(
        lake.path(EVENTS),
        pa.Table.from_pylist([_row(seq, event) for seq, event in found], _EVENTS),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(APP, max(seq for seq, _ in events))]),
        writer_properties=WriterProperties(compression="ZSTD", max_row_group_size=rows),
    )


def _row(seq: int, event: Event) -> dict[str, object]:
    entity = event.entity
    return {
        "entity_type": entity.type.value,
        "entity": entity.id,
        "namespace": entity.namespace,
        "revision": event.revision,
        "ts": datetime.fromisoformat(event.timestamp),
        "action": event.action,
        "path": event.path,
        "value": None if event.value is None else event.value.decode(),
        "headers": event.headers.decode(),
        "seq": seq,
    }


def corrupt_page(table: Path) -> Path:
    """Rewrite a file of a table with checksums of its pages, like Spark, and corrupt some bytes of one."""
    file = next(table.glob("*.parquet"))
    size = file.stat().st_size
    rows = pq.read_table(file, partitioning=None)
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(rows, file, write_page_checksum=True, **plain)
    content = bytearray(file.read_bytes())
    place = content.index(b"lamp-")
    content[place : place + 4] = b"pump"
    file.write_bytes(content)
    log = next(it for it in (table / "_delta_log").glob("*.json") if file.name in it.read_text())
    log.write_text(log.read_text().replace(f'"size":{size}', f'"size":{len(content)}'))
    return file


def append_snapshots(lake: Lake, snapshots: Iterable[Snapshot]) -> None:
    rows = [
        {
            "entity_type": it.entity.type.value,
            "entity": it.entity.id,
            "namespace": it.entity.namespace,
            "policy_id": it.policy,
            "revision": it.revision,
            "seq": it.revision,
            "created": datetime.fromisoformat(it.created),
            "modified": datetime.fromisoformat(it.modified),
            "deleted": it.is_deleted,
            "state": None if it.state is None else msgspec.json.encode(it.state).decode(),
        }
        for it in snapshots
    ]
    write_deltalake(str(lake.folder / "snapshots"), pa.Table.from_pylist(rows, _SNAPSHOTS), mode="append")


def compact(lake: Lake) -> None:
    """Compact all files into one, and delete the old ones."""
    table = DeltaTable(lake.path(EVENTS))
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def forget(lake: Lake, condition: str) -> None:
    """Delete rows, like retention."""
    DeltaTable(lake.path(EVENTS)).delete(condition)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fill(lake: Lake, first: int, last: int, entities: Sequence[EntityId] = (LAMP, OTHER), rows: int = 10) -> None:
    """Append revisions of the entities, numbered in turn."""
    width = len(entities)
    numbered = [
        ((revision - 1) * width + place + 1, event(entity, revision))
        for revision in range(first, last + 1)
        for place, entity in enumerate(entities)
    ]
    append_events(lake, numbered, rows)


def read(lake_: LakeHistory, first: int, last: int, limit: int = 1000, **more: object) -> list[int]:
    return revisions(lake_.events(LAMP, first, last, limit, MUCH, **more).events)  # type: ignore[arg-type]


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))

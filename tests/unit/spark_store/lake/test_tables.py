"""The layout that analysts rely on."""

from __future__ import annotations

from pathlib import Path

from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, LATEST, SNAPSHOTS, TABLES, Lake


def test_design_8_20_the_guaranteed_columns_keep_their_names_and_types() -> None:
    events = {column.name: column.type for column in EVENTS.columns}
    latest = {column.name: column.type for column in LATEST.columns}
    entity = dict.fromkeys(("entity_type", "entity", "namespace"), "string")
    assert events.items() >= {
        **entity, "revision": "long", "seq": "long", "ts": "timestamp",
        **dict.fromkeys(("action", "path", "value", "headers"), "string"),
    }.items()  # fmt: skip
    assert latest.items() >= {
        **entity, "policy_id": "string", "revision": "long", "seq": "long", "created": "timestamp", "modified": "timestamp",
        "deleted": "boolean", "state": "string",
    }.items()  # fmt: skip
    assert SNAPSHOTS.columns == LATEST.columns
    assert FULL_SNAPSHOTS.columns[1:] == LATEST.columns


def test_design_8_19_the_tables_lie_in_the_data_folder() -> None:
    lake = Lake(Path("/data"))
    names = ("events", "latest", "snapshots", "full_snapshots")
    assert [lake.path(table) for table in TABLES] == [f"/data/lake/{it}" for it in names]


def test_a_table_exists_once_it_has_a_log(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert not lake.has(EVENTS)
    Path(lake.path(EVENTS)).mkdir(parents=True)
    assert not lake.has(EVENTS)
    Path(lake.path(EVENTS), "_delta_log").mkdir()
    assert lake.has(EVENTS)


def test_every_reader_can_read_them() -> None:
    for table in TABLES:
        assert table.properties["delta.enableDeletionVectors"] == "false"
        assert table.properties["delta.columnMapping.mode"] == "none"
        assert {*table.clustered_by, *table.partitioned_by} <= set(table.column_names)
        assert bool(table.clustered_by) != bool(table.partitioned_by)

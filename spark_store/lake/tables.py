"""The layout of the lake: folders, and the columns and files of its four Delta tables.

- `events`: one row per event of the journal, never changed. `seq` is the event's number in the journal.
- `latest`: one row per entity, the state after its newest event; a deleted entity keeps its row, without state.
- `snapshots`: some earlier rows of `latest`, to replay the events after the nearest one.
- `full_snapshots`: all things as of one event, each an immutable partition: searches of the past fold only later events.

Names and types of columns are stable: columns may be added. `value`, `headers` and `state` are the journal's JSON texts.
The tables have neither deletion vectors nor column mapping, so every Delta reader can read them (reader version 1). They
are clustered by entity, except `full_snapshots`, whose files are read by partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from spark_store.errors import translate_system_error

APP = "journal"
"""The transaction name of appends of journal events; its number is the last one."""

ERASURES = "erasure"
"""The transaction name of a table's last erasure; its number is the erasure's ID."""


class Column(NamedTuple):
    """A column: name, type in SQL, description."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns in order, its key, and its properties.

    Its files are clustered by some columns, or each has rows of one partition.
    """

    name: str
    columns: tuple[Column, ...]
    clustered_by: tuple[str, ...]
    properties: Mapping[str, str]
    partitioned_by: tuple[str, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """The columns as a CREATE TABLE or a schema has them."""
        return ", ".join(f"{column.name} {column.type.upper()}" for column in self.columns)

    @property
    def layout(self) -> str:
        """Return how its files are organized, for CREATE TABLE."""
        if self.partitioned_by:
            return f"PARTITIONED BY ({', '.join(self.partitioned_by)})"
        return f"CLUSTER BY ({', '.join(self.clustered_by)})"


LOG_RETENTION = timedelta(hours=1)
"""How long a table's log keeps old versions: 720 with a batch every 5 s."""

_COMMON = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointInterval": "50",
    # Delta wants it to be as long as that of deleted files. `LOG_RETENTION` is shorter.
    "delta.logRetentionDuration": "interval 1 day",
}

_ENTITY = (
    Column("entity_type", "string", "`thing`, `policy` or `stream`"),
    Column("entity", "string", "the entity's ID, such as `acme.site:lamp-7`"),
    Column("namespace", "string", "the namespace: the part of the ID before the first colon; empty without a colon"),
)

EVENTS = Table(
    "events",
    (
        *_ENTITY,
        Column("revision", "long", "the number of the event within its entity, from 1"),
        Column("ts", "timestamp", "the time of the event, in UTC with microseconds"),
        Column("action", "string", "`created`, `modified`, `merged` or `deleted`; for a stream `published`"),
        Column("path", "string", "the changed part of the entity, as a JSON pointer"),
        Column("value", "string", "the new value, as JSON; null for a deletion"),
        Column("headers", "string", "the stored headers of the event, as a JSON object"),
        Column("seq", "long", "the number of the event within the journal, from 1"),
    ),
    # Not by revision too: clustering by two columns mixes entities, and a page of one of them would cost four times as much.
    ("entity",),
    {
        **_COMMON,
        "delta.dataSkippingStatsColumns": "entity_type,entity,namespace,revision,ts,seq",
        # For readers that keep a version open while files are compacted.
        "delta.deletedFileRetentionDuration": "interval 1 day",
    },
)

_STATE = (
    *_ENTITY,
    Column("policy_id", "string", "the ID of the policy; null without one"),
    Column("revision", "long", "the revision of the newest event"),
    Column("seq", "long", "the number of the newest event within the journal"),
    Column("created", "timestamp", "the time of creation"),
    Column("modified", "timestamp", "the time of the last change"),
    Column("deleted", "boolean", "whether the entity is deleted"),
    Column("state", "string", "the entity as JSON; null if it is deleted; `{}` for a stream"),
)

LATEST = Table(
    "latest",
    _STATE,
    ("entity",),
    {
        **_COMMON,
        "delta.dataSkippingStatsColumns": "entity_type,entity,namespace,policy_id,revision,seq,modified",
        # Every batch leaves behind the files of the rows it has changed: kept for a day they would fill the disk.
        "delta.deletedFileRetentionDuration": "interval 30 minutes",
    },
)

SNAPSHOTS = Table(
    "snapshots",
    _STATE,
    ("entity", "revision"),
    {
        **_COMMON,
        "delta.dataSkippingStatsColumns": "entity_type,entity,namespace,revision,seq,modified",
        "delta.deletedFileRetentionDuration": "interval 1 day",
    },
)

FULL_SNAPSHOTS = Table(
    "full_snapshots",
    (
        Column("as_of", "long", "the number of a journal event: the row includes every event up to it"),
        *_STATE,
    ),
    (),
    {
        **_COMMON,
        "delta.dataSkippingStatsColumns": "entity,revision,seq,modified",
        "delta.deletedFileRetentionDuration": "interval 1 day",
    },
    partitioned_by=("as_of",),
)

TABLES = (EVENTS, LATEST, SNAPSHOTS, FULL_SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class Lake:
    """The files of a data folder's lake."""

    data_dir: Path

    @property
    def folder(self) -> Path:
        return self.data_dir / "lake"

    @property
    def journal(self) -> Path:
        """The journal that the lake is filled from."""
        return self.data_dir / "journal.db"

    @property
    def pipeline(self) -> Path:
        """The files of the pipeline, such as watermark and lock."""
        return self.folder / "pipeline"

    @property
    def watermark(self) -> Path:
        return self.pipeline / "watermark.json"

    @property
    def connect(self) -> Path:
        """The file with the address of Spark Connect."""
        return self.pipeline / "connect.json"

    @property
    def failure(self) -> Path:
        return self.pipeline / "failure.json"

    @property
    def scratch(self) -> Path:
        """Temporary files of Spark (see `spark_store.pipeline.session`)."""
        return self.pipeline / "tmp"

    @property
    def results(self) -> Path:
        """Results of searches of the past, which Spark's workers write and the service reads."""
        return self.pipeline / "results"

    @property
    def lock(self) -> Path:
        return self.pipeline / "lock"

    def path(self, table: Table) -> str:
        """The folder of a table, absolute, as Spark and Delta readers want it."""
        return str((self.folder / table.name).absolute())

    def has(self, table: Table) -> bool:
        """Whether a table has been created. Raises StoreUnavailable if the folder cannot be looked up."""
        log = Path(self.path(table), "_delta_log")
        try:
            return log.is_dir()
        except OSError as error:
            raise translate_system_error(log, error, "cannot be read") from error

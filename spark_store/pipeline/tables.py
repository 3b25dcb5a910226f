"""What is done to the tables, one function per job: made and checked, appended to, merged into, asked how far they are.

Every job may be done twice. An append carries the number of its last event (`txnVersion`), and Delta does not take the same
or a lower one again. A merge writes a row only where it is newer; it carries the number, too, where that is above the one in
the table's log, and is done in any case. So a batch that runs again after a crash changes nothing, and the tables themselves
say how far they are, also one that was put back from a backup.

A table that was made by an earlier version gets the columns that have been added since; a merge fills them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_store.errors import LakeUnfit
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.tables import APP, EVENTS, LATEST, TABLES, Column, Lake, Table
from spark_store.pipeline import fault_injection
from spark_store.pipeline.fault_injection import FaultPoint
from spark_store.pipeline.source import SOURCES, states_of


def event_rows(entries: DataFrame) -> DataFrame:
    """Entries of the journal as rows of `events`, in the order in which an entity's history is read."""
    rows = entries.select(
        "entity_type",
        "entity",
        _namespace(sql.col("entity")).alias("namespace"),
        "revision",
        sql.col("timestamp").alias("ts"),
        "action",
        "path",
        "value",
        "headers",
        "seq",
    )
    return rows.sortWithinPartitions("entity", "revision").select(*EVENTS.column_names)


def latest_rows(states: DataFrame) -> DataFrame:
    """States of entities as rows of `latest`."""
    is_deleted = sql.col("state").isNull()
    return states.select(
        "entity_type",
        "entity",
        _namespace(sql.col("entity")).alias("namespace"),
        sql.col("policy").alias("policy_id"),
        "revision",
        "seq",
        # Those that a rebuild has folded are texts; what is no time is an error, not a null.
        sql.col("created").cast("timestamp").alias("created"),
        sql.col("modified").cast("timestamp").alias("modified"),
        is_deleted.alias("deleted"),
        "state",
    ).select(*LATEST.column_names)


def _namespace(entity: Expression) -> Expression:
    """What stands before the first colon."""
    return sql.when(entity.contains(":"), sql.substring_index(entity, ":", 1)).otherwise(sql.lit(""))


FEW = 20_000
"""Up to so many states are read in this process, however many events have led to them: to plan a source, and to write down
what it gives, takes longer than that."""

_WRITTEN_DOWN = "spark.databricks.delta.merge.materializeSource"
_NUMBERED_BY = "spark.databricks.delta.write.txnAppId"
_NUMBER = "spark.databricks.delta.write.txnVersion"
"""How a merge is told what an append has as options."""


@dataclass(frozen=True, slots=True)
class LakeWriter:
    """A lake and the session that writes it. `parallelism`: how many partitions a large batch is read in."""

    spark: SparkSession
    lake: Lake
    parallelism: int

    @classmethod
    def of(cls, spark: SparkSession, data_dir: Path) -> LakeWriter:
        """Makes the journal readable for the session, too."""
        for source in SOURCES:
            spark.dataSource.register(source)
        if (spark.sparkContext.master or "").startswith("local"):
            # Each stage would be a job of its own, so that the next one can be planned by what it gave: that takes longer
            # than there is to gain. (Wide queries have sessions of their own.)
            spark.conf.set("spark.sql.adaptive.enabled", "false")
        return cls(spark, Lake(data_dir), spark.sparkContext.defaultParallelism)

    def name(self, table: Table) -> str:
        """A table as SQL names it."""
        return f"delta.`{self.lake.path(table).replace('`', '``')}`"

    def read(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(self.lake.path(table))

    def journal(self, name: str, first: int, last: int) -> DataFrame:
        """A range of the journal, by the name of one of its sources."""
        return (
            self.spark.read.format(name)
            .option("path", str(self.lake.journal.absolute()))
            .option("parallelism", self.parallelism)
            .option("first", first)
            .option("last", last)
            .load()
        )


def prepare(target: LakeWriter) -> None:
    """Make the tables that are missing. Raises LakeUnfit for one that is something else."""
    target.lake.pipeline.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        _prepare(target, table)


def _prepare(target: LakeWriter, table: Table) -> None:
    if not target.lake.has(table):
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in table.properties.items())
        target.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {target.name(table)} ({table.ddl}) USING delta "
            f"{table.layout} TBLPROPERTIES ({properties})"
        )
        return
    reader.check_log(target.lake, table)
    try:
        found = {field.name: field.dataType.simpleString() for field in target.read(table).schema.fields}
    except AnalysisException as error:
        raise LakeUnfit(f"{target.lake.path(table)}: expected a Delta table, found: {error}") from error
    expected = {column.name: column.type.replace("long", "bigint") for column in table.columns}
    added = [column for column in table.columns if column.is_added and column.name not in found]
    for column in added:
        del expected[column.name]
    if wrong := {name: found.get(name, "nothing") for name, type in expected.items() if found.get(name) != type}:
        raise LakeUnfit(
            f"{target.lake.path(table)}: expected the columns "
            f"{', '.join(f'{name} {expected[name]}' for name in wrong)}, found {', '.join(wrong.values())}; "
            "move the folder away, and the pipeline makes it anew from the journal"
        )
    if added:
        _add_columns(target, table, added)


def _add_columns(target: LakeWriter, table: Table, columns: Sequence[Column]) -> None:
    ddl = ", ".join(f"{column.name} {column.type.upper()}" for column in columns)
    target.spark.sql(f"ALTER TABLE {target.name(table)} ADD COLUMNS ({ddl})")
    statistics = "delta.dataSkippingStatsColumns"
    target.spark.sql(
        f"ALTER TABLE {target.name(table)} SET TBLPROPERTIES ('{statistics}' = '{table.properties[statistics]}')"
    )


def appended(target: LakeWriter) -> int:
    """The number of the last event that `events` holds, as its own log says; 0 for none."""
    return reader.last_transaction(target.lake, EVENTS, APP)


def merged(target: LakeWriter) -> int:
    """Up to which event `latest` has every state, as its own log says; 0 for none.

    A new one says nothing, nor does one that was merged into by earlier versions alone.
    """
    return reader.last_transaction(target.lake, LATEST, APP)


def check_same_journal(target: LakeWriter, follower: JournalReader, last: int) -> None:
    """Compare the lake's event number `last` with the journal's, if both still have it. Raises LakeUnfit."""
    mine = next(follower.entries(last, last), None)
    if mine is None:
        return
    kept = reader.event(target.lake, last)
    value = None if mine.value is None else mine.value.decode()
    expected = {**mine._asdict(), "value": value, "ts": datetime.fromisoformat(mine.timestamp)}
    if kept is not None and any(
        kept[name] != expected[name] for name in ("entity_type", "entity", "revision", "ts", "value")
    ):
        raise LakeUnfit(
            f"event {last} is {mine.entity} at revision {mine.revision}, {mine.timestamp}, in the journal, {kept['entity']} "
            f"at revision {kept['revision']}, {kept['ts'].isoformat()}, in the lake: they do not belong together; "
            "move the folder `lake` away for a new one"
        )


def append_once(target: LakeWriter, table: Table, rows: DataFrame, app: str, number: int) -> None:
    """Append rows with a number of `app`, unless the table has that one, or a higher one."""
    rows.writeTo(target.name(table)).option("txnAppId", app).option("txnVersion", str(number)).append()


def append_events(target: LakeWriter, rows: DataFrame, last: int) -> None:
    """Append rows of events up to number `last`, unless that has been done.

    Into a table that is there: one that vanished must not come into being again with only these rows.
    """
    append_once(target, EVENTS, rows, APP, last)
    fault_injection.reach(FaultPoint.AFTER_APPEND, target.spark)


def merge_latest(target: LakeWriter, first: int, last: int) -> None:
    """Bring the rows of all entities that the events `first` to `last` touched to the journal's newest state.

    Those before `first` have been merged: the table says from now on that it is complete up to `last`.
    """
    states = states_of(target.lake.journal, first, last, FEW)
    if states is None:
        merge_rows(target, latest_rows(target.journal("journal_states", first, last)), last)
    else:
        merge_rows(target, latest_rows(target.spark.createDataFrame(states)), last, is_at_hand=True)


def merge_rows(target: LakeWriter, rows: DataFrame, last: int = 0, *, is_at_hand: bool = False) -> None:
    """Put these rows into `latest` where they are newer than what is there; then it is complete up to event `last`.

    `is_at_hand`: they are the same however often Spark looks. Others are written down first: two looks at the journal's
    newest states could differ.
    """
    settings = {_WRITTEN_DOWN: "none" if is_at_hand else "all"}
    # Delta would pass over what has a number that is not above the last one. But merges are done again for other reasons,
    # too: a column that came is to be filled, or the rows are of an earlier journal.
    if last > merged(target):
        settings |= {_NUMBERED_BY: APP, _NUMBER: str(last)}
    view = "journal_latest_rows"
    # Each column by its name: a table may have others, which a later version has added.
    names = LATEST.column_names
    changed = ", ".join(f"{name} = found.{name}" for name in names)
    rows.createOrReplaceTempView(view)
    try:
        for key, value in settings.items():
            target.spark.conf.set(key, value)
        target.spark.sql(
            f"MERGE INTO {target.name(LATEST)} AS kept USING {view} AS found "
            "ON kept.entity = found.entity AND kept.entity_type = found.entity_type "
            "WHEN MATCHED AND (kept.seq IS NULL OR found.seq > kept.seq) "
            f"THEN UPDATE SET {changed} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f'found.{name}' for name in names)})"
        )
    finally:
        # Whatever else is written is none of this. (An append at the same time has a number of its own, which counts more.)
        for key in settings:
            target.spark.conf.unset(key)
    fault_injection.reach(FaultPoint.AFTER_MERGE, target.spark)

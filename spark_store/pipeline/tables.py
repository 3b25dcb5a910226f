"""Operations on the tables: create, check, append, merge, read positions.

An append has the number of its last event in the table's log (`txnVersion`), and is done only if the table ends right
before its first one. A merge writes only newer rows; it has the number too, if it is above the one in the log, and is done
in any case. So nothing is there twice, and the tables know their positions, also after a restore.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_store.errors import LakeBusy, LakeUnfit, StoreUnavailable
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.tables import APP, EVENTS, LATEST, TABLES, Lake, Table
from spark_store.pipeline.source import read_events, read_states


def event_rows(entries: DataFrame) -> DataFrame:
    """Entries of the journal as rows of `events`, in the order in which an entity's history is read."""
    rows = entries.withColumnRenamed("timestamp", "ts").withColumn("namespace", _namespace(sql.col("entity")))
    return rows.sortWithinPartitions("entity", "revision").select(*EVENTS.column_names)


def latest_rows(states: DataFrame, *others: str) -> DataFrame:
    """States of entities as rows of `latest`, with other columns."""
    added = {"namespace": _namespace(sql.col("entity")), "deleted": sql.col("state").isNull()}
    return states.withColumnRenamed("policy", "policy_id").withColumns(added).select(*LATEST.column_names, *others)


def _namespace(entity: Expression) -> Expression:
    """Return the SQL for the text before the first colon."""
    return sql.when(entity.contains(":"), sql.substring_index(entity, ":", 1)).otherwise(sql.lit(""))


_WRITE_OPTIONS = 8
"""The optional parameters of Delta's description of a write."""

_NUMBERED_BY = "spark.databricks.delta.write.txnAppId"
_NUMBER = "spark.databricks.delta.write.txnVersion"
"""The form in which a merge gets the options of an append."""


@dataclass(frozen=True, slots=True)
class LakeWriter:
    """A lake and the session that writes it."""

    spark: SparkSession
    lake: Lake

    @classmethod
    def of(cls, spark: SparkSession, data_dir: Path) -> LakeWriter:
        """Also set what only this session needs."""
        # Two readings of a source could differ, for example of the journal's states.
        spark.conf.set("spark.databricks.delta.merge.materializeSource", "all")
        # Adaptive execution makes each stage a job, which costs more than it saves here. (Spark queries have sessions of
        # their own.)
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        return cls(spark, Lake(data_dir))

    def name(self, table: Table) -> str:
        """A table as SQL names it."""
        return f"delta.`{self.lake.path(table).replace('`', '``')}`"

    def read(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(self.lake.path(table))

    @property
    def delta(self) -> Any:
        """Delta's package in the Java process."""
        return self.spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]

    @property
    def option(self) -> Any:
        """Scala's `Option` there."""
        return self.spark._jvm.scala.Option  # type: ignore[union-attr]

    def log(self, table: Table) -> Any:
        """A table's log there."""
        return self.delta.DeltaLog.forTable(self.spark._jsparkSession, self.lake.path(table))


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
    if wrong := {name: found.get(name, "nothing") for name, type in expected.items() if found.get(name) != type}:
        raise LakeUnfit(
            f"{target.lake.path(table)}: expected the columns "
            f"{', '.join(f'{name} {expected[name]}' for name in wrong)}, found {', '.join(wrong.values())}; "
            "move the folder away, and the pipeline creates it again from the journal"
        )


def check_same_journal(target: LakeWriter, journal_reader: JournalReader, last: int) -> None:
    """Compare the lake's event number `last` with the journal's, if both still have it. Raises LakeUnfit."""
    mine = next(journal_reader.entries(last, last), None)
    if mine is None:
        return
    kept = reader.event(target.lake, last)
    value = None if mine.value is None else mine.value.decode()
    expected = {**mine._asdict(), "value": value, "ts": datetime.fromisoformat(mine.timestamp)}
    if kept is not None and any(
        kept[name] != expected[name] for name in ("entity_type", "entity", "revision", "ts", "value")
    ):
        raise LakeUnfit(
            f"event {last} is revision {mine.revision} of {mine.entity} at {mine.timestamp} in the journal, but revision "
            f"{kept['revision']} of {kept['entity']} at {kept['ts'].isoformat()} in the lake: they do not match; "
            "move the folder `lake` away, and the pipeline creates a new one"
        )


def append_once(target: LakeWriter, table: Table, rows: DataFrame, app: str, number: int) -> None:
    """Append rows with a number of `app`, unless the table has that one, or a higher one."""
    rows.writeTo(target.name(table)).option("txnAppId", app).option("txnVersion", str(number)).append()


def append_events(target: LakeWriter, first: int, last: int) -> None:
    """Append the events `first` to `last` of the journal to `events`, if the table ends right before them.

    Raises LakeBusy where it does not: another pipeline writes the lake. The number is read within the transaction, and Delta
    refuses one whose number another commit has changed meanwhile. The public writer knows only "skip what is not above".
    """
    transaction = target.log(EVENTS).startTransaction()
    if transaction.readVersion() < 0:
        # One that vanished must not come into being again with only these rows.
        raise StoreUnavailable(f"{target.lake.path(EVENTS)}: expected a Delta table, found none")
    if (found := max(transaction.txnVersion(APP), 0)) != first - 1:
        raise LakeBusy(
            f"{target.lake.path(EVENTS)}: expected its last event to be {first - 1}, found {found}: another pipeline has "
            "appended; end one of the two"
        )
    rows = event_rows(read_events(target.spark, target.lake.journal, first, last))
    commit_append(target, transaction, transaction.writeFiles(rows._jdf), last)


def commit_append(target: LakeWriter, transaction: Any, files: Any, last: int) -> None:
    """Commit written files of events; `last` is the number of the last one."""
    delta, option = target.delta, target.option
    number = delta.actions.SetTransaction(APP, last, option.apply(time.time_ns() // 1_000_000))
    append = target.spark._jvm.org.apache.spark.sql.SaveMode.Append  # type: ignore[union-attr]
    operation = getattr(delta, "DeltaOperations$Write")(append, *[option.empty()] * _WRITE_OPTIONS)
    transaction.commit(files.appended(number), operation)


def delete_rows(target: LakeWriter, table: Table, gone: DataFrame, condition: str) -> None:
    """Delete the rows of a table that match a row of `gone` by entity and this condition.

    A merge, not a DELETE: the log keeps a statement's text, and it must not name the entities. One without a match is no
    version of the table.
    """
    view = "gone_rows"
    gone.createOrReplaceTempView(view)
    target.spark.sql(
        f"MERGE INTO {target.name(table)} AS kept USING {view} AS gone "
        f"ON kept.entity = gone.entity AND kept.entity_type = gone.entity_type AND {condition} WHEN MATCHED THEN DELETE"
    ).collect()


def write_checkpoint(target: LakeWriter, table: Table) -> int:
    """Write a checkpoint of a table's newest version, and return its number."""
    log = target.log(table)
    snapshot = log.update(False, target.option.empty(), target.option.empty())
    log.checkpoint(snapshot, target.option.empty())
    return int(snapshot.version())


def merge_latest(target: LakeWriter, first: int, last: int) -> None:
    """Merge the journal's states of all entities with events `first` to `last`.

    Earlier ones have been merged: the table is complete up to `last` then.
    """
    merge_rows(target, latest_rows(read_states(target.spark, target.lake.journal, first, last)), last)


def merge_rows(target: LakeWriter, rows: DataFrame, last: int = 0) -> None:
    """Merge rows into `latest` if they are newer; the table is complete up to event `last` then."""
    # Delta would ignore a number that is not above the last one. But merges are also repeated, or with an earlier journal.
    is_further = last > reader.last_transaction(target.lake, LATEST, APP)
    settings = {_NUMBERED_BY: APP, _NUMBER: str(last)} if is_further else {}
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
            "WHEN MATCHED AND found.seq > kept.seq "
            f"THEN UPDATE SET {changed} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f'found.{name}' for name in names)})"
        )
    finally:
        # Other writes are not concerned. (A concurrent append has a number of its own, which has precedence.)
        for key in settings:
            target.spark.conf.unset(key)

"""Other readers of a lake that the pipeline writes meanwhile.

DuckDB, pandas, Polars, Spark, and jobs that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_store.lake.tables import EVENTS
from spark_store.pipeline.tables import LakeWriter, append_events
from tests.support.lake.pipeline_process import WITHIN, DataFolder
from tests.support.lake.pipeline_tables import write_all_tables
from tests.support.markdown import blocks
from tests.support.recipe import HOW_TO

pytestmark = pytest.mark.spark

EACH = 10


def in_duckdb(path: str) -> list[int]:
    events = DeltaTable(path).to_pyarrow_dataset()
    return [seq for (seq,) in duckdb.connect().from_arrow(events).project("seq").fetchall()]


READERS: Mapping[str, Callable[[str], list[int]]] = {
    "DuckDB": in_duckdb,
    "pandas": lambda path: DeltaTable(path).to_pandas(columns=["seq"])["seq"].tolist(),
    "Polars": lambda path: pl.scan_delta(path).select("seq").collect()["seq"].to_list(),
}


def append(data_folder: DataFolder, lake: LakeWriter, events: int) -> None:
    """Write new events to the journal, and append them to the lake as the pipeline does."""
    first = len(data_folder.table(EVENTS)) + 1
    data_folder.write(events)
    append_events(lake, first, first + events - 1)


def compact(lake: LakeWriter) -> None:
    """Compact `events` as the pipeline does."""
    lake.spark.sql(f"OPTIMIZE {lake.name(EVENTS)}").collect()


@pytest.mark.slow(reason="four readers take turns while the pipeline writes")
def test_every_reader_finds_all_events_up_to_one_while_they_are_written_and_compacted(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    path, lake = data_folder.lake.path(EVENTS), LakeWriter.of(spark, data_folder.folder)

    def in_spark(path: str) -> list[int]:
        return [row.seq for row in spark.read.format("delta").load(path).select("seq").collect()]

    def write() -> None:
        append(data_folder, lake, EACH)
        compact(lake)
        append(data_folder, lake, EACH)

    readers: dict[str, Callable[[str], list[int]]] = {**READERS, "Spark": in_spark}
    before = dict.fromkeys(readers, 0)
    data_folder.write(EACH)
    write_all_tables(data_folder.folder)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        while not writing.done():
            for name, read in readers.items():
                seqs = sorted(read(path))
                assert seqs == list(range(1, len(seqs) + 1)), name
                assert len(seqs) >= before[name], name
                before[name] = len(seqs)
        writing.result(WITHIN)
    assert {len(read(path)) for read in readers.values()} == {3 * EACH}


@pytest.mark.slow(reason="two streams of Spark run to their end")
def test_a_spark_job_follows_new_events_over_compaction_and_retention_as_written(
    spark: SparkSession, data_folder: DataFolder, tmp_path: Path
) -> None:
    """The session is that of the tests."""
    (program,) = (block.text for block in blocks(HOW_TO / "follow-lake.md") if block.title == "stream.py")
    for shown, real in {"data/lake": str(data_folder.lake.folder), '"copy': f'"{tmp_path}/copy'}.items():
        assert shown in program
        program = program.replace(shown, real)

    def follow() -> list[int]:
        exec(compile(program, "stream.py", "exec"), {})
        return sorted(row.seq for row in spark.read.parquet(f"{tmp_path}/copy").select("seq").collect())

    data_folder.write(8)
    write_all_tables(data_folder.folder)
    assert follow() == list(range(1, 9))
    lake = LakeWriter.of(spark, data_folder.folder)
    append(data_folder, lake, 2)
    compact(lake)
    spark.sql(f"DELETE FROM {lake.name(EVENTS)} WHERE revision = 1").collect()
    assert follow() == list(range(1, 11)), "each event once, though files were rewritten"

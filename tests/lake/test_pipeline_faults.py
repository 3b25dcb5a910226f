"""Faults of journal, lake, disk and clock on a real Spark: each error names the step that repairs it.

After each fault comes the step that the message names, or the end of its cause; then the lake equals the journal again.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_store.errors import LakeUnfit, StoreError, StoreUnavailable
from spark_store.lake import durability, reader
from spark_store.lake.tables import EVENTS, LATEST, Table
from spark_store.pipeline.loop import PipelineLoop, translate_error
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from tests.support.journal_entries import change
from tests.support.lake.checker import check
from tests.support.lake.java_process import java_pid
from tests.support.lake.pipeline_process import STARVED, TRIES, WITHIN, DataFolder, PipelineMessages, lamp, take_all
from tests.support.lake.twin_changes import tamper, trim
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.spark

FOREVER = timedelta(days=999)


def log_files(data_folder: DataFolder, table: Table) -> list[Path]:
    return sorted((Path(data_folder.lake.path(table)) / "_delta_log").glob("*.json"))


def data_files(data_folder: DataFolder, table: Table) -> list[Path]:
    return list(Path(data_folder.lake.path(table)).glob("*.parquet"))


@contextmanager
def damaged(file: Path, content: bytes) -> Iterator[None]:
    """Give a file another content for a while, and keep its modification time.

    A power failure may have damaged newer files.
    """
    before, stat = (file.read_bytes(), file.stat()) if file.exists() else (None, None)
    file.write_bytes(content)
    if stat is not None:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    try:
        yield
    finally:
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)


@contextmanager
def full_disk(spark: SparkSession, size: int) -> Iterator[None]:
    """Limit the size of files of Spark's Java process, so that its writes fail for real."""
    resource.prlimit(java_pid(spark), resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(java_pid(spark), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def corrupted(file: Path) -> bytes:
    """Return the content of a file with one changed byte in a page."""
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    begin = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    content = bytearray(file.read_bytes())
    content[begin + column.total_compressed_size - 1] ^= 1
    return bytes(content)


def write_much(data_folder: DataFolder, number: int) -> None:
    """Write one event that makes a large file even when compressed."""
    value = json.dumps(os.urandom(400_000).hex()).encode()
    data_folder.append([change(lamp(number), 1, value)])


@pytest.mark.soak(shard="lake")
def test_each_fault_is_reported_with_its_step_and_overcome_by_it(spark: SparkSession, data_folder: DataFolder) -> None:
    data_folder.write(20)
    take_all(spark, data_folder)
    target = LakeWriter.of(spark, data_folder.folder)

    def fails(kind: type[StoreError], *texts: str) -> None:
        with pytest.raises(StoreError) as caught:
            take_all(spark, data_folder)
        assert type(caught.value) is kind, caught.value
        for words in texts:
            assert words in str(caught.value)

    # A half-written watermark is ignored like a missing one; unknown columns of a newer version are kept.
    data_folder.lake.watermark.write_bytes(b'{"seq": 1')
    for table in (EVENTS, LATEST):
        spark.sql(f"ALTER TABLE {target.name(table)} ADD COLUMN tomorrow STRING").collect()
    data_folder.write(5)
    assert [event for event, _ in take_all(spark, data_folder)][:3] == ["watermark lost", "catching up", "following"]
    data_folder.assert_equal()

    # A full disk during a batch: the batch leaves no rows, and a run with free space writes them.
    write_much(data_folder, 100)
    with full_disk(spark, 300_000):
        fails(StoreUnavailable, "free space")
    assert check(data_folder.folder, after_kill=True) == []
    take_all(spark, data_folder)
    data_folder.assert_equal()

    # A page of the journal is damaged.
    size = data_folder.lake.journal.stat().st_size
    content = data_folder.lake.journal.read_bytes()
    trap = content[: size // 4 // 4096 * 4096] + b"\xff" * (size - size // 4 // 4096 * 4096)
    data_folder.lake.watermark.unlink()
    with damaged(data_folder.lake.journal, trap):
        fails(StoreUnavailable, "journal.db", "stop the service, and restore the file from a backup")
    # The journal has a newer schema version.
    (version,) = tamper(data_folder, "PRAGMA user_version")
    tamper(data_folder, "PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="start the newer service"):
        take_all(spark, data_folder)
    tamper(data_folder, f"PRAGMA user_version = {version}")

    # A table has a newer format, or a file of its log is half-written or empty.
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}
    newest = log_files(data_folder, EVENTS)[-1]
    later = newest.with_name(f"{int(newest.stem) + 1:020}.json")
    with damaged(later, json.dumps({"protocol": features}).encode()):
        fails(LakeUnfit, "start the newer version of the service")
    with damaged(newest, newest.read_bytes()[:200]):
        fails(LakeUnfit, "restore the table's folder from a backup")
    with damaged(newest, b""):
        fails(LakeUnfit, newest.name, "found an empty file")

    # A power failure during a batch: writes that had not reached the disk are repeated.
    take_all(spark, data_folder)
    for table in (EVENTS, LATEST):
        published, at = data_folder.lake.watermark.read_bytes(), data_folder.lake.watermark.stat().st_mtime_ns
        data_folder.write(5)
        take_all(spark, data_folder)
        data_folder.lake.watermark.write_bytes(published)
        os.utime(data_folder.lake.watermark, ns=(at, at))
        os.truncate(newest := log_files(data_folder, table)[-1], 0)
        assert durability.repair(data_folder.lake) == [newest]
        take_all(spark, data_folder)
        data_folder.assert_equal()

    # A corrupt page must be noticed, because its rows would look valid.
    take_all(spark, data_folder)
    file = Path(data_folder.lake.path(LATEST)) / next(iter(reader.files(data_folder.lake, LATEST)))
    with (
        damaged(file, corrupted(file)),
        pytest.raises(Py4JJavaError, match="could not verify page integrity") as caught,
    ):
        target.read(LATEST).collect()
    assert type(translate_error(caught.value)) is LakeUnfit

    # A file of `latest` is half-written: the table is moved away and created again.
    data_folder.write(7)
    for file in data_files(data_folder, LATEST):
        os.truncate(file, 100)
    fails(LakeUnfit, "/lake/latest", "move the folder away")
    shutil.rmtree(data_folder.lake.path(LATEST))
    take_all(spark, data_folder)
    data_folder.assert_equal()


class Running:
    """A stream that follows, in a thread."""

    def __init__(
        self, spark: SparkSession, data_folder: DataFolder, clock: Callable[[], datetime], **options: Any
    ) -> None:
        self.messages: PipelineMessages = []
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._stream = PipelineLoop(
            LakeWriter.of(spark, data_folder.folder),
            lambda event, **fields: self.messages.append((event, fields)),
            PipelineSettings(answers_queries=False, **options),
            self.stopping,
            clock,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self, tries: int = TRIES) -> None:
        try:
            self._stream.run()
        except StoreError as error:
            if STARVED in str(error) and not self.stopping.is_set() and tries > 1:
                return self._run(tries - 1)
            self.error = error
        return None

    def wait_for(self, event: str, **fields: Any) -> None:
        def found() -> bool:
            messages = list(self.messages)
            return any(name == event and fields.items() <= given.items() for name, given in messages)

        wait_until_sync(lambda: found() or not self.thread.is_alive(), WITHIN)
        assert found(), (event, self.messages, self.error)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join(WITHIN)


@pytest.mark.soak(shard="lake")
def test_a_loop_outlives_a_clock_that_jumps_and_maintenance_that_fails_and_notices_that_its_lake_is_gone(
    spark: SparkSession, data_folder: DataFolder
) -> None:
    back = 0.0
    options = {"optimize_batches": 3, "merge_every": timedelta(0), "optimize_every": FOREVER, "vacuum_every": FOREVER}
    data_folder.write(10)
    with Running(
        spark, data_folder, lambda: datetime.now(UTC) - timedelta(seconds=back), interval=0.5, **options
    ) as running:
        running.wait_for("batch", seq=10)
        back = 3600.0
        data_folder.write(10)
        running.wait_for("batch", seq=20)
        # A damaged file prevents compaction, but new events are still written.
        file = data_files(data_folder, EVENTS)[0]
        with damaged(file, file.read_bytes()[:100]):
            data_folder.write(10)
            running.wait_for("batch", seq=30)
            running.wait_for("maintenance failed")
            data_folder.write(10)
            running.wait_for("batch", seq=40)
        reason = next(fields["reason"] for event, fields in running.messages if event == "maintenance failed")
        assert "restore the table's folder from a backup" in reason
        # The lake is deleted: the stream ends without creating a table of the latest events only.
        shutil.rmtree(data_folder.lake.folder)
        data_folder.write(10)
        wait_until_sync(lambda: not running.thread.is_alive(), WITHIN)
    assert isinstance(running.error, StoreUnavailable | LakeUnfit)
    assert not log_files(data_folder, EVENTS)
    # The next one creates it again while the journal is complete; a trimmed journal is refused.
    take_all(spark, data_folder)
    data_folder.assert_equal()
    shutil.rmtree(data_folder.lake.folder)
    trim(data_folder, 5)
    with pytest.raises(StoreUnavailable, match="restore the folder `lake` from a backup"):
        take_all(spark, data_folder)
    assert not data_folder.lake.has(EVENTS)

"""Errors of SQLite, of the system, of Delta and of Spark, in our words, with the next step."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_store.errors import (
    LakeBusy,
    LakeUnfit,
    StoreError,
    StoreUnavailable,
    translate_lake_error,
    translate_spark_error,
    translate_sqlite_error,
    translate_system_error,
)
from tests.support.table import each_row


def test_a_file_that_is_not_a_database_is_reported_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    file.write_bytes(b"x" * 4096)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        sqlite3.connect(file).execute("SELECT * FROM sqlite_master")
    assert "restore the file from a backup" in str(translate_sqlite_error(file, caught.value))
    assert str(translate_sqlite_error("j", sqlite3.OperationalError("odd"))) == "j: odd"


def test_a_journal_that_cannot_be_opened_reports_a_full_disk() -> None:
    # As SQLite reports it if the journal's shared memory cannot grow.
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    assert "the disk is full" in str(translate_sqlite_error("j", error))
    error.sqlite_errorname = "SQLITE_IOERR_READ"
    assert "check the disk" in str(translate_sqlite_error("j", error))


def test_a_full_disk_is_reported_as_such_for_any_limit() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert "free space" in str(translate_system_error("f", OSError(number, os.strerror(number))))
    found = str(translate_system_error("f", OSError(errno.EACCES, "Permission denied"), "cannot be written"))
    assert found == "f: cannot be written: Permission denied"


@each_row(
    ("text", "kind", "message"),
    [
        (
            "Task failed: spark_store.errors.LakeUnfit: journal.db: expected every event from 1 to 9\n at java",
            LakeUnfit,
            "journal.db: expected every event from 1 to 9",
        ),
        (
            "spark_store.errors.StoreUnavailable: journal.db: malformed; stop",
            StoreUnavailable,
            "journal.db: malformed; stop",
        ),
        ("spark_store.errors.SchemaTooNew: journal.db: found schema 9", LakeUnfit, "journal.db: found schema 9"),
        (
            "java.io.IOException: No space left on device\n\tat java.base/",
            StoreUnavailable,
            "No space left on device; the disk is full: free space; a running service then continues automatically",
        ),
        ("java.io.IOException: File too large", StoreUnavailable, "File too large; the disk is full"),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///d/lake/events/part-0.parquet\n"
            "Caused by: java.io.FileNotFoundException: /d/lake/events/part-0.parquet (Too many open files)\n\tat java",
            StoreUnavailable,
            "/d/lake/events/part-0.parquet: Too many open files; raise the limit",
        ),
        (
            "java.io.FileNotFoundException: /d/lake/pipeline/tmp/1/blockmgr-3/0c/temp_shuffle_7 (Permission denied)",
            StoreUnavailable,
            "Permission denied; check the owner and permissions of the lake's folder",
        ),
        (
            "java.io.FileNotFoundException: /d/x.index (Read-only file system)",
            StoreUnavailable,
            "check the mount options",
        ),
        ("java.io.FileNotFoundException: /d/x.index (Input/output error)", StoreUnavailable, "check the disk"),
        ("java.io.FileNotFoundException: /d/x.index (Cannot allocate memory)", StoreUnavailable, "give the machine"),
        (
            "java.io.FileNotFoundException: /d/my lake/pipeline/lake/events/part-0.parquet (No such file or directory)",
            StoreUnavailable,
            "restore the table's folder",
        ),
        (
            "java.io.FileNotFoundException: File file:/d/lake/latest/_delta_log/00000000000000000001.json does not exist",
            StoreUnavailable,
            "/d/lake/latest/_delta_log/00000000000000000001.json: a file of the lake is missing",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///d/lake/events/part-0.parquet\n"
            "Caused by: java.io.IOException: Stale file handle\n\tat java",
            StoreUnavailable,
            "Py4JJavaError: [FAILED_READ_FILE.NO_HINT]",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///d/lake/events/part-0.parquet\n"
            "Caused by: java.lang.RuntimeException: footer is too large: 3447435189to be read\n\tat java",
            LakeUnfit,
            "/d/lake/events/part-0.parquet: expected a file that can be read",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///d/lake/events/part-0.parquet\n"
            "Caused by: java.io.EOFException\n\tat java",
            LakeUnfit,
            "/d/lake/events/part-0.parquet: expected a file that can be read",
        ),
        ("Python worker exited unexpectedly (crashed)\nCaused by: java.io.EOFException", StoreUnavailable, "Py4JJava"),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///d/lake/events/part-0.parquet\n"
            "Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error\n\tat java",
            LakeUnfit,
            "/d/lake/events/part-0.parquet: expected a file that can be read",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///d/lake/events/part-0.parquet\n"
            "Caused by: could not verify page integrity, CRC checksum verification failed\n\tat java",
            LakeUnfit,
            "/d/lake/events/part-0.parquet: expected a file that can be read",
        ),
        (
            "java.io.FileNotFoundException: /d/lake/pipeline/tmp/1/blockmgr-3/0c/shuffle_1_2.index (No such file)\n\tat",
            StoreUnavailable,
            "Py4JJavaError: java.io",
        ),
        (
            "io.delta.exceptions.ConcurrentTransactionException: [DELTA_CONCURRENT_TRANSACTION] Concurrent",
            LakeBusy,
            "DELTA_CONCURRENT_TRANSACTION: another pipeline wrote the same table",
        ),
        ("FileNotFoundException: /tmp/blockmgr-7/30/temp_shuffle_1 (No such file)", StoreUnavailable, "Py4JJava"),
        (
            "FileNotFoundException: /tmp/blockmgr-7/30/x (No such file)\nfile:/d/events/1.parquet is not a Parquet file",
            LakeUnfit,
            "/d/events/1.parquet: expected",
        ),
        ("[DELTA_UNSUPPORTED_FEATURES_FOR_READ] Unsupported Delta read feature", LakeUnfit, "start the newer version"),
        (
            "awaitResult\nCaused by: file:/d/lake/latest/part-0.zstd.parquet is not a Parquet file. Expected magic",
            LakeUnfit,
            "/d/lake/latest/part-0.zstd.parquet: expected a file that can be read",
        ),
        (
            "[INTERNAL_ERROR] odd\n  at org.apache",
            StoreUnavailable,
            "Py4JJavaError: [INTERNAL_ERROR] odd at org.apache",
        ),
    ],
)
def test_a_spark_error_becomes_a_store_error_with_the_next_step(
    text: str, kind: type[StoreError], message: str
) -> None:
    found = translate_spark_error("Py4JJavaError", text)
    assert type(found) is kind
    assert str(found).startswith(message) or message in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("reason", "step"),
    [("Too many open files (os error 24)", "raise"), ("Permission denied (os error 13)", "permissions")],
)
def test_a_table_that_the_system_does_not_open_is_not_damaged(reason: str, step: str) -> None:
    found = translate_lake_error(
        "/d/lake/events", OSError(f"Could not open Parquet input source '1.parquet': {reason}")
    )
    assert type(found) is StoreUnavailable
    assert step in str(found)


def later_protocol(table: Path) -> None:
    feature = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": feature}), encoding="utf-8")


def much_later_protocol(table: Path) -> None:
    versions = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps(versions), encoding="utf-8")


def half_a_log(table: Path) -> None:
    os.truncate(table / "_delta_log" / f"{0:020}.json", 50)


def half_a_file(table: Path) -> None:
    (file,) = table.glob("*.parquet")
    os.truncate(file, 100)


def no_file(table: Path) -> None:
    (file,) = table.glob("*.parquet")
    file.unlink()


@pytest.mark.parametrize(
    ("damage", "step"),
    [
        (later_protocol, "start the newer version"),
        (much_later_protocol, "start the newer version"),
        (half_a_log, "restore the table's folder from a backup"),
        (half_a_file, "restore the table's folder from a backup"),
    ],
)
def test_a_delta_lake_error_becomes_a_lake_error_with_the_next_step(
    damage: Callable[[Path], None], step: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"a": [1]}))
    damage(table)
    with pytest.raises(Exception, match=r".") as caught:
        DeltaTable(table).to_pyarrow_table()
    found = translate_lake_error(table, caught.value)
    assert isinstance(found, LakeUnfit)
    assert step in str(found)
    assert "\n" not in str(found)


def test_a_missing_file_differs_from_a_damaged_one(tmp_path: Path) -> None:
    """Its disk may be mounted later, and then it is there again."""
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"a": [1]}))
    no_file(table)
    with pytest.raises(Exception, match="not found") as caught:
        DeltaTable(table).to_pyarrow_table()
    found = translate_lake_error(table, caught.value)
    assert type(found) is StoreUnavailable
    assert "is missing" in str(found)
    assert "mount the folder, or restore the table's folder from a backup" in str(found)

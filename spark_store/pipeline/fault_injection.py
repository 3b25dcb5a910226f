"""Seven points at which tests may kill the pipeline, or pause it.

They do nothing unless the variable SPARK_STORE_CRASH is `POINT:VICTIM:FILE`: when the point is reached and the file exists,
the file is removed and the victim is killed with SIGKILL: `driver` (this process), `java` (the Java process alone) or
`service` (the parent process). So a restarted pipeline dies once for each file that was created. With `pause` for a victim
both processes are stopped by SIGSTOP, until someone continues them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from pyspark.sql import SparkSession

from spark_store.pipeline.session import java_pid

VARIABLE = "SPARK_STORE_CRASH"
_LOOK_SECONDS = 0.002


class FaultPoint(str, Enum):
    """A place in a batch, or beside it."""

    BEFORE_READ = "before-read"
    BEFORE_COMMIT = "before-commit"
    AFTER_APPEND = "after-append"
    AFTER_MERGE = "after-merge"
    BEFORE_WATERMARK = "before-watermark"
    DURING_COMPACTION = "during-compaction"
    DURING_FULL_SNAPSHOT = "during-full-snapshot"


def reach(point: FaultPoint, spark: SparkSession) -> None:
    """Kill the victim here, if a test wants it."""
    if (planned := _planned(point)) is not None:
        _kill(*planned, spark)


@contextlib.contextmanager
def during(point: FaultPoint, spark: SparkSession, folder: Path) -> Iterator[None]:
    """Kill the victim when the first new file appears in `folder`, if a test wants it."""
    if (planned := _planned(point)) is None:
        yield
        return
    before, is_over = set(folder.rglob("*.parquet")), threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            if set(folder.rglob("*.parquet")) - before:
                _kill(*planned, spark)
                return

    watcher = threading.Thread(target=watch, name="crash", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _planned(point: FaultPoint) -> tuple[str, Path] | None:
    """Return victim and file, if this point is planned and the file exists."""
    wanted, _, rest = os.environ.get(VARIABLE, "").partition(":")
    victim, _, file = rest.partition(":")
    return (victim, Path(file)) if wanted == point.value and file and Path(file).exists() else None


def _kill(victim: str, file: Path, spark: SparkSession) -> None:
    if victim == "pause":
        file.unlink()
        for pid in (java_pid(spark), os.getpid()):
            os.kill(pid, signal.SIGSTOP)
        return
    pid = {"java": lambda: java_pid(spark), "service": os.getppid, "driver": os.getpid}[victim]()
    file.unlink()
    os.kill(pid, signal.SIGKILL)
    # A signal to another process takes a moment: nothing may happen in it.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _is_alive(pid):
        time.sleep(_LOOK_SECONDS)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

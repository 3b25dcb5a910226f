"""Seven points at which a test may have the pipeline killed, to see that nothing is lost and nothing comes twice.

They do nothing unless the variable SPARK_STORE_CRASH says `POINT:VICTIM:FILE`: when the point is reached and the file
exists, the file is removed and the victim is killed with SIGKILL: `driver` (this process), `java` (the Java process
alone) or `service` (the process that started this one). So a pipeline that is started again with the same variable dies
once for each file that was made.
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
    """Where in a batch, or beside it.

    Append and merge run at the same time: `BETWEEN` is when the first of them is done, whichever that is, and the other may
    not be.
    """

    BEFORE_READ = "before-read"
    AFTER_APPEND = "after-append"
    BETWEEN = "between-append-and-merge"
    AFTER_MERGE = "after-merge"
    BEFORE_WATERMARK = "before-watermark"
    DURING_COMPACTION = "during-compaction"
    DURING_MOMENT = "during-moment"


def reach(point: FaultPoint, spark: SparkSession) -> None:
    """Die here, if a test wants that."""
    if (planned := _planned(point)) is not None:
        _kill(*planned, spark)


@contextlib.contextmanager
def during(point: FaultPoint, spark: SparkSession, folder: Path) -> Iterator[None]:
    """Die, if a test wants that, when the first new file appears in `folder`: amid the work that writes it."""
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
    """Victim and file, if this point is meant and the file is there."""
    wanted, _, rest = os.environ.get(VARIABLE, "").partition(":")
    victim, _, file = rest.partition(":")
    return (victim, Path(file)) if wanted == point.value and file and Path(file).exists() else None


def _kill(victim: str, file: Path, spark: SparkSession) -> None:
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

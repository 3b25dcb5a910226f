"""Seven points at which tests kill the pipeline, or pause it.

`plant` adds them to a pipeline process if the variable SPARK_STORE_CRASH is `POINT:VICTIM:FILE`: when the point is
reached and the file exists, the file is removed and the victim is killed with SIGKILL: `driver` (this process), `java`
(the Java process alone) or `service` (the parent process). So a restarted pipeline dies once for each file that was
created. With the victim `pause`, both processes are stopped by SIGSTOP, until the test continues them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

VARIABLE = "SPARK_STORE_CRASH"
_LOOK_SECONDS = 0.002


class FaultPoint(str, Enum):
    """A point of a batch or of maintenance."""

    BEFORE_READ = "before-read"
    BEFORE_COMMIT = "before-commit"
    AFTER_APPEND = "after-append"
    AFTER_MERGE = "after-merge"
    BEFORE_WATERMARK = "before-watermark"
    DURING_COMPACTION = "during-compaction"
    DURING_FULL_SNAPSHOT = "during-full-snapshot"


def plant() -> None:
    """Add the points to the pipeline of this process, if the variable names one."""
    if VARIABLE not in os.environ:
        return
    from spark_store.pipeline import snapshots, table_maintenance, tables
    from spark_store.pipeline.loop import PipelineLoop

    _before(tables, "append_events", FaultPoint.BEFORE_READ)
    _before(tables, "commit_append", FaultPoint.BEFORE_COMMIT)
    _after(tables, "append_events", FaultPoint.AFTER_APPEND)
    _after(tables, "merge_rows", FaultPoint.AFTER_MERGE)
    _during(table_maintenance, "optimize", FaultPoint.DURING_COMPACTION)
    _during(snapshots, "take_full_snapshot", FaultPoint.DURING_FULL_SNAPSHOT)
    loops: Any = PipelineLoop
    publish = loops._publish

    def publish_positions(loop: PipelineLoop, **changes: Any) -> None:
        if changes.keys() & {"seq", "appended"}:
            _reach(FaultPoint.BEFORE_WATERMARK, loop._target)
        publish(loop, **changes)

    loops._publish = publish_positions


def _before(module: Any, name: str, point: FaultPoint) -> None:
    plain: Callable[..., Any] = getattr(module, name)

    def call(target: Any, *given: Any, **options: Any) -> Any:
        _reach(point, target)
        return plain(target, *given, **options)

    setattr(module, name, call)


def _after(module: Any, name: str, point: FaultPoint) -> None:
    plain: Callable[..., Any] = getattr(module, name)

    def call(target: Any, *given: Any, **options: Any) -> Any:
        found = plain(target, *given, **options)
        _reach(point, target)
        return found

    setattr(module, name, call)


def _during(module: Any, name: str, point: FaultPoint) -> None:
    plain: Callable[..., Any] = getattr(module, name)

    def call(target: Any, *given: Any) -> Any:
        with _killed_at_a_new_file(point, target):
            return plain(target, *given)

    setattr(module, name, call)


def _reach(point: FaultPoint, target: Any) -> None:
    """Kill the victim if this point is planned."""
    if (planned := _planned(point)) is not None:
        _kill(*planned, target)


@contextlib.contextmanager
def _killed_at_a_new_file(point: FaultPoint, target: Any) -> Iterator[None]:
    """Kill the victim when the first new data file of the lake appears, if this point is planned."""
    if (planned := _planned(point)) is None:
        yield
        return
    folder: Path = target.lake.folder
    before, is_over = set(folder.rglob("*.parquet")), threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            if set(folder.rglob("*.parquet")) - before:
                _kill(*planned, target)
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


def _kill(victim: str, file: Path, target: Any) -> None:
    from tests.support.lake.java_process import java_pid

    java = java_pid(target.spark)
    if victim == "pause":
        file.unlink()
        for pid in (java, os.getpid()):
            os.kill(pid, signal.SIGSTOP)
        return
    pid = {"java": java, "service": os.getppid(), "driver": os.getpid()}[victim]
    file.unlink()
    os.kill(pid, signal.SIGKILL)
    # The signal takes a moment to arrive; do nothing more until then.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _is_alive(pid):
        time.sleep(_LOOK_SECONDS)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

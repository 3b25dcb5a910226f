"""A data folder with a real journal, the pipeline as a process, and a comparison of lake and journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from deltalake import DeltaTable
from msgspec import structs
from pyspark.sql import SparkSession

from mappings.ids import EntityId, EntityType
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.lake.tables import Lake, Table
from spark_store.maintenance.verify import verify
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from spark_store.records import Change
from tests.support.journal_entries import change
from tests.support.lake.checker import check
from tests.support.wait import wait_until_sync

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options for short-lived processes: the second compiler does not pay off."""

CHEAP = {
    # Interpret expressions: to generate and compile code takes longer than a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task instead of the product's two.
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}
"""Settings of the Spark sessions of `make test`, which save a third of their CPU time.

The product, `make soak` and the pipeline processes of tests do not have them.
"""

_ROOT = str(Path(__file__).parents[3])
MAIN = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.support.lake.fault_injection import plant; plant(); "
    "from spark_store.pipeline.__main__ import main; sys.exit(main())"
)
"""The program of a pipeline process of tests.

It has fault points, and normal priority: with the low one of `python -m spark_store.pipeline`, it would wait for other
tests.
"""


def given(**settings: Any) -> tuple[str, str]:
    """Return the option of a pipeline process with these settings; later ones override earlier ones."""
    return "--settings", json.dumps(settings)


AT_ONCE = given(interval=0.2, merge_every=0)
"""The option of pipelines that tests wait for."""

WITHIN = 400.0
"""Seconds for a Java process to start and to work on a busy machine."""


def lamp(number: int) -> EntityId:
    return EntityId(EntityType.THING, "acme.site", f"lamp-{number}")


class DataFolder:
    """A data folder with a journal and a lake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = Lake(folder)
        folder.mkdir(parents=True, exist_ok=True)
        Journal.open(self.lake.journal).close()

    def write(self, events: int, entities: int = 7) -> None:
        """Append `events` events, to the entities in turn."""
        journal = Journal.open(self.lake.journal)
        try:
            newest = journal.newest_seq()
            revisions = {number: journal.latest(lamp(number)) for number in range(entities)}
            changes: list[Change] = []
            for position in range(newest, newest + events):
                number = position % entities
                revisions[number] += 1
                changes.append(counted(lamp(number), revisions[number]))
            journal.append(changes)
        finally:
            journal.close()

    def append(self, changes: Sequence[Change]) -> None:
        journal = Journal.open(self.lake.journal)
        try:
            journal.append(changes)
        finally:
            journal.close()

    def table(self, table: Table) -> list[dict[str, Any]]:
        """Return the rows of a table, read without Spark."""
        rows: list[dict[str, Any]] = DeltaTable(self.lake.path(table)).to_pyarrow_table().to_pylist()
        return rows

    def assert_equal(self) -> None:
        """Check that both tables equal the journal, without duplicates."""
        assert check(self.folder) == []


def counted(entity: EntityId, revision: int) -> Change:
    """Return an event with a counter and the state after it, which has no policy."""
    made = change(entity, revision)
    return structs.replace(made, snapshots=(structs.replace(made.snapshots[0], policy=None),))


PipelineMessages = list[tuple[str, dict[str, Any]]]


STARVED = "Python worker failed to connect back"
"""Spark's error if a Python worker does not start within ten seconds.

This happens on a busy machine, and there is no setting for it. Like the service, tests start such a pipeline again,
`TRIES` times at most.
"""

TRIES = 5


def differences(data_folder: DataFolder) -> list[str]:
    """Return the differences that `verify` finds."""
    return [str(it) for it in verify(data_folder.lake).differences]


def take_all(spark: SparkSession, data_folder: DataFolder, **options: Any) -> PipelineMessages:
    """Move all events of the journal by a pipeline in this process, and return its messages."""
    for attempt in range(TRIES):
        messages: PipelineMessages = []
        stream = PipelineLoop(
            LakeWriter.of(spark, data_folder.folder),
            lambda event, messages=messages, **fields: messages.append((event, fields)),
            PipelineSettings(once=True, **options),
            threading.Event(),
        )
        try:
            stream.run()
        except StoreUnavailable as error:
            if STARVED not in str(error) or attempt == TRIES - 1:
                raise
        else:
            return messages
    raise AssertionError("unreachable")


class PipelineProcess:
    """A pipeline process with its output in a file."""

    def __init__(self, data_folder: DataFolder, action: str, *options: str, **variables: str) -> None:
        self.output_file = tempfile.NamedTemporaryFile(dir=data_folder.folder, suffix=".log", delete=False)  # noqa: SIM115
        self._command = [sys.executable, "-c", MAIN, action, "--data-dir", str(data_folder.folder), *AT_ONCE, *options]
        self._variables = {"JDK_JAVA_OPTIONS": QUICK_JAVA, "PYTHONUNBUFFERED": "1", **variables}
        self._tries = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._tries += 1
        self._before = len(self.output())
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=self.output_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._variables},
        )

    def keeps_running(self) -> bool:
        """Return whether it runs; restart it if it failed only because the machine was busy, like the service."""
        if self.is_starved and self._tries < TRIES:
            self._let_go()
            self.process = self._start()
        return self.process.poll() is None

    def output(self) -> str:
        return Path(self.output_file.name).read_text(encoding="utf-8", errors="replace")

    def messages(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return its messages so far, all or of one event."""
        lines = [json.loads(line) for line in self.output().splitlines() if line.startswith('{"event"')]
        return [line for line in lines if event is None or line["event"] == event]

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Return the first message with these fields. Raises AssertionError if the process ends before."""

        def found() -> list[dict[str, Any]]:
            return [it for it in self.messages(event) if all(it.get(name) == value for name, value in fields.items())]

        wait_until_sync(lambda: bool(found()) or not self.keeps_running(), WITHIN)
        assert found(), f"expected {event} {fields}:\n{self.output()}"
        return found()[0]

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(WITHIN)

    @property
    def is_starved(self) -> bool:
        """Whether it failed only because the machine was busy."""
        return self.process.poll() == 1 and STARVED in self.output()[self._before :]

    def java(self) -> list[psutil.Process]:
        return [it for it in psutil.Process(self.process.pid).children() if "java" in it.name()]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Kill the process if it runs, and close its files."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WITHIN)
        self._let_go()
        self.output_file.close()

    def _let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

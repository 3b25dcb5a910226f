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
"""A Java process of a test does not live long enough for its second compiler to be worth its time."""

CHEAP = {
    # Expressions are interpreted. To write and compile code for each takes longer than a few rows do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task where the product has two.
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}
"""Settings of the sessions in `make test`: they save a third of their CPU time. The product does not have them, nor does
`make soak`; nor do the pipeline processes of tests."""

_ROOT = str(Path(__file__).parents[3])
MAIN = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.support.lake.fault_injection import plant; plant(); "
    "from spark_store.pipeline.__main__ import main; sys.exit(main())"
)
"""Without the low priority that `python -m spark_store.pipeline` gives itself: other tests would keep it from its work. With
the points at which a test kills it."""


def given(**settings: Any) -> tuple[str, str]:
    """The option of a pipeline process with these settings; later ones override earlier ones."""
    return "--settings", json.dumps(settings)


AT_ONCE = given(interval=0.2, merge_every=0)
"""The option of pipelines that tests wait for."""

WITHIN = 400.0
"""Seconds for a Java process to start and to do something, on a machine that is busy with other things."""


def lamp(number: int) -> EntityId:
    return EntityId(EntityType.THING, "acme.site", f"lamp-{number}")


class DataFolder:
    """A data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = Lake(folder)
        folder.mkdir(parents=True, exist_ok=True)
        Journal.open(self.lake.journal).close()

    def write(self, events: int, entities: int = 7) -> None:
        """So many events more, taking the entities in turn."""
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
        """The rows of a table, read without Spark."""
        rows: list[dict[str, Any]] = DeltaTable(self.lake.path(table)).to_pyarrow_table().to_pylist()
        return rows

    def assert_equal(self) -> None:
        """Both tables are what the journal is, row for row, and nothing is there twice."""
        assert check(self.folder) == []


def counted(entity: EntityId, revision: int) -> Change:
    """An event that counts up, and the state that its entity's events make: none of them names a policy."""
    made = change(entity, revision)
    return structs.replace(made, snapshots=(structs.replace(made.snapshots[0], policy=None),))


Said = list[tuple[str, dict[str, Any]]]


STARVED = "Python worker failed to connect back"
"""Spark waits ten seconds for a worker, and no setting says otherwise: on a machine that is busy with other things that may
not be enough. The service starts such a pipeline again, and so do the tests, `TRIES` times in all."""

TRIES = 5


def differences(data_folder: DataFolder) -> list[str]:
    """The findings of `verify`."""
    return [str(it) for it in verify(data_folder.lake).differences]


def take_all(spark: SparkSession, data_folder: DataFolder, **options: Any) -> Said:
    """Everything that the journal has, moved by a stream in this process; what was said."""
    for attempt in range(TRIES):
        said: Said = []
        stream = PipelineLoop(
            LakeWriter.of(spark, data_folder.folder),
            lambda event, said=said, **fields: said.append((event, fields)),
            PipelineSettings(once=True, **options),
            threading.Event(),
        )
        try:
            stream.run()
        except StoreUnavailable as error:
            if STARVED not in str(error) or attempt == TRIES - 1:
                raise
        else:
            return said
    raise AssertionError("unreachable")


class PipelineProcess:
    """A pipeline process, and what it prints in a file."""

    def __init__(self, data_folder: DataFolder, action: str, *options: str, **variables: str) -> None:
        self.said_file = tempfile.NamedTemporaryFile(dir=data_folder.folder, suffix=".log", delete=False)  # noqa: SIM115
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
            stdout=self.said_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._variables},
        )

    def goes_on(self) -> bool:
        """Whether it runs. One that ended only because the machine was too busy is started again, as the service does."""
        if self.is_starved and self._tries < TRIES:
            self._let_go()
            self.process = self._start()
        return self.process.poll() is None

    def output(self) -> str:
        return Path(self.said_file.name).read_text(encoding="utf-8", errors="replace")

    def messages(self, event: str | None = None) -> list[dict[str, Any]]:
        """Its messages so far, all or of one kind."""
        lines = [json.loads(line) for line in self.output().splitlines() if line.startswith('{"event"')]
        return [line for line in lines if event is None or line["event"] == event]

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first event of this kind with these fields. Raises AssertionError where the process ends before it."""

        def found() -> list[dict[str, Any]]:
            return [it for it in self.messages(event) if all(it.get(name) == value for name, value in fields.items())]

        wait_until_sync(lambda: bool(found()) or not self.goes_on(), WITHIN)
        assert found(), f"expected {event} {fields}:\n{self.output()}"
        return found()[0]

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(WITHIN)

    @property
    def is_starved(self) -> bool:
        """Whether it ended only because the machine was too busy."""
        return self.process.poll() == 1 and STARVED in self.output()[self._before :]

    def java(self) -> list[psutil.Process]:
        return [it for it in psutil.Process(self.process.pid).children() if "java" in it.name()]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Kill what is left, and let go of everything."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WITHIN)
        self._let_go()
        self.said_file.close()

    def _let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

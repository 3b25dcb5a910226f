"""Creates a Java class data archive for Spark: `classes-….jsa` in the folder of Delta's jars.

Each version of Java and pyspark needs its own archive. To load, verify and link the classes of Spark and Delta takes a third
of a pipeline's start. Java can write the loaded classes to an archive at its end (JEP 350), and map the archive at the next
start. So this runs a pipeline with a few events, which executes every kind of task and ends. The archive only makes starts
faster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pyspark

from connectivity.maintenance.pipeline_process import parse_event
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreError
from spark_store.journal.journal import Journal
from spark_store.lake.tables import LATEST, Lake
from spark_store.pipeline.delta_jars import default_folder, find_jars
from spark_store.pipeline.java import find_java
from spark_store.pipeline.session import prepared_classes
from spark_store.queries.spark_query import QueryLimits, SparkQueries
from spark_store.records import Change, Snapshot

JARS = default_folder()
EVENTS = 40
BATCH = 20
TIMEOUT = 600.0
"""Seconds for the whole run of the pipeline."""

OUTPUT_LINES = 20
NOW = "2030-01-15T12:00:00.000000Z"


def is_fresh(classes: Path) -> bool:
    """Whether the archive is newer than the jars of pyspark and Delta."""
    jars = Path(pyspark.__file__).parent / "jars"
    return classes.exists() and classes.stat().st_mtime > max(it.stat().st_mtime for it in (jars, *find_jars(JARS)))


def fill(data: Path) -> None:
    """Create a data folder with the events of two things in its journal."""
    data.mkdir()
    journal = Journal.open(Lake(data).journal)
    try:
        for number in range(EVENTS):
            entity, revision = EntityId(EntityType.THING, "acme", f"lamp-{number % 2}"), number // 2 + 1
            event = Event(entity, revision, NOW, "modified", "/attributes/on", b"true", b"{}")
            state = Snapshot(entity, revision, NOW, NOW, {"attributes": {"on": True}}, None)
            journal.append([Change((event,), (state,))])
    finally:
        journal.close()


def run(data: Path, into: Path) -> list[str]:
    """Run a pipeline that writes and compacts the lake, queries it and writes the archive.

    Returns the output of the pipeline. The pipeline also ends at the timeout, and with this process.
    """
    lake = Lake(data)
    options = f"-XX:ArchiveClassesAtExit={shlex.quote(str(into))} -XX:TieredStopAtLevel=1"
    command = [sys.executable, "-m", "spark_store.pipeline", "run", "--data-dir", str(data)]
    frequent = {"interval": 0.1, "max_batch_rows": BATCH, "optimize_batches": 2, "full_snapshot_events": BATCH}
    output: list[str] = []
    with subprocess.Popen(
        [*command, "--settings", json.dumps(frequent), "--with-parent"],
        env={**os.environ, "JDK_JAVA_OPTIONS": options},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pipeline:
        assert pipeline.stdout is not None
        timer = threading.Timer(TIMEOUT, pipeline.kill)
        timer.start()
        try:
            # Until Java closes its output: it writes the archive after the pipeline has ended.
            for line in pipeline.stdout:
                output.append(line)
                match (parse_event(line) or {}).get("event"):
                    case "spark":
                        # Spark's launcher is another Java process, and has written its own archive to this file.
                        into.unlink(missing_ok=True)
                    case "maintenance":
                        # After a failed query, the archive only lacks the classes of queries.
                        with contextlib.suppress(StoreError):
                            _query(lake)
                        pipeline.send_signal(signal.SIGTERM)
        finally:
            timer.cancel()
    return output


def _query(lake: Lake) -> None:
    """Execute a Spark query. Raises StoreError."""
    queries = SparkQueries(lake)
    queries.run(lambda tables: tables.read(LATEST).groupBy("entity").count(), QueryLimits(TIMEOUT))


def main() -> int:
    """Create the archive if it is outdated.

    The exit code is 1 only if Spark cannot run, because the archive is optional.
    """
    try:
        classes = prepared_classes(JARS, find_java().build)
        if is_fresh(classes):
            print(f"· spark: class data archive {classes.name}")
            return 0
        with tempfile.TemporaryDirectory(dir=JARS) as folder:
            data, made = Path(folder) / "data", Path(folder) / classes.name
            fill(data)
            # Java writes no archive if it has mapped one. Archives of other Java versions stay.
            for old in JARS.glob(f"classes-*-{classes.stem.rpartition('-')[2]}.jsa"):
                old.unlink()
            output = run(data, made)
            if not made.exists() or not any('"maintenance"' in line for line in output):
                lines = [line for line in output if "[cds" not in line]
                print(f"· spark: no class data archive, so it starts slowly:\n{''.join(lines[-OUTPUT_LINES:])}", end="")
                return 0
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(classes)
    except StoreError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    print(f"· spark: class data archive created, {classes.stat().st_size >> 20} MB in {classes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

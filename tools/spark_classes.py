"""Prepares Java's classes for Spark, once for a Java and a pyspark: `classes-….jsa` beside Delta's jars, for each start.

A Java process that begins reads, checks and links thousands of classes of Spark and Delta, which is a third of the time
until a pipeline follows. Java can write down what it has loaded when it ends (a class-data archive, JEP 350), and map
that file the next time. So a pipeline runs here over a journal of a few events, does what pipelines do, and ends. Without
the file everything works as well, and begins later.
"""

from __future__ import annotations

import contextlib
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
from spark_store.queries.spark_query import QueryLimits, SparkQueries, finder
from spark_store.records import Change, Snapshot

JARS = default_folder()
EVENTS = 40
BATCH = 20
SECONDS = 600.0
"""How long the pipeline may take for all of it."""

SHOWN = 20
NOW = "2030-01-15T12:00:00.000000Z"


def is_fresh(classes: Path) -> bool:
    """Whether they were prepared after what they are of was installed."""
    jars = Path(pyspark.__file__).parent / "jars"
    return classes.exists() and classes.stat().st_mtime > max(it.stat().st_mtime for it in (jars, *find_jars(JARS)))


def fill(data: Path) -> None:
    """A data folder whose journal has events of two things."""
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
    """Let a pipeline fill the lake, compact it and answer a wide query, and write its classes down; what it said.

    It ends when its time is up, and when this process does, however that ends.
    """
    lake = Lake(data)
    options = f"-XX:ArchiveClassesAtExit={shlex.quote(str(into))} -XX:TieredStopAtLevel=1"
    command = [sys.executable, "-m", "spark_store.pipeline", "run", "--data-dir", str(data), "--interval", "0.1"]
    often = ["--batch-rows", str(BATCH), "--optimize-batches", "2", "--full-snapshot-events", str(BATCH)]
    said: list[str] = []
    with subprocess.Popen(
        [*command, *often, "--with-parent"],
        env={**os.environ, "JDK_JAVA_OPTIONS": options},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pipeline:
        assert pipeline.stdout is not None
        late = threading.Timer(SECONDS, pipeline.kill)
        late.start()
        try:
            # To the end of what Java says: it outlives the pipeline, and writes its classes last.
            for line in pipeline.stdout:
                said.append(line)
                match (parse_event(line) or {}).get("event"):
                    case "spark":
                        # The Java that Spark asks how to start this one has written its own classes there.
                        into.unlink(missing_ok=True)
                    case "maintenance":
                        # What a query would have loaded is missed by the first query, and by nobody else.
                        with contextlib.suppress(StoreError):
                            _ask(lake)
                        pipeline.send_signal(signal.SIGTERM)
        finally:
            late.cancel()
    return said


def _ask(lake: Lake) -> None:
    """A wide query. Raises StoreError."""
    asking = SparkQueries(lake, finder(lake, None, is_off=False))
    with asking.run(lambda tables: tables.read(LATEST).groupBy("entity").count(), QueryLimits(SECONDS)) as answer:
        list(answer)


def main() -> int:
    """The exit code: 1 where Spark cannot run here. Classes that do not get prepared are no failure of an installation."""
    try:
        classes = prepared_classes(JARS, find_java())
        if is_fresh(classes):
            print(f"· spark: classes in {classes.name}")
            return 0
        with tempfile.TemporaryDirectory(dir=JARS) as folder:
            data, made = Path(folder) / "data", Path(folder) / classes.name
            fill(data)
            # Java writes none where it begins with some. Those of other environments stay.
            for old in JARS.glob(f"classes-*-{classes.stem.rpartition('-')[2]}.jsa"):
                old.unlink()
            said = run(data, made)
            if not made.exists() or not any('"maintenance"' in line for line in said):
                words = [line for line in said if "[cds" not in line]
                print(f"· spark: without prepared classes, so it starts slowly:\n{''.join(words[-SHOWN:])}", end="")
                return 0
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(classes)
    except StoreError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    print(f"· spark: classes prepared, {classes.stat().st_size >> 20} MB in {classes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

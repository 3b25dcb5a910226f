"""Builds a Spark session that can write the lake: the only file that knows how Spark is set up.

Spark runs in this process and in a Java process beside it, which ends when this one does. Everything comes from this
machine: the jars that pyspark brings, Delta's from a folder (`tools/spark` fetches them), so a start needs no network.
Python code that Spark runs, it runs with this interpreter. Times are UTC. Only errors are logged.

With `connect`, wide queries of other processes are answered too (Spark Connect, on the loopback interface, with a token).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_store.errors import LakeBusy, SparkMissing
from spark_store.tables import Lake

OLDEST_JAVA = 17
JARS = Path(__file__).parents[1] / ".run" / "spark"
"""Where `make install` puts Delta's jars."""

_LOOK_SECONDS = 0.2
_WANTED_JARS = ("delta-spark_*.jar", "delta-storage-*.jar")
_LOGGING = Path(__file__).parent / "pipeline" / "log4j2.properties"

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A stream runs for months: what is remembered of past batches has to stay small.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.parquet.compression.codec": "zstd",
    # What a merge takes in is the journal's newest state: it must be read once, or a row could differ between two looks.
    "spark.databricks.delta.merge.materializeSource": "all",
    # Retention is the tables' own, and may be shorter than a week.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Clustered files are left alone once there are so many bytes of them; the default rewrites up to 100 GB each time.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(256 << 20),
    # Files so large that they are few, so small that a page of one entity reads little.
    "spark.databricks.delta.optimize.maxFileSize": str(32 << 20),
    "spark.databricks.delta.optimize.minFileSize": str(16 << 20),
}

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Many small tasks cost more than they save on one machine: with Delta's default a commit takes seconds.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists a table's folder in so many tasks; the default is ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


@dataclass(frozen=True, slots=True)
class Connect:
    """Where wide queries are answered: a port of the loopback interface, and the token that callers must show."""

    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How Spark is to run. `memory` is that of the Java process, as Java writes it. `settings` count most."""

    master: str = "local[*]"
    jars: Path = JARS
    memory: str = "1g"
    connect: Connect | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


def find_jars(folder: Path) -> list[Path]:
    """Delta's jars. Raises SparkMissing where they are not there."""
    found = [jar for pattern in _WANTED_JARS for jar in sorted(folder.glob(pattern))]
    if len(found) != len(_WANTED_JARS):
        raise SparkMissing(
            f"{folder}: expected the jars {' and '.join(_WANTED_JARS)}, found "
            f"{', '.join(jar.name for jar in found) or 'none'}; `make install` or tools/spark fetches them"
        )
    return found


def find_java() -> str:
    """The Java that Spark will run. Raises SparkMissing where there is none that is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    expected = f"expected Java {OLDEST_JAVA} or later"
    if java is None:
        raise SparkMissing(f"{expected}, found none; install one (on Debian: default-jre-headless)")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkMissing(f"{expected}, found {java}, which does not run: {error}") from error
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise SparkMissing(f"{expected}, found {java}, which says {said.splitlines()[:1]}")
    return java


def start_session(options: SessionOptions, name: str = "lake") -> SparkSession:
    """A running session. Raises SparkMissing where Spark cannot start here."""
    jars = find_jars(options.jars)
    find_java()
    # Another Spark, or another interpreter, that happens to be set up on this machine is not meant.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    if options.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(options.master).appName(name)
    for key, value in _settings(options, jars).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise SparkMissing(f"Spark does not start with master {options.master}: {error}") from error


def _settings(options: SessionOptions, jars: list[Path]) -> dict[str, str]:
    java = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -XX:+UseSerialGC -Xshare:auto"
    found = {
        **_SETTINGS,
        **(_LOCAL if options.is_local else {}),
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": options.memory,
        "spark.driver.extraJavaOptions": java,
    }
    if options.connect is not None:
        found |= {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(options.connect.port),
            "spark.connect.authenticate.token": options.connect.token,
        }
    return found | dict(options.settings)


def java_pid(spark: SparkSession) -> int:
    """The process id of the Java process."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


@contextlib.contextmanager
def lake_lock(
    spark: SparkSession, lake: Lake, seconds: float, stopping: threading.Event | None = None
) -> Iterator[None]:
    """Be the only one who writes the lake; waits so long for another one to end, or until `stopping`. Raises LakeBusy.

    The lock belongs to the Java process, since it is that one which writes: it may outlive a Python process that was
    killed for some moments, and finish what it was at.
    """
    jvm = spark._jvm
    assert jvm is not None
    lake.pipeline.mkdir(parents=True, exist_ok=True)
    file = jvm.java.io.RandomAccessFile(str(lake.lock.absolute()), "rw")
    deadline = time.monotonic() + seconds
    try:
        while file.getChannel().tryLock() is None:
            if time.monotonic() >= deadline or (stopping is not None and stopping.is_set()):
                raise LakeBusy(f"{lake.lock}: found a lock held by another pipeline, expected none; end that one first")
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        # The Java process may have been killed; then there is nothing to let go of.
        with contextlib.suppress(Exception):
            file.close()

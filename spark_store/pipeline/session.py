"""Builds a Spark session that can write the lake; the only module that configures Spark.

Spark runs in this process and in a Java process that ends with it. All jars are local: those of pyspark, and Delta's
(`spark_store.pipeline.delta_jars`). Python workers use this interpreter. Times are UTC. Only errors are logged.
Java's classes are preloaded if `tools/spark_classes.py` has prepared them: that halves the start.

With a token, Spark queries of other processes are answered (Spark Connect, on loopback, with a token). They have a lower
priority: Spark's fair scheduler serves the pool `FIRST` before them, there are more slots than one query uses, and results
are bounded, since they wait in the memory of the Java process.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_store.errors import LakeBusy, StoreUnavailable
from spark_store.lake.tables import Lake
from spark_store.pipeline.delta_jars import find_jars, jars_folder
from spark_store.pipeline.java import find_java
from spark_store.pipeline.settings import PipelineSettings
from spark_store.records import LOCAL_MASTER

_POLL_SECONDS = 0.2
_IDLE_COLLECTIONS = 5
"""After so many collections that freed no shuffle file, the others are needed."""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("pools.xml")
FIRST = "pipeline"
"""The scheduler's pool for tasks that come before Spark queries, named in that file."""

_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The variable for the token. A setting would be visible in the list of processes."""

STATISTICS_LENGTH = "spark.databricks.io.skipping.stringPrefixLength"

_RESULT_SHARE = 8
"""The results of one query may fill the memory of the Java process to an eighth."""

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Texts that look like variables in statements are values, IDs or paths, and stay.
    "spark.sql.variable.substitute": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A pipeline runs for months: the history of batches must stay small.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.sql.parquet.compression.codec": "zstd",
    # A damaged page must not be rewritten with a valid checksum. (Hadoop's own checksum files are in no backup.)
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Retention is the tables' own, and may be shorter than a week.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # No checksum file beside each file: pages have checksums, and a log would have twice as many files.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Statistics have whole IDs, of up to 256 characters. With the default of 32, no file is skipped if all IDs begin alike.
    STATISTICS_LENGTH: "1024",
    # Small row groups with statistics: a page of one entity decodes few of them. For that, rows are sorted by ranges of
    # entities, and within a range not at all. With the default of 1000, a range of 64 million events has 17 row groups.
    "spark.hadoop.parquet.block.size": str(1 << 19),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.databricks.io.skipping.mdc.addNoise": "false",
    "spark.databricks.io.skipping.mdc.rangeId.max": "32768",
    # The driver gets a sample for the ranges, 9 entities for each. With the default of 100 it is 300, too large a result.
    "spark.sql.execution.rangeExchange.sampleSizePerPartition": "3",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Without a secret, which Spark makes itself, any user of this machine could send Java objects to the driver.
    "spark.authenticate": "true",
    # Many small tasks cost more than they save on one machine: with Delta's default a commit takes seconds.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The number of tasks in which VACUUM lists a folder; the default is ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


_CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": _POOLS.as_uri(),
    # A killed client sends nothing: its query ends so long after its last message.
    "spark.connect.execute.manager.detachedTimeout": "30s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
    "spark.connect.session.manager.defaultSessionTimeout": "10m",
    # No one reads Java's stack traces, and the history of queries must stay small.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # Short tasks: the pipeline's next one waits until one of them ends.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
}


def prepared_classes(jars: Path, java: str) -> Path:
    """Return the archive of prepared classes for this build of Java and pyspark, beside Delta's jars.

    Java uses the file only if it matches its classes, at the same place, and is undamaged. It goes on without it otherwise.
    """
    place = sha256(str(Path(pyspark.__file__).parent).encode()).hexdigest()[:8]
    return jars / f"classes-{java}-{pyspark.__version__}-{place}.jsa"


def start_session(settings: PipelineSettings, token: str | None = None, scratch: Path | None = None) -> SparkSession:
    """Start a session.

    With a `token`, Spark queries of its owners are answered, at a free port of loopback. `scratch`: an absolute folder for
    temporary files; by default the system's. Raises SparkMissing if something is not installed, else StoreUnavailable.
    """
    folder = jars_folder(settings)
    jars, classes = find_jars(folder), prepared_classes(folder, find_java().build)
    # Another Spark, or another interpreter, that happens to be set up on this machine is not meant.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(_master(settings, token)).appName("lake")
    for key, value in _spark_settings(settings, jars, token, scratch, classes if classes.exists() else None).items():
        builder = builder.config(key, value)
    try:
        with _in_environment(_TOKEN_VARIABLE, token):
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        # A Java process that was killed, no memory, no room: another start may go well.
        said = " ".join(str(error).partition("\n\tat ")[0].split())[:_SHOWN]
        raise StoreUnavailable(f"Spark does not start with master {settings.master}: {said}") from error


_SHOWN = 400


@contextlib.contextmanager
def _in_environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable for processes started meanwhile; None removes it."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _cores(settings: PipelineSettings) -> int:
    """Return how many cores the master uses."""
    found = LOCAL_MASTER.fullmatch(settings.master)
    assert found is not None
    cores = found["cores"] or "1"
    return (os.cpu_count() or 1) if cores == "*" else int(cores)


def _master(settings: PipelineSettings, token: str | None) -> str:
    """The master that Spark is given.

    One that answers Spark queries has twice as many slots as cores: a stage of a query is cut for the cores, so that it
    leaves slots free, however long its tasks are.
    """
    return settings.master if token is None else f"local[{2 * _cores(settings)}]"


def _spark_settings(
    settings: PipelineSettings,
    jars: list[Path],
    token: str | None = None,
    scratch: Path | None = None,
    classes: Path | None = None,
) -> dict[str, str]:
    """Return Spark's settings; those of the pipeline's settings override all others."""
    java = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -XX:+UseSerialGC -Xshare:auto"
    if classes is not None:
        # A damaged archive must not be used. Without it the start only takes longer, so nothing is logged.
        java += f" -XX:SharedArchiveFile={shlex.quote(str(classes.absolute()))} -XX:+VerifySharedSpaces"
        java += " -Xlog:cds=off -Xlog:cds+dynamic=off"
    found = {
        **_SETTINGS,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": settings.memory,
        "spark.driver.extraJavaOptions": java,
    }
    if scratch is not None:
        # Spark makes this folder at its start, wherever it is; nothing comes into it.
        found["spark.sql.warehouse.dir"] = (scratch / "warehouse").as_uri()
        # Spark takes a comma for the end of a folder's name.
        if "," not in str(scratch):
            found["spark.local.dir"] = str(scratch)
            if not _forbids_programs(scratch):
                found["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={shlex.quote(str(scratch))}"
    if token is not None:
        found |= _CONNECT | {
            "spark.driver.maxResultSize": str(_bytes(settings.memory) // _RESULT_SHARE),
            "spark.default.parallelism": str(_cores(settings)),
        }
    return found | dict(settings.spark)


def _forbids_programs(folder: Path) -> bool:
    """Whether files in this folder may not be executed, so that Java cannot use unpacked libraries."""
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def _bytes(memory: str) -> int:
    """`1g`, as Java writes it."""
    return int(memory[:-1]) << {"k": 10, "m": 20, "g": 30}[memory[-1].lower()]


def connect_port(spark: SparkSession) -> int:
    """Return the port of Spark Connect while the session runs."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return int(getattr(service, "MODULE$").localPort())


def prioritize(spark: SparkSession) -> None:
    """Give the calling thread, and its threads, priority over Spark queries.

    Delta's own threads have it by the file of the pools.
    """
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", FIRST)


def shuffle_files(spark: SparkSession) -> set[Path]:
    """Return the shuffle files of Spark on this machine: rows, or parts of them."""
    blocks = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore[union-attr]
    return {file for folder in blocks.localDirs() for file in Path(folder.getPath()).rglob("shuffle_*")}


def drop_shuffles(spark: SparkSession) -> int:
    """Have unused shuffle files deleted; return how many are still needed.

    They are deleted with the queries that need them, or with the process. Spark deletes a file when Java's collector has
    found that it is unused, which runs when memory is short. Delta needs those of the newest version of each table, so this
    ends before, when `_IDLE_COLLECTIONS` collections in a row have freed none.
    """
    left, idle = shuffle_files(spark), 0
    gc.collect()  # Python may keep objects of Java alive
    while left and idle < _IDLE_COLLECTIONS:
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        time.sleep(_POLL_SECONDS)
        still = left & shuffle_files(spark)
        left, idle = still, 0 if still < left else idle + 1
    return len(left)


def wait_for_lock(lake: Lake, seconds: float) -> None:
    """Wait until no one writes the lake, for so long. Raises LakeBusy.

    It needs no Spark, so it is quick; `lake_lock` takes the lock.
    """
    _wait_until(lambda: not _is_locked(lake.lock), lake, seconds)


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("r+b") as file:
            # Java locks files in this way.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _wait_until(
    is_free: Callable[[], bool], lake: Lake, seconds: float, stopping: threading.Event | None = None
) -> None:
    """Wait until the lock of the lake is free, for so long, or until `stopping`. Raises LakeBusy."""
    deadline = time.monotonic() + seconds
    while not is_free():
        if time.monotonic() >= deadline or (stopping is not None and stopping.is_set()):
            raise LakeBusy(
                f"{lake.lock}: found a lock held by another pipeline, expected none; stop that pipeline, or, if the "
                "service started it, stop the service or set spark.mode to external"
            )
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def lake_lock(
    spark: SparkSession, lake: Lake, seconds: float, stopping: threading.Event | None = None
) -> Iterator[None]:
    """Hold the lock of the lake; wait for so long for another process, or until `stopping`.

    Raises LakeBusy.

    The lock belongs to the Java process, which writes: it may outlive a killed Python process for some moments.
    """
    jvm = spark._jvm
    assert jvm is not None
    lake.pipeline.mkdir(parents=True, exist_ok=True)
    file = jvm.java.io.RandomAccessFile(str(lake.lock.absolute()), "rw")
    try:
        _wait_until(lambda: file.getChannel().tryLock() is not None, lake, seconds, stopping)
        yield
    finally:
        # A killed Java process has released it.
        with contextlib.suppress(Exception):
            file.close()


@contextlib.contextmanager
def scratch_folder(lake: Lake) -> Iterator[Path]:
    """A new folder, absolute, which is there until the end. Raises OSError."""
    lake.scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        # A sweep must not see the folder before it is locked.
        with _locked(lake.scratch):
            folder = Path(tempfile.mkdtemp(dir=lake.scratch.absolute()))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            held.enter_context(_locked(folder))
        yield folder


def remove_unused_folders(lake: Lake) -> None:
    """Take the folders away that no process uses any more. Raises OSError."""
    lake.scratch.mkdir(parents=True, exist_ok=True)
    with _locked(lake.scratch):
        for folder in filter(Path.is_dir, lake.scratch.iterdir()):
            # It is used, or its owner has just removed it.
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(folder, fcntl.LOCK_NB):
                # The next start removes the rest.
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)

"""Builds a Spark session that can write the lake: the only file that knows how Spark is set up.

Spark runs in this process and in a Java process beside it, which ends when this one does. Everything comes from this
machine: the jars that pyspark brings, Delta's from a folder (`tools/spark` fetches them), so a start needs no network.
Python code that Spark runs, it runs with this interpreter. Times are UTC. Only errors are logged. Java's classes are taken
as `tools/spark_classes.py` has prepared them, where it has: that halves the time until Spark answers.

With `connect`, wide queries of other processes are answered too (Spark Connect, on the loopback interface, with a token).
They share the machine with whoever started the session, so they come second: Spark's fair scheduler serves the pool
`FIRST` before them, there are more slots than one query takes, and what a query may send back is bounded, since all of it
waits in the memory of the Java process until the caller has taken it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_store.errors import LakeBusy, SparkMissing, StoreUnavailable
from spark_store.lake.tables import Lake

OLDEST_JAVA = 17
JARS = Path(__file__).parents[2] / ".run" / "spark"
"""Where `make install` puts Delta's jars."""

STDERR = 2

_LOOK_SECONDS = 0.2
_JAVA_SECONDS = 60.0
_NO_PROGRAM = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC}
"""How the system says that a file is no program that could be run here.

What else it says may pass: no memory, for one.
"""

_BUILD = re.compile(r"\(build ([\w.+-]+)")
_WANTED_JARS = ("delta-spark_*.jar", "delta-storage-*.jar")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("pools.xml")
FIRST = "pipeline"
"""The pool of the scheduler, named in that file, whose tasks are begun before those of wide queries."""

_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Spark takes the token from here too.

As a setting it would stand in the process list, for everybody to read.
"""

_RESULT_SHARE = 8
"""The results of one query may fill the memory of the Java process to an eighth."""

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # What looks like a variable in the text of a statement is a value, an id or a path, and stays what it is.
    "spark.sql.variable.substitute": "false",
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
    # A page that is not what was written must not be written anew, with a checksum that fits. (The checksums that Hadoop
    # writes into files of their own are in no backup.)
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Retention is the tables' own, and may be shorter than a week.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # A file has many parts, each with bounds of what is in it: a page of one entity costs the decoding of few of them. For
    # that rows lie in order, and those of one entity as they come in, which is in order of their revisions.
    "spark.hadoop.parquet.block.size": str(1 << 20),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.databricks.io.skipping.mdc.addNoise": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
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


_CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": _POOLS.as_uri(),
    # A caller that was killed does not say so: what it asked for ends so long after its last sign of life.
    "spark.connect.execute.manager.detachedTimeout": "30s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
    "spark.connect.session.manager.defaultSessionTimeout": "10m",
    # Nobody reads the Java side of an error, and what is remembered of queries has to stay small.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # Short tasks: the pipeline's next one waits until one of them ends.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
}


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How wide queries are answered: at which port of the loopback interface (0: a free one), and the token that callers
    must show."""

    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How Spark is to run.

    `memory` is that of the Java process, as Java writes it. `scratch`: an absolute folder for what a local master puts
    aside; without one that is the system's folder for such things. `settings` count most.
    """

    master: str = "local[*]"
    jars: Path = JARS
    memory: str = "1g"
    connect: ConnectOptions | None = None
    scratch: Path | None = None
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


class JavaProgram(NamedTuple):
    """A program, and how it names itself: the first words of its second line, `17.0.15+6-Debian-1deb12u1` say."""

    program: str
    build: str


def find_java() -> JavaProgram:
    """The Java that Spark will run.

    Raises SparkMissing where there is none that is new enough, StoreUnavailable where it does not answer now.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    expected = f"expected Java {OLDEST_JAVA} or later"
    if java is None:
        raise SparkMissing(f"{expected}, found none; install one (on Debian: default-jre-headless)")
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        if isinstance(error, OSError) and error.errno in _NO_PROGRAM:
            raise SparkMissing(f"{expected}, found {java}, which does not run: {error}") from error
        raise StoreUnavailable(f"{expected}, found {java}, which does not answer: {error}") from error
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise SparkMissing(f"{expected}, found {java}, which says {said.splitlines()[:1]}")
    build = _BUILD.search(said)
    return JavaProgram(java, build[1] if build is not None else version[1])


def prepared_classes(jars: Path, java: JavaProgram) -> Path:
    """Where the classes of this Java and this pyspark lie when they are prepared, beside Delta's jars.

    Java takes the file only where it fits what it would load else and is as it was written, and goes on without it where
    not.
    """
    return jars / f"classes-{java.build}-{pyspark.__version__}.jsa"


def start_session(options: SessionOptions, name: str = "lake") -> SparkSession:
    """A running session.

    Raises SparkMissing where what it needs is not there, StoreUnavailable where it does not start.
    """
    jars = find_jars(options.jars)
    classes = prepared_classes(options.jars, find_java())
    # Another Spark, or another interpreter, that happens to be set up on this machine is not meant.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    if options.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(_master(options)).appName(name)
    for key, value in _settings(options, jars, classes if classes.exists() else None).items():
        builder = builder.config(key, value)
    token = options.connect.token if options.connect is not None else None
    try:
        with _in_environment(_TOKEN_VARIABLE, token), _without_greeting():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        # A Java process that was killed, no memory, no room: another start may go well.
        raise StoreUnavailable(
            f"Spark does not start with master {options.master}: {_reason(options, error)}"
        ) from error


_NO_MASTER = re.compile(r"All masters are unresponsive|stopped SparkContext")
"""What Spark says where no cluster answers: the first, or about what it then does not wait for."""

_SHOWN = 400


def _reason(options: SessionOptions, error: Exception) -> str:
    """What Spark says without the stack of its Java process, and what to do where that is known."""
    text = str(error)
    if not options.is_local and _NO_MASTER.search(text):
        return "nobody answers there; look at spark.master, and whether that cluster runs"
    return " ".join(text.partition("\n\tat ")[0].split())[:_SHOWN]


_GREETING = re.compile(
    rb"WARNING: Using incubator modules|Setting default log level to |To adjust logging level |"
    rb"Using Spark's (?:default|repl) log4j "
)
"""How the lines begin that Java writes at every start, whatever level of logging it is told."""


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    """What is started meanwhile keeps its greeting from a terminal, for as long as it runs.

    Its other words get there.
    """
    if not os.isatty(STDERR):
        yield
        return
    words, theirs = os.pipe()
    terminal = os.dup(STDERR)
    os.dup2(theirs, STDERR)
    os.close(theirs)
    try:
        threading.Thread(target=pass_on, args=(words, terminal), name="java's words", daemon=True).start()
        yield
    finally:
        os.dup2(terminal, STDERR)


def pass_on(words: int, terminal: int) -> None:
    """Lines from one descriptor to another, without the greeting, until they end; closes both."""
    with open(words, "rb") as lines, open(terminal, "wb", buffering=0) as shown:
        for line in lines:
            if _GREETING.match(line) is None:
                with contextlib.suppress(OSError):
                    shown.write(line)


@contextlib.contextmanager
def _in_environment(name: str, value: str | None) -> Iterator[None]:
    """What is started meanwhile finds the value there, or, with None, nothing."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


_LOCAL_MASTER = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?P<rest>,\s*\d+)?\])?")


def _cores(options: SessionOptions) -> int | None:
    """How many tasks a local master runs at once; None for a master elsewhere."""
    found = _LOCAL_MASTER.fullmatch(options.master)
    if found is None:
        return None
    cores = found["cores"] or "1"
    return (os.cpu_count() or 1) if cores == "*" else int(cores)


def _master(options: SessionOptions) -> str:
    """The master that Spark is given.

    One that answers wide queries has twice as many slots as cores: a stage of a query is cut for the cores, so that it
    leaves slots free, however long its tasks are.
    """
    cores = _cores(options)
    if options.connect is None or cores is None:
        return options.master
    rest = _LOCAL_MASTER.fullmatch(options.master)["rest"] or ""  # type: ignore[index]
    return f"local[{2 * cores}{rest}]"


def _settings(options: SessionOptions, jars: list[Path], classes: Path | None = None) -> dict[str, str]:
    java = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -XX:+UseSerialGC -Xshare:auto"
    if classes is not None:
        # What has been damaged on the disk must not run. A file that is not taken costs nothing but time, and is nothing
        # to tell an operator at each start.
        java += f" -XX:SharedArchiveFile={shlex.quote(str(classes.absolute()))} -XX:+VerifySharedSpaces"
        java += " -Xlog:cds=off -Xlog:cds+dynamic=off"
    found = {
        **_SETTINGS,
        **(_LOCAL if options.is_local else {}),
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": options.memory,
        "spark.driver.extraJavaOptions": java,
    }
    # Spark takes a comma for the end of a folder's name. Workers elsewhere have folders of their own.
    if options.scratch is not None and options.is_local and "," not in str(options.scratch):
        found["spark.local.dir"] = str(options.scratch)
        if not _forbids_programs(options.scratch):
            found["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={shlex.quote(str(options.scratch))}"
    if options.connect is not None:
        found |= _CONNECT | {
            "spark.connect.grpc.binding.port": str(options.connect.port),
            "spark.driver.maxResultSize": str(_bytes(options.memory) // _RESULT_SHARE),
        }
        if (cores := _cores(options)) is not None:
            found["spark.default.parallelism"] = str(cores)
    return found | dict(options.settings)


def _forbids_programs(folder: Path) -> bool:
    """Whether nothing in this folder may be run, so that Java could not use a library that it has unpacked there."""
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def _bytes(memory: str) -> int:
    """`1g`, as Java writes it."""
    return int(memory[:-1]) << {"k": 10, "m": 20, "g": 30}[memory[-1].lower()]


def connect_port(spark: SparkSession) -> int:
    """Where the session answers wide queries, once it runs."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return int(getattr(service, "MODULE$").localPort())


def put_first(spark: SparkSession) -> None:
    """What the calling thread, and the threads and streams that it starts, ask of Spark, comes before wide queries. (What
    Delta asks in threads of its own does not come last either: see the file of the pools.)"""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", FIRST)


def java_pid(spark: SparkSession) -> int:
    """The process id of the Java process."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def shuffle_files(spark: SparkSession) -> set[Path]:
    """What this machine's part of Spark has put aside of shuffles: rows, or parts of them."""
    blocks = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore[union-attr]
    return {file for folder in blocks.localDirs() for file in Path(folder.getPath()).rglob("shuffle_*")}


def drop_shuffles(spark: SparkSession, looks: int = 20) -> int:
    """See that what has been put aside up to now goes; how many files are still needed after so many looks of Java's
    collector: they go with the queries that need them, or with the process.

    Spark deletes it when Java has found that nobody holds it any more, and Java looks when it is short of memory.
    """
    before = shuffle_files(spark)
    gc.collect()  # Python may hold what Java then holds, too.
    for _ in range(looks):
        if not before & shuffle_files(spark):
            return 0
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        time.sleep(_LOOK_SECONDS)
    return len(before & shuffle_files(spark))


def wait_for_lock(lake: Lake, seconds: float) -> None:
    """See that nobody writes the lake; waits so long for another one to end. Raises LakeBusy.

    Without Spark, so at once; the lock itself is for `lake_lock` to take.
    """
    deadline = time.monotonic() + seconds
    while _is_locked(lake.lock):
        if time.monotonic() >= deadline:
            raise _busy(lake)
        time.sleep(_LOOK_SECONDS)


def _is_locked(lock: Path) -> bool:
    try:
        with lock.open("r+b") as file:
            # What a Java process locks is locked in this way.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _busy(lake: Lake) -> LakeBusy:
    return LakeBusy(
        f"{lake.lock}: found a lock held by another pipeline, expected none; end that one first (the service has its own)"
    )


@contextlib.contextmanager
def lake_lock(
    spark: SparkSession, lake: Lake, seconds: float, stopping: threading.Event | None = None
) -> Iterator[None]:
    """Be the only one who writes the lake; waits so long for another one to end, or until `stopping`.

    Raises LakeBusy.

    The lock belongs to the Java process, since it is that one which writes: it may outlive a Python process that was killed
    for some moments, and finish what it was at.
    """
    jvm = spark._jvm
    assert jvm is not None
    lake.pipeline.mkdir(parents=True, exist_ok=True)
    file = jvm.java.io.RandomAccessFile(str(lake.lock.absolute()), "rw")
    deadline = time.monotonic() + seconds
    try:
        while file.getChannel().tryLock() is None:
            if time.monotonic() >= deadline or (stopping is not None and stopping.is_set()):
                raise _busy(lake)
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        # The Java process may have been killed; then there is nothing to let go of.
        with contextlib.suppress(Exception):
            file.close()


_LOCK = "lock"
"""In each folder, held by its process; and in the one around them, by whoever makes one or looks which are used."""


@contextlib.contextmanager
def own_folder(lake: Lake) -> Iterator[Path]:
    """A new folder, absolute, which is there until the end. Raises OSError."""
    lake.scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with _alone(lake):
            folder = Path(tempfile.mkdtemp(dir=lake.scratch.absolute()))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            lock = held.enter_context((folder / _LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def sweep(lake: Lake) -> None:
    """Take the folders away that no process uses any more. Raises OSError."""
    lake.scratch.mkdir(parents=True, exist_ok=True)
    with _alone(lake):
        for folder in lake.scratch.iterdir():
            if folder.is_dir() and not _is_used(folder):
                # What cannot be removed now is there the next time.
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(lake: Lake) -> Iterator[None]:
    with (lake.scratch / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_used(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        # Whoever made it, or took it away, was killed meanwhile.
        return False
    except BlockingIOError:
        return True
    return False

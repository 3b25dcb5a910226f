"""The requirements of Spark on a machine, and the errors where they are missing."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from mappings.ids import MAX_ID_LENGTH
from spark_store.errors import StoreUnavailable
from spark_store.pipeline import session
from spark_store.pipeline.java import JavaProgram
from spark_store.pipeline.session import (
    _IDLE_COLLECTIONS,
    _TOKEN_VARIABLE,
    FIRST,
    STATISTICS_LENGTH,
    _in_environment,
    _master,
    _spark_settings,
    drop_shuffles,
    prepared_classes,
    start_session,
)
from spark_store.pipeline.settings import PipelineSettings


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), PySparkRuntimeError("[JAVA_GATEWAY_EXITED]"), Py4JError()],
)
def test_a_spark_that_does_not_start_this_time_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: object) -> None:
        raise error

    monkeypatch.setattr(session, "find_jars", lambda _: [])
    monkeypatch.setattr(session, "find_java", lambda: JavaProgram("java", "17"))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuses)
    with pytest.raises(StoreUnavailable, match=r"Spark does not start with master local\[\*\]"):
        start_session(PipelineSettings())


def test_a_spark_that_does_not_start_is_reported_without_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = "This stopped SparkContext was created at:\n\n\tat org.apache."

    def refuses(_: object) -> None:
        raise PySparkRuntimeError(f"java.lang.IllegalStateException: {stack}")

    monkeypatch.setattr(session, "find_jars", lambda _: [])
    monkeypatch.setattr(session, "find_java", lambda: JavaProgram("java", "17"))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuses)
    with pytest.raises(StoreUnavailable, match="stopped SparkContext") as caught:
        start_session(PipelineSettings())
    assert "org.apache" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_explicit_settings_override_defaults_and_the_token_is_never_shown() -> None:
    found = _spark_settings(PipelineSettings(spark={"spark.sql.shuffle.partitions": "8"}), [], "s3cret")
    assert found["spark.sql.shuffle.partitions"] == "8"
    assert found["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert int(found[STATISTICS_LENGTH]) > MAX_ID_LENGTH
    assert found["spark.authenticate"] == "true"
    assert "s3cret" not in repr(found)


def test_spark_writes_temporary_files_to_the_scratch_folder_with_any_usable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dätä 'of mine'"
    folder.mkdir()
    found = _spark_settings(PipelineSettings(), [], scratch=folder)
    assert found["spark.local.dir"] == str(folder)
    assert shlex.split(found["spark.driver.extraJavaOptions"])[-1] == f"-Djava.io.tmpdir={folder}"
    assert "spark.local.dir" not in _spark_settings(PipelineSettings(), [], scratch=folder / "a,b"), (
        "these would be two folders"
    )
    monkeypatch.setattr(session, "_forbids_programs", lambda folder: True)
    found = _spark_settings(PipelineSettings(), [], scratch=folder)
    assert found["spark.local.dir"] == str(folder)
    assert "tmpdir" not in found["spark.driver.extraJavaOptions"], "a library that Java unpacks there could not be used"


def test_prepared_classes_are_used_if_they_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars, given = tmp_path / "its jars", []

    def begun(builder: SparkSession.Builder) -> None:
        given.append(shlex.split(builder._options["spark.driver.extraJavaOptions"]))

    jars.mkdir()
    monkeypatch.setattr(session, "find_jars", lambda _: [])
    monkeypatch.setattr(session, "find_java", lambda: JavaProgram("java", "17"))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", begun)
    start_session(PipelineSettings(jars=str(jars)))
    classes = prepared_classes(jars, "17")
    classes.touch()
    start_session(PipelineSettings(jars=str(jars)))
    without, taking = given
    assert {f"-XX:SharedArchiveFile={classes}", "-XX:+VerifySharedSpaces"} <= set(taking)
    assert not any("SharedArchiveFile" in option for option in without)


def test_wide_queries_leave_slots_and_memory_to_the_pipeline() -> None:
    options = PipelineSettings(master="local[3]", memory="2g")
    assert _master(options, "s3cret") == "local[6]"
    assert _master(options, None) == "local[3]"
    found = _spark_settings(options, [], "s3cret")
    assert (found["spark.scheduler.mode"], found["spark.default.parallelism"]) == ("FAIR", "3")
    assert found["spark.driver.maxResultSize"] == str(256 << 20)
    pools = Path(found["spark.scheduler.allocation.file"].removeprefix("file://")).read_text(encoding="utf-8")
    assert f'<pool name="{FIRST}">' in pools
    assert "s3cret" not in found.values(), "a setting is visible in the process list"


def test_the_driver_gets_no_larger_sample_for_compaction_than_by_default() -> None:
    """By default it is 100 entities for each of 1000 ranges, and three times as many to be sure."""
    found = _spark_settings(PipelineSettings(), [], "s3cret")
    ranges = int(found["spark.databricks.io.skipping.mdc.rangeId.max"])
    assert ranges * int(found["spark.sql.execution.rangeExchange.sampleSizePerPartition"]) <= 100 * 1000


def test_the_token_is_in_the_environment_only_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_TOKEN_VARIABLE, "theirs")
    with _in_environment(_TOKEN_VARIABLE, "ours"):
        assert os.environ[_TOKEN_VARIABLE] == "ours"
    with _in_environment(_TOKEN_VARIABLE, None):
        assert _TOKEN_VARIABLE not in os.environ
    assert os.environ[_TOKEN_VARIABLE] == "theirs"


class Collected:
    """A Spark whose Java process finds unneeded files at its second look, and that one file is needed."""

    def __init__(self, folder: Path, needed: str | None = None) -> None:
        self.collections = 0
        self._folder, self._needed = folder, needed
        manager = SimpleNamespace(localDirs=lambda: [SimpleNamespace(getPath=lambda: str(folder))])
        blocks = SimpleNamespace(diskBlockManager=lambda: manager)
        env = SimpleNamespace(get=lambda: SimpleNamespace(blockManager=lambda: blocks))
        packages = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(SparkEnv=env)))
        system = SimpleNamespace(gc=self._look)
        self._jvm: Any = SimpleNamespace(org=packages, java=SimpleNamespace(lang=SimpleNamespace(System=system)))

    def _look(self) -> None:
        self.collections += 1
        # It does not wait for files written meanwhile.
        (self._folder / "0c" / f"shuffle_9_{self.collections}_0.data").touch()
        for file in [*self._folder.rglob("shuffle_1_*")] if self.collections == 2 else []:
            if file.name != self._needed:
                file.unlink()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(session, "_POLL_SECONDS", 0.0)
    (tmp_path / "0c").mkdir()
    for name in ("shuffle_1_4_0.data", "shuffle_1_4_0.index", "rdd_7_0"):
        (tmp_path / "0c" / name).touch()
    return tmp_path


def test_shuffle_files_are_removed_after_a_java_garbage_collection(scratch: Path) -> None:
    spark: Any = Collected(scratch)
    assert drop_shuffles(spark) == 0
    assert spark.collections == 2
    assert sorted(it.name for it in scratch.rglob("*_*")) == ["rdd_7_0", "shuffle_9_1_0.data", "shuffle_9_2_0.data"]


def test_dropping_shuffles_ends_when_no_more_files_are_freed(scratch: Path) -> None:
    spark: Any = Collected(scratch, needed="shuffle_1_4_0.data")
    assert drop_shuffles(spark) == 1
    assert spark.collections == 2 + _IDLE_COLLECTIONS


def test_prepared_classes_are_named_by_the_builds_and_the_place_of_java_and_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not use those of another environment, which may share the folder of the jars."""
    java = "17.0.15+6"
    found = prepared_classes(tmp_path, java)
    assert found.parent == tmp_path
    assert found.name.startswith(f"classes-17.0.15+6-{pyspark.__version__}-")
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    assert prepared_classes(tmp_path, java) != found

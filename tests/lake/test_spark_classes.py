"""Java's classes for Spark are prepared once, and taken by the Java processes that begin later."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_store.pipeline.delta_jars import default_folder
from spark_store.pipeline.java import JavaProgram, find_java
from spark_store.pipeline.session import prepared_classes
from tests.support.lake.java_process import java_pid
from tools.spark_classes import is_fresh, main, run


@pytest.mark.spark
def test_a_java_that_starts_takes_the_prepared_classes(spark: SparkSession) -> None:
    """Java maps the archive, and prints no warning without it."""
    mapped = Path(f"/proc/{java_pid(spark)}/maps").read_text(encoding="utf-8")
    assert str(prepared_classes(default_folder(), find_java().build)) in mapped


def test_the_class_archive_is_outdated_after_the_jars_are_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes, installed = tmp_path / "classes-17-4.2.0.jsa", tmp_path / "pyspark" / "jars"
    installed.mkdir(parents=True)
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    assert not is_fresh(classes)
    classes.touch()
    later = installed.stat().st_mtime + 10
    os.utime(classes, (later, later))
    monkeypatch.setattr("tools.spark_classes.find_jars", lambda _: [])
    assert is_fresh(classes)
    os.utime(installed, (later + 1, later + 1))
    assert not is_fresh(classes)


def pipeline(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run a script instead of the pipeline."""
    program = folder / "pipeline"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_pipeline_that_answers_no_query_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline(tmp_path, monkeypatch, """echo '{no event}'; echo '{"event": "maintenance"}'; exec sleep 600""")
    assert run(tmp_path / "data", tmp_path / "classes.jsa") == ["{no event}\n", '{"event": "maintenance"}\n']


def test_a_pipeline_that_never_reaches_maintenance_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.spark_classes.TIMEOUT", 0.5)
    pipeline(tmp_path, monkeypatch, """echo '{"event": "maintenance failed"}'; exec sleep 600""")
    assert run(tmp_path / "data", tmp_path / "classes.jsa") == ['{"event": "maintenance failed"}\n']


def test_a_pipeline_ends_with_its_parent_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline(tmp_path, monkeypatch, 'echo "$*"')
    assert run(tmp_path / "data", tmp_path / "classes.jsa")[0].endswith(" --with-parent\n")


@pytest.mark.parametrize(("ending", "is_made"), [("", False), ('echo "its own" >"$made";', True)])
def test_a_class_archive_of_another_java_is_not_used_for_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, is_made: bool
) -> None:
    """Spark starts one Java process to learn how to start the lasting one."""
    script = f"""
        made=$(echo "$JDK_JAVA_OPTIONS" | cut -d" " -f1 | cut -d= -f2); echo "of another" >"$made"
        trap '{ending} exit' TERM
        echo '{{"event": "spark"}}'; echo '{{"event": "maintenance"}}'
        while :; do sleep 0.1; done
    """
    pipeline(tmp_path, monkeypatch, script)
    run(tmp_path / "data", tmp_path / "classes.jsa")
    assert (tmp_path / "classes.jsa").exists() is is_made


def test_the_old_class_archive_is_removed_before_java_writes_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java cannot write an archive of loaded classes while it maps another."""
    seen: list[list[Path]] = []

    def run(_: Path, made: Path) -> list[str]:
        seen.append(list(tmp_path.glob("classes-*.jsa")))
        made.write_bytes(b"again")
        return ['{"event": "maintenance"}\n']

    of = "17"
    prepared_classes(tmp_path, of).write_bytes(b"before")
    for name, stands_for in {
        "JARS": tmp_path,
        "find_java": lambda: JavaProgram("java", of),
        "is_fresh": lambda _: False,
        "run": run,
    }.items():
        monkeypatch.setattr(f"tools.spark_classes.{name}", stands_for)
    assert main() == 0
    assert seen == [[]]
    assert prepared_classes(tmp_path, of).read_bytes() == b"again"
    assert "class data archive created" in capsys.readouterr().out

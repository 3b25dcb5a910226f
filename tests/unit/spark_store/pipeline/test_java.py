"""The Java that Spark runs on: which one is taken, and the error where it is missing."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from spark_store.errors import SparkMissing, StoreError, StoreUnavailable
from spark_store.pipeline.java import find_java


def java(folder: Path, version: str) -> Path:
    """A Java home whose Java prints this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    program.chmod(0o755)
    return folder


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')))
    assert find_java() == (str(tmp_path / "bin" / "java"), "21")


def test_a_java_is_known_by_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)'
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, output)))
    found = find_java()
    assert found.build == "17.0.15+6-Debian-1deb12u1"


@pytest.mark.parametrize("output", ['openjdk version "11.0.20"', 'java version "1.8.0_202"', "what?"])
def test_an_old_java_is_refused_with_its_version_output(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, output)))
    with pytest.raises(SparkMissing, match=r"expected Java 17 or later, found .*java, which says"):
        find_java()


def test_a_missing_java_raises_an_error_with_the_installation_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match="found none; install one"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SparkMissing, match="does not start"):
        find_java()


@pytest.mark.parametrize("script", ["exec sleep 9", "kill -KILL $$", "echo no memory >&2; exit 1"])
def test_a_java_that_does_not_answer_this_time_is_not_missing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = java(tmp_path, "") / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("spark_store.pipeline.java._JAVA_SECONDS", 0.5)
    with pytest.raises(StoreUnavailable, match=r"expected Java 17 or later, found .*java, which does not answer"):
        find_java()


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EAGAIN, StoreUnavailable), (errno.ENOMEM, StoreUnavailable), (errno.ENOEXEC, SparkMissing)],
)
def test_a_java_that_cannot_be_started_is_missing_only_where_it_is_no_program(
    number: int, expected: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "")))
    monkeypatch.setattr(subprocess, "run", refuses)
    with pytest.raises(expected):
        find_java()

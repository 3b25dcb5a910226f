"""The path of Delta's jars, and the error where they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_store.errors import SparkMissing
from spark_store.pipeline import delta_jars
from spark_store.pipeline.delta_jars import default_folder, find_jars, install_jars, jar_names


def test_the_jars_are_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_folder() == Path("/elsewhere/broker-connectivity/delta-4.4.0")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/elsewhere")
    assert default_folder() == Path("/elsewhere/.cache/broker-connectivity/delta-4.4.0")


def test_missing_jars_raise_an_error_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    (tmp_path / "delta-storage-4.4.0.jar").touch()
    expected = r"found no delta-spark_4\.2_2\.13-4\.4\.0\.jar; `connectivity pipeline install` fetches them"
    with pytest.raises(SparkMissing, match=expected):
        find_jars(tmp_path)
    (tmp_path / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert [jar.name for jar in find_jars(tmp_path)] == jar_names()


def test_without_pyspark_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_jars, "find_spec", lambda _: None)
    with pytest.raises(SparkMissing, match=r"pip install 'broker-connectivity\[spark\]'"):
        install_jars(tmp_path / "jars")

"""`connectivity pipeline install` fetches Delta's jars from a Maven repository.

It keeps only the expected ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_store.errors import SparkMissing, StoreUnavailable
from spark_store.pipeline.delta_jars import VERSION, default_folder, find_jars, install_jars, jar_names

# They need what Spark is made of, and no Spark that runs.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("delta-jars")]

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>io.delta</groupId><artifactId>{}</artifactId><version>{}</version></project>"""


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A folder laid out as a Maven repository, with Delta's jars."""
    for jar in find_jars(default_folder()):
        artifact = jar.name.removesuffix(f"-{VERSION}.jar")
        folder = tmp_path / "mirror" / "io" / "delta" / artifact / VERSION
        folder.mkdir(parents=True)
        shutil.copy(jar, folder)
        folder.joinpath(f"{artifact}-{VERSION}.pom").write_text(POM.format(artifact, VERSION), encoding="utf-8")
    return tmp_path / "mirror"


def install(tmp_path: Path, **spark: str) -> subprocess.CompletedProcess[str]:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"data_dir": str(tmp_path / "data"), "spark": spark}), encoding="utf-8")
    command = [sys.executable, "-m", "connectivity", "pipeline", "install", "--settings", str(settings)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow(reason="Java starts for each jar, and two commands run")
def test_the_jars_are_fetched_once_from_the_mirror_of_the_settings(tmp_path: Path, mirror: Path) -> None:
    jars = tmp_path / "cache" / "jars"
    fetched = install(tmp_path, jars=str(jars), mirror=mirror.as_uri())
    assert (fetched.returncode, fetched.stdout) == (0, f"{jars}: fetched\n"), fetched.stderr
    assert {jar.name: jar.read_bytes() for jar in find_jars(jars)} == {
        jar.name: jar.read_bytes() for jar in find_jars(default_folder())
    }
    assert list(jars.parent.iterdir()) == [jars]
    again = install(tmp_path, jars=str(jars), mirror="file:///nowhere")
    assert (again.returncode, again.stdout) == (0, f"{jars}: complete before\n"), again.stderr


def test_other_files_in_the_folder_stay(tmp_path: Path, mirror: Path) -> None:
    """The setting may name a folder with other things, such as the jars of an installed Spark."""
    jars = tmp_path / "jars"
    (jars / "more").mkdir(parents=True)
    (jars / "other.jar").write_bytes(b"another")
    (jars / f"delta-storage-{VERSION}.jar").write_bytes(b"damaged")
    assert install_jars(jars, mirror.as_uri())
    assert {it.name for it in jars.iterdir()} == {"more", "other.jar", *jar_names()}
    assert not install_jars(jars, "file:///nowhere")


def test_a_changed_jar_is_refused_and_the_earlier_ones_stay(tmp_path: Path, mirror: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "earlier").touch()
    next(mirror.rglob("delta-storage-*.jar")).write_bytes(b"changed")
    with pytest.raises(SparkMissing, match=r"delta-storage-4\.4\.0\.jar: expected SHA-256 c467\w+, found \w+;"):
        install_jars(jars, mirror.as_uri())
    assert [it.name for it in jars.iterdir()] == ["earlier"]


def test_a_mirror_without_the_jars_is_named_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"the file cannot be downloaded: .*; check the network, or set spark\.mirror"
    ):
        install_jars(tmp_path / "jars", (tmp_path / "nothing").as_uri())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = install(tmp_path, jars=str(tmp_path / "file" / "jars"))
    assert ended.returncode == 1
    assert "file/jars: the service cannot write Delta's jars to this folder" in ended.stderr

"""Delta's jars, which Spark needs to write the lake: where they are, and how they are fetched.

The package `pyspark` does not bring them. They are fetched once, from Maven's central repository or a mirror, and kept only
if their checksums are those below. Everything that Delta depends on is in `pyspark`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

from spark_store.errors import INSTALL_EXTRA, SparkMissing, StoreUnavailable, translate_system_error
from spark_store.pipeline.java import java_build
from spark_store.pipeline.settings import PipelineSettings

VERSION = "4.4.0"
"""The version of Delta Lake for the Spark that is installed."""

_ARTIFACTS = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}
"""The artifacts with the SHA-256 of their jars."""

_CENTRAL = "https://repo1.maven.org/maven2"
_ANSWER_SECONDS = 60.0
_REMEDY = "`connectivity pipeline install` fetches them"


def default_folder() -> Path:
    """Return the folder in the user's cache (XDG Base Directory)."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "broker-connectivity" / f"delta-{VERSION}"


def jars_folder(settings: PipelineSettings) -> Path:
    return default_folder() if settings.jars is None else Path(settings.jars)


def jar_names() -> list[str]:
    return [f"{artifact}-{VERSION}.jar" for artifact in _ARTIFACTS]


def find_jars(folder: Path) -> list[Path]:
    """Return Delta's jars. Raises SparkMissing if there are none of this version."""
    jars = [folder / name for name in jar_names()]
    if missing := [jar.name for jar in jars if not jar.exists()]:
        raise SparkMissing(f"{folder}: expected Delta's jars, found no {' and no '.join(missing)}; {_REMEDY}")
    return jars


def install_jars(folder: Path, mirror: str | None = None) -> bool:
    """Fetch the jars into the folder when all are there and right; its other files stay.

    Return False if the folder had them already. `mirror`: the address of a Maven repository instead of the central one.
    Raises SparkMissing if `pyspark` or Java is missing, or a jar is not what is expected; StoreUnavailable if the repository
    or the folder cannot be used now.
    """
    # Not imported, which takes long.
    if find_spec("pyspark") is None:
        raise SparkMissing(f"expected pyspark, found none; {INSTALL_EXTRA.format('spark')}")
    java_build()
    if not _wrong(folder):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetched.", dir=folder) as name:
            jars = Path(name)
            for artifact, jar in zip(_ARTIFACTS, jar_names(), strict=True):
                content = _fetch(f"{(mirror or _CENTRAL).rstrip('/')}/io/delta/{artifact}/{VERSION}/{jar}")
                (jars / jar).write_bytes(content)
            if wrong := _wrong(jars):
                raise SparkMissing(f"{folder}: {'; '.join(wrong)}; the mirror, or something on the way, changed it")
            for jar in jar_names():
                (jars / jar).replace(folder / jar)
    except OSError as error:
        raise translate_system_error(folder, error, "the service cannot write Delta's jars to this folder") from error
    return True


def _fetch(address: str) -> bytes:
    try:
        with urlopen(address, timeout=_ANSWER_SECONDS) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise StoreUnavailable(
            f"{address}: the file cannot be downloaded: {error}; check the network, or set spark.mirror"
        ) from error
    return content


def _wrong(folder: Path) -> list[str]:
    """Return a text for each jar that is missing, or has another checksum."""
    found = []
    for name, expected in zip(jar_names(), _ARTIFACTS.values(), strict=True):
        jar = folder / name
        if not jar.exists():
            found.append(f"{name}: expected SHA-256 {expected}, found no file")
        elif (sum_ := hashlib.sha256(jar.read_bytes()).hexdigest()) != expected:
            found.append(f"{name}: expected SHA-256 {expected}, found {sum_}")
    return found

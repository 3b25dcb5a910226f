"""Delta's jars, which Spark needs to write the lake: where they are, and how they are fetched.

The package `pyspark` does not bring them. They are fetched once, from Maven's central repository or a mirror, and kept only
if their checksums are those below. Everything that Delta depends on is in `pyspark`.
"""

from __future__ import annotations

import hashlib
import os
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from spark_store.errors import SparkMissing, StoreUnavailable, translate_system_error
from spark_store.files import write_atomically

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


def jar_names() -> list[str]:
    return [_jar_name(artifact) for artifact in _ARTIFACTS]


def _jar_name(artifact: str) -> str:
    return f"{artifact}-{VERSION}.jar"


def find_jars(folder: Path) -> list[Path]:
    """Return Delta's jars. Raises SparkMissing if there are none of this version."""
    jars = [folder / name for name in jar_names()]
    if missing := [jar.name for jar in jars if not jar.exists()]:
        raise SparkMissing(f"{folder}: expected Delta's jars, found no {' and no '.join(missing)}; {_REMEDY}")
    return jars


def install_jars(folder: Path, mirror: str | None = None) -> bool:
    """Fetch the jars into the folder when all are there and right; its other files stay.

    Return False if the folder had them already. `mirror`: the address of a Maven repository instead of the central one.
    Raises SparkMissing if a jar is not what is expected, StoreUnavailable if repository or folder cannot be used now.
    """
    jars = {folder / _jar_name(artifact): expected for artifact, expected in _ARTIFACTS.items()}
    if all(jar.exists() and _sha256(jar.read_bytes()) == expected for jar, expected in jars.items()):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = {folder / _jar_name(artifact): _fetch(artifact, mirror or _CENTRAL) for artifact in _ARTIFACTS}
        for jar, content in found.items():
            if (sum_ := _sha256(content)) != jars[jar]:
                raise SparkMissing(
                    f"{jar}: expected SHA-256 {jars[jar]}, found {sum_}; the mirror, or something on the way, changed it"
                )
        for jar, content in found.items():
            write_atomically(jar, content)
    except OSError as error:
        raise translate_system_error(folder, error, "the service cannot write Delta's jars to this folder") from error
    return True


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _fetch(artifact: str, repository: str) -> bytes:
    address = f"{repository.rstrip('/')}/io/delta/{artifact}/{VERSION}/{_jar_name(artifact)}"
    try:
        with urlopen(address, timeout=_ANSWER_SECONDS) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException, ValueError) as error:
        raise StoreUnavailable(
            f"{address}: the file cannot be downloaded: {error}; check the network, or set spark.mirror"
        ) from error
    return content

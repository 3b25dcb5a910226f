"""Delta's jars, which Spark needs to write the lake: where they are, and how they are fetched.

The package `pyspark` does not bring them. They are fetched once, by the Ivy in `pyspark`, from Maven's central repository or
a mirror, and kept only if their checksums are those below. Everything that Delta depends on is in `pyspark`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from spark_store.errors import INSTALL_EXTRA, SparkMissing, StoreUnavailable, translate_system_error
from spark_store.pipeline.java import find_java
from spark_store.pipeline.settings import PipelineSettings

VERSION = "4.4.0"
"""The version of Delta Lake for the Spark that is installed."""

_ORGANIZATION = "io.delta"
_ARTIFACTS = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}
"""The artifacts with the SHA-256 of their jars."""

_FETCH_SECONDS = 600.0
_REMEDY = "`connectivity pipeline install` fetches them"
_SHOWN = 400


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
    ivy, java = _find_ivy(), find_java()
    if not _wrong(folder):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetched.", dir=folder) as name:
            part = Path(name)
            jars = part / "jars"
            for artifact in _ARTIFACTS:
                _fetch([java.program, "-jar", str(ivy), *_repository(part, mirror)], artifact, part / "cache", jars)
            if wrong := _wrong(jars):
                raise SparkMissing(f"{folder}: {'; '.join(wrong)}; the mirror, or something on the way, changed it")
            for jar in jar_names():
                (jars / jar).replace(folder / jar)
    except OSError as error:
        raise translate_system_error(folder, error, "the service cannot write Delta's jars to this folder") from error
    return True


def _find_ivy() -> Path:
    """Return the Ivy of the installed `pyspark`. It is not imported, which takes long."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkMissing(f"expected pyspark, found none; {INSTALL_EXTRA.format('spark')}")
    return next((Path(found.origin).parent / "jars").glob("ivy-*.jar"))


def _repository(part: Path, mirror: str | None) -> list[str]:
    """Return Ivy's options for a mirror; without one it uses Maven's central repository."""
    if mirror is None:
        return []
    settings = part / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(mirror)}/></resolvers></ivysettings>',
        encoding="utf-8",
    )
    return ["-settings", str(settings)]


def _fetch(ivy: list[str], artifact: str, cache: Path, jars: Path) -> None:
    command = [
        *ivy,
        *("-cache", str(cache), "-confs", "default", "-notransitive"),
        *("-dependency", _ORGANIZATION, artifact, VERSION),
        *("-retrieve", str(jars / "[artifact]-[revision].[ext]")),
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise StoreUnavailable(
            f"{artifact} {VERSION}: the download took longer than {_FETCH_SECONDS:g} s; check the network, or set "
            "spark.mirror"
        ) from error
    if ended.returncode:
        lines = [line.strip(" :\t") for line in (ended.stdout + ended.stderr).splitlines()]
        said = [line for line in lines if "not found" in line or "rror" in line]
        reason = said[0][:_SHOWN] if said else f"Ivy ended with {ended.returncode}"
        raise StoreUnavailable(
            f"{artifact} {VERSION}: the file cannot be downloaded: {reason}; check the network, or set spark.mirror"
        )


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

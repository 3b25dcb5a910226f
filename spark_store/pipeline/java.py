"""Finds the Java that runs Spark, and its version."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

from spark_store.errors import SparkMissing, StoreUnavailable

OLDEST_JAVA = 17

_JAVA_SECONDS = 60.0
_NO_PROGRAM = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC}
"""Errors of the system for files that are no programs. Other errors may pass, such as lack of memory."""

_BUILD = re.compile(r"\(build ([\w.+-]+)")


def java_build() -> str:
    """Return the build of the Java that Spark will run, or else its version.

    A build is text such as `17.0.15+6-Debian-1deb12u1`. Raises SparkMissing if there is no Java that is new enough,
    StoreUnavailable if it does not answer now.
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
            raise SparkMissing(f"{expected}, found {java}, which does not start: {error}") from error
        raise StoreUnavailable(f"{expected}, found {java}, which does not answer: {error}") from error
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise SparkMissing(f"{expected}, found {java}, which says {said.splitlines()[:1]}")
    build = _BUILD.search(said)
    return build[1] if build is not None else version[1]

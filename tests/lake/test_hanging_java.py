"""A test that waits for a Java process shows where that process is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.support.wait import wait_until_sync
from tests.support.watchdog import java_stacks_of


@pytest.mark.spark
def test_the_stacks_of_a_java_process_are_shown() -> None:
    (library,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else "java"
    command = [java, "-cp", str(library), "py4j.GatewayServer", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip().isdigit(), "it listens"
            # The thread may not have started yet.
            wait_until_sync(lambda: "at py4j.GatewayServer.run(" in java_stacks_of(process.pid))
        finally:
            process.kill()

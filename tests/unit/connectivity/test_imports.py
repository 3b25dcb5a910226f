"""Modules that the service loads without a lake."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service_process import ServiceCommand

LAKE_LIBRARIES = {"adbc_driver_manager", "deltalake", "grpc", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}


def libraries(import_times: str) -> set[str]:
    """The top-level names in what `python -X importtime` prints."""
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\w+)", import_times, re.MULTILINE))


def test_the_service_without_a_lake_imports_no_lake_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with ServiceCommand.start(tmp_path, [], spark={"mode": "off"}) as service:
        assert service.stop()[0] == 0
    loaded = libraries(service.log_file.read_text(encoding="utf-8"))
    assert {"connectivity", "fastapi"} <= loaded
    assert not loaded & LAKE_LIBRARIES


@pytest.mark.parametrize("command", [["--help"], ["validate", "--help"], ["connections", "--help"]])
def test_a_command_that_needs_no_lake_imports_no_lake_library_and_no_server(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "connectivity", *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    loaded = libraries(shown.stderr)
    assert "typer" in loaded
    assert not loaded & {*LAKE_LIBRARIES, "fastapi", "uvicorn"}

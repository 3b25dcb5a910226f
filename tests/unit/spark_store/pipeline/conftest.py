"""Fixtures for tests of the pipeline that need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lake.pipeline_process import DataFolder


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")

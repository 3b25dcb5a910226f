"""Fixtures for tests of the pipeline that need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_store.pipeline.tables import LakeWriter
    from tests.support.lake.pipeline_process import DataFolder


@pytest.fixture
def data_folder(tmp_path: Path) -> DataFolder:
    # Some of these tests run without the extras that its module needs.
    from tests.support.lake.pipeline_process import DataFolder

    return DataFolder(tmp_path / "data")


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def target(tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch) -> LakeWriter:
    from tests.support.lake.fake_pipeline import fake_writer

    return fake_writer(tmp_path, done, monkeypatch)

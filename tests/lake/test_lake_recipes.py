"""The recipe about DuckDB is followed as written, over a small lake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mappings.model.signals import Event
from spark_store.records import Change, Snapshot
from tests.support.lake.pipeline_process import DataFolder, lamp
from tests.support.lake.pipeline_tables import write_lake
from tests.support.recipe import Follower, programs


def fill(folder: DataFolder) -> None:
    """Two lamps with four events each."""
    for number in (1, 2):
        for revision in range(1, 5):
            at = f"2030-01-15T{7 + revision:02}:30:00.000000Z"
            event = Event(lamp(number), revision, at, "modified", "/attributes", b'{"n":%d}' % revision, b"{}")
            state = {"attributes": {"n": revision}}
            folder.append([Change((event,), (Snapshot(lamp(number), revision, at, at, state, None),))])
    write_lake(folder.folder)


def installed() -> None:
    """The packages are those of the tests."""


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_lake_is_queried_with_duckdb_as_written(data_folder: DataFolder, tmp_path: Path) -> None:
    fill(data_folder)
    variables = {**os.environ, "PATH": f"{programs(tmp_path / 'bin', '', 0)}:{os.environ['PATH']}"}
    with Follower(
        data_folder.folder.parent,
        variables,
        {"data/lake": str(data_folder.lake.folder)},
        {"pip install duckdb deltalake": installed},
    ) as reader:
        assert reader.follow("query-lake-duckdb") == 3

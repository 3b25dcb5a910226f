"""The guides about the lake are followed as written, over a small lake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from connectivity.cli.main import app
from connectivity.config.settings import Settings
from connectivity.maintenance import pipeline_process
from mappings.model.signals import Event
from spark_store.journal.reader import JournalReader
from spark_store.pipeline import __main__ as pipeline
from spark_store.pipeline.tables import LakeWriter
from spark_store.records import Change, Snapshot
from tests.support.lake.pipeline_process import DataFolder, counted, lamp
from tests.support.lake.pipeline_tables import add_events, event_row, write_lake
from tests.support.markdown import blocks
from tests.support.recipe import HOW_TO, Follower, commands, is_shown, programs


def fill(folder: DataFolder) -> None:
    """Write two lamps with four events each."""
    for number in (1, 2):
        for revision in range(1, 5):
            at = f"2030-01-15T{7 + revision:02}:30:00.000000Z"
            event = Event(lamp(number), revision, at, "modified", "/attributes", b'{"n":%d}' % revision, b"{}")
            state = {"attributes": {"n": revision}}
            folder.append(
                [Change((event,), (Snapshot(lamp(number), revision, "2030-01-15T08:30:00.000000Z", at, state, None),))]
            )
    write_lake(folder.folder)


def installed() -> None:
    """The packages are those of the tests."""


def follower(folder: DataFolder, bin_folder: Path) -> Follower:
    """A reader in the folder that has `data`."""
    variables = {**os.environ, "PATH": f"{programs(bin_folder, '', 0)}:{os.environ['PATH']}"}
    places = {"data/lake": str(folder.lake.folder)}
    return Follower(
        folder.folder.parent,
        variables,
        places,
        {"pip install duckdb deltalake": installed, "pip install deltalake": installed},
    )


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_lake_is_queried_with_duckdb_as_written(data_folder: DataFolder, tmp_path: Path) -> None:
    fill(data_folder)
    with follower(data_folder, tmp_path / "bin") as reader:
        assert reader.follow("query-lake-duckdb") == 4


def test_a_job_follows_new_events_as_written(data_folder: DataFolder, tmp_path: Path) -> None:
    fill(data_folder)
    with follower(data_folder, tmp_path / "bin") as reader:
        assert reader.follow("follow-lake") == 5
        data_folder.append([counted(lamp(1), 5), counted(lamp(2), 5)])
        with JournalReader.open(data_folder.lake.journal) as journal_reader:
            add_events(data_folder.folder, map(event_row, journal_reader.entries(9, 10)), 10)
        home, position = data_folder.folder.parent, data_folder.folder.parent / "position.txt"
        # With this limit, it cannot write to the files that it opens.
        limited = ["sh", "-c", f"ulimit -f 0 && exec {sys.executable} follow.py"]
        stopped = subprocess.run(limited, cwd=home, capture_output=True, text=True)
        assert ("File too large" in stopped.stderr, position.read_text()) == (True, "8")
        found = subprocess.run([sys.executable, "follow.py"], cwd=home, capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in found.stdout.splitlines()] == [["9", lamp(1).id], ["10", lamp(2).id]]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_lake_is_compared_with_the_journal_as_written(data_folder: DataFolder, tmp_path: Path) -> None:
    fill(data_folder)
    with follower(data_folder, tmp_path / "bin") as reader:
        assert reader.follow("run-pipeline") == 2


def test_events_are_exported_as_written_without_spark(data_folder: DataFolder, tmp_path: Path) -> None:
    fill(data_folder)
    settings = {"data_dir": str(data_folder.folder), "spark": {"mode": "off"}}
    (tmp_path / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
    with follower(data_folder, tmp_path / "bin") as reader:
        assert reader.follow("export-history") == 4


@pytest.mark.spark
def test_the_retention_preview_matches_the_guide(
    spark: SparkSession, data_folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline's command runs in this process, since another one would start a Spark of its own."""
    fill(data_folder)
    settings, console = blocks(HOW_TO / "limit-history.md")
    (tmp_path / settings.title).write_text(settings.text, encoding="utf-8")
    (command,) = commands(console.text)

    def ask(settings: Settings, action: str, *options: str, **_: object) -> list[dict[str, Any]]:
        output = StringIO()
        with redirect_stdout(output):
            assert pipeline.main(pipeline_process.command(settings, action, *options)[3:]) == 0
        return [json.loads(line) for line in output.getvalue().splitlines()]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline_process, "ask", ask)
    monkeypatch.setattr(pipeline, "_target", lambda *_, **__: nullcontext(LakeWriter.of(spark, data_folder.folder)))
    program, *arguments = command.text.split()
    assert program == "connectivity"
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert is_shown(command.output, [line.rstrip() for line in found.stdout.splitlines()]), found.output

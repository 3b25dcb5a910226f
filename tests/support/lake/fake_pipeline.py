"""A pipeline's loop whose Spark is a fake."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from spark_store.lake import durability
from spark_store.lake.tables import Lake
from spark_store.pipeline import snapshots, tables
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter


class Spark:
    """A fake Spark that records its calls."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def sql(self, statement: str) -> Spark:
        self._done.append(statement.split(maxsplit=1)[0])
        return self

    def collect(self) -> list[Any]:
        return []

    def createDataFrame(self, *_: Any) -> None:  # noqa: N802
        return None


def fake_writer(folder: Path, done: list[str], monkeypatch: pytest.MonkeyPatch) -> LakeWriter:
    """A writer that notes its statements and writes to the disk in `done`, and does nothing."""
    place = Lake(folder)
    place.pipeline.mkdir(parents=True)
    monkeypatch.setattr(durability, "sync", lambda it: done.append(f"sync {it == place}"))
    monkeypatch.setattr(durability, "clean_log", lambda *_: done.append("log"))
    monkeypatch.setattr(snapshots, "thin", lambda _: 0)
    spark: Any = Spark(done)
    return LakeWriter(spark, place)


def loop_of(target: LakeWriter) -> PipelineLoop:
    return PipelineLoop(target, lambda *_, **__: None, PipelineSettings(), threading.Event())


class CountingLoop:
    """A loop whose batches and merges are counted instead of done."""

    def __init__(self, target: LakeWriter, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.batches: list[tuple[int, int]] = []
        self.merges: list[tuple[int, int]] = []
        monkeypatch.setattr(tables, "append_events", lambda _, *given: self.batches.append(given))
        monkeypatch.setattr(tables, "merge_latest", lambda _, *given: self.merges.append(given))
        monkeypatch.setattr(PipelineLoop, "_count", lambda _: None)
        self.stopping = threading.Event()
        self.loop = PipelineLoop(target, lambda *_, **__: None, PipelineSettings(**options), self.stopping)

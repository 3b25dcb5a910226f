"""Reads the lake of the demo with DuckDB, and compares it with the replays over the brokers.

The service moves every event into Delta tables. DuckDB reads the files of these tables, without the service.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from examples.broker_client import NoResponse
from examples.brokers import Progress
from examples.programs import SEARCH_PATH
from examples.scenario import UnexpectedResult
from examples.service import RunningService
from spark_store.pipeline.delta_jars import default_folder, jar_names

JARS = default_folder()
FILL_TIMEOUT = 240.0
PROGRESS_INTERVAL = 5.0

IS_THING = "entity_type = 'thing'"
"""A policy may have the same id as its thing."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The revisions of a thing that a client received, and the SQL condition that selects the same events."""

    client: str
    entity: str
    condition: str
    revisions: Sequence[int]

    @property
    def query(self) -> str:
        return (
            f"SELECT revision FROM events WHERE {IS_THING} AND entity = '{self.entity}' AND {self.condition} ORDER BY 1"
        )


def install_command() -> str | None:
    """The install command of Java and the jars that write a lake; None if both are present."""
    has_java = shutil.which("java", path=SEARCH_PATH) is not None
    has_jars = all((JARS / name).exists() for name in jar_names())
    return None if has_java and has_jars else "sudo apt-get install default-jre-headless && tools/spark"


def wait_until_filled(service: RunningService, progress: Progress) -> None:
    """Wait until the lake has all events of the journal.

    Raises NoResponse if the pipeline stops or takes too long.
    """
    begin = last = time.monotonic()
    while (lag := lag_events(service)) != 0:
        state = str(service.ready().get("lake"))
        now = time.monotonic()
        missing = f"{'an unknown number of' if lag is None else lag} events"
        if state.startswith("stopped") or now - begin > FILL_TIMEOUT:
            raise NoResponse(f"the lake lacks {missing} after {now - begin:.0f} s; the pipeline is {state}")
        if now - last > PROGRESS_INTERVAL:
            progress(f"... the lake lacks {missing}; the pipeline is {state} ...")
            last = now
        time.sleep(0.2)
    progress(f"the lake has all events, {time.monotonic() - begin:.1f} s after the last response")


def lag_events(service: RunningService) -> int | None:
    """The number of events that the lake lacks; None if the service has no such metric."""
    found = re.search(r"^connectivity_lake_lag_events (\S+)$", service.get("/metrics"), re.MULTILINE)
    return None if found is None else int(float(found[1]))


def open_events(folder: Path) -> Any:
    """The table of events as a dataset. DuckDB reads only the columns and files that a query needs."""
    table = folder / "lake" / "events"
    return DeltaTable(table).to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(table), LocalFileSystem()))


def find_revisions(events: Any, replay: ReplayResult) -> list[int]:
    """The revisions that DuckDB finds in the lake.

    Raises UnexpectedResult if they differ from the revisions of the replay.
    """
    with duckdb.connect() as reader:
        reader.register("events", events)
        found = [int(revision) for (revision,) in reader.execute(replay.query).fetchall()]
    if found != list(replay.revisions):
        raise UnexpectedResult(
            f"{replay.client}: found revisions {found} in the lake, expected {list(replay.revisions)} as in the replay"
        )
    return found


def count_events(events: Any, entities: Sequence[str]) -> int:
    """The number of events of these things in the lake."""
    with duckdb.connect() as reader:
        reader.register("events", events)
        query = f"SELECT count(*) FROM events WHERE {IS_THING} AND list_contains(?, entity)"
        row = reader.execute(query, [list(entities)]).fetchone()
    return int(row[0]) if row is not None else 0

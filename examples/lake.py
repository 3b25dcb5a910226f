"""The lake beside a conversation: waited for, then asked by a reader of its own for what was replayed over the brokers.

The service moves every event into open Delta tables. DuckDB reads them here, from their files and without the service, and
has to find the very revisions that the brokers brought.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from examples.conversation import NotAsPromised
from examples.party import NoAnswer
from examples.programs import SEARCHED
from examples.service import Serving
from spark_store.pipeline.delta_jars import default_folder, jar_names

JARS = default_folder()
FILLED_WITHIN = 240.0
TOLD_EVERY = 5.0

IS_THING = "entity_type = 'thing'"
"""A policy may have the id of its thing."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What somebody got over a broker of a thing's past: `revisions`, and the condition, in SQL, that means the same."""

    who: str
    entity: str
    condition: str
    revisions: Sequence[int]

    @property
    def query(self) -> str:
        return (
            f"SELECT revision FROM events WHERE {IS_THING} AND entity = '{self.entity}' AND {self.condition} ORDER BY 1"
        )


def brought_by() -> str | None:
    """What brings the Java and the jars that fill a lake, where one of them is missing."""
    is_there = shutil.which("java", path=SEARCHED) is not None and all((JARS / name).exists() for name in jar_names())
    return None if is_there else "sudo apt-get install default-jre-headless && tools/spark"


def wait_until_filled(serving: Serving, tell: Tell) -> None:
    """Until the lake has everything that the journal has. Raises NoAnswer where that takes too long, or cannot be."""
    begun = told = time.monotonic()
    while (waiting := events_waiting(serving)) != 0:
        state = str(serving.ready().get("lake"))
        now = time.monotonic()
        if state.startswith("stopped") or now - begun > FILLED_WITHIN:
            behind = "nobody says how many" if waiting is None else str(waiting)
            raise NoAnswer(f"events were not moved into the lake after {now - begun:.0f} s ({behind}); it is {state}")
        if now - told > TOLD_EVERY:
            tell(f"... {waiting} events on their way; the pipeline is {state} ...")
            told = now
        time.sleep(0.2)
    tell(f"the lake has everything, {time.monotonic() - begun:.1f} s after the last answer")


def events_waiting(serving: Serving) -> int | None:
    """How many events the lake lacks, as the service's metrics say; None where they do not."""
    found = re.search(r"^connectivity_lake_lag_events (\S+)$", serving.get("/metrics"), re.MULTILINE)
    return None if found is None else int(float(found[1]))


def open_events(folder: Path) -> Any:
    """The table of events as DuckDB takes it: its columns and conditions reach the files, nothing is copied."""
    return DeltaTable(folder / "lake" / "events").to_pyarrow_dataset()


def find(events: Any, replayed: Replayed) -> list[int]:
    """The revisions that DuckDB finds in the lake. Raises NotAsPromised where they are not those of the replay."""
    with duckdb.connect() as reader:
        reader.register("events", events)
        found = [int(revision) for (revision,) in reader.execute(replayed.query).fetchall()]
    if found != list(replayed.revisions):
        raise NotAsPromised(
            f"{replayed.who}: revisions {list(replayed.revisions)} came over the broker, the lake has {found}"
        )
    return found


def total(events: Any, entities: Sequence[str]) -> int:
    """How many events these things have in the lake."""
    with duckdb.connect() as reader:
        reader.register("events", events)
        query = f"SELECT count(*) FROM events WHERE {IS_THING} AND list_contains(?, entity)"
        row = reader.execute(query, [list(entities)]).fetchone()
    return int(row[0]) if row is not None else 0

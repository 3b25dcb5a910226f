"""A store that trims its journal and executes changes at the same time, until it is killed.

    python -m tests.support.kill_series.trimming_store FOLDER

It runs as a process. Prints `trimmed N` after each step that removed events, and `durable R` when the revision R of
`LATE` is durable. When there is nothing left to trim, it prints `done` and ends.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from connectivity.maintenance.journal_trimmer import JournalTrimmer
from connectivity.store.store import Store
from mappings.ids import EntityId, EntityType
from spark_store.journal.journal import Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import Lake
from tests.support.journal_entries import change

LATE = EntityId(EntityType.THING, "acme.site", "late")


async def write(store: Store) -> None:
    revision = store.newest_durable(LATE)
    while True:
        revision += 1
        await store.commits.submit([change(LATE, revision)])
        print(f"durable {revision}", flush=True)


async def main(folder: Path) -> None:
    lake = Lake(folder)
    cold = LakeHistory(lake)
    store = Store(Journal.open(lake.journal), cold=lambda: cold)
    trimmer = JournalTrimmer(
        store,
        lake,
        timedelta(0),
        lambda: datetime(2040, 1, 1, tzinfo=UTC),
        on_trim=lambda events: print(f"trimmed {events}", flush=True),
    )
    writing = asyncio.create_task(write(store))
    await trimmer.round()
    writing.cancel()
    await store.close()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

"""Builds the search index of a running service, and the indexes of `search.indexed_paths`.

Each step (`spark_store.search.index_builder`) is a transaction of its own in the store's worker thread, followed by a pause
of the same length. Commands are answered some tens of milliseconds later at worst; searches scan the states until the index
is complete. An interrupted build continues at the next start.

`request_rebuild` leaves a file in the data folder that the service removes after it has begun to build again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from connectivity.store.store import Store
from mappings.model.json_pointer import parse_pointer
from spark_store.errors import StoreError
from spark_store.search import index_builder
from spark_store.search.index_builder import IndexProgress
from spark_store.search.index_sql import path_of

log = structlog.get_logger(__name__)

REPORT_SECONDS = 10.0
"""How often progress is logged."""

RETRY_SECONDS = 1.0
"""How long to wait after a step that failed."""

LOOK_SECONDS = 5.0
"""How often to check for a request to build again."""

MARK = "index-rebuild-requested"
"""The name of the file that requests it."""


def request_rebuild(data_dir: Path) -> None:
    """Have the service with this folder, or the next one, build the index again. Raises OSError."""
    (data_dir / MARK).touch(mode=0o600)


class IndexBuilder:
    """Completes the search index."""

    def __init__(self, store: Store, declared: Sequence[str] = ()) -> None:
        """`declared`: paths with an index of their own, as JSON pointers."""
        self._declared = [path_of(parse_pointer(path)) for path in declared]
        self._store = store
        self._mark = store.path.with_name(MARK)
        self._is_declared = False

    def progress(self) -> IndexProgress:
        """Return the progress of the index. Raises StoreUnavailable."""
        return self._store.read(index_builder.progress)

    async def restart(self) -> IndexProgress:
        """Discard the index, to be built again; durable when this returns. Raises StoreUnavailable."""
        await self._store.commits.execute(index_builder.restart)
        return self.progress()

    async def round(self) -> None:
        """Build missing or requested indexes. Waits while the store is unavailable."""
        try:
            if not self._is_declared:
                await self._store.commits.execute(lambda it: index_builder.declare(it, self._declared))
                self._is_declared = True
            if self._mark.exists():
                # The file goes last: a crash repeats the request, and does not lose it.
                await self.restart()
                self._mark.unlink(missing_ok=True)
            if self._store.read(index_builder.has_work):
                await self._build()
        except StoreError as error:
            log.warning("search index waits for the store", reason=str(error))
            await self._store.commits.wait_available()

    async def _build(self) -> None:
        begun = logged = time.monotonic()
        steps, failure = 0, ""
        while True:
            since = time.monotonic()
            try:
                steps += 1
                if not await self._store.commits.execute_alone(index_builder.step):
                    break
                now, failure = time.monotonic(), ""
                pause = now - since
                if steps == 1 or now - logged >= REPORT_SECONDS:
                    logged, found = now, self.progress()
                    log.info("search index build in progress", indexed=found.indexed, entities=found.last)
            except StoreError as error:
                if str(error) != failure:
                    log.warning("search index waits for the store", reason=str(error))
                failure, pause = str(error), RETRY_SECONDS
                await self._store.commits.wait_available()
            await asyncio.sleep(pause)
        log.info("search index built", steps=steps, seconds=round(time.monotonic() - begun, 1))

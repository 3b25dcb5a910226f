"""The search index of a running service: made of the states where it is not there yet, or where an operator wants it anew;
so are the indexes of paths that are declared in `search.indexed_paths`.

Each step (`spark_store.search.index_builder`) is a transaction of its own in the store's worker thread, and after it
everybody else has as much time as it took. So commands go on meanwhile, answered some tens of milliseconds later at worst;
searches look at the states until it is done. Whatever is killed, the next start goes on.

Who wants it anew while a service has the data folder leaves a file there (`want_anew`), which the service takes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from connectivity.store.store import Store
from mappings.model.json_pointer import parse_pointer
from spark_store.errors import StoreError
from spark_store.journal.journal import SqliteJournal
from spark_store.search import index_builder
from spark_store.search.index_builder import IndexProgress
from spark_store.search.index_sql import path_of

log = structlog.get_logger(__name__)


TELL_SECONDS = 10.0
"""So often it is logged how far it has come."""

RETRY_SECONDS = 1.0
"""How long to wait after a step that failed."""

LOOK_SECONDS = 5.0
"""How often it is looked whether somebody wants it anew."""

MARK = "index-wanted-anew"
"""The file that says so."""


def want_anew(data_dir: Path) -> None:
    """The service that has this folder, or the next one, makes the index anew. Raises OSError."""
    (data_dir / MARK).touch(mode=0o600)


class IndexBuilder:
    """Sees to it that the index is complete."""

    def __init__(
        self,
        journal: SqliteJournal,
        store: Store,
        declared: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`declared`: paths that have an index of their own, as pointers. `clock` gives monotonic seconds."""
        self._declared = [path_of(parse_pointer(path)) for path in declared]
        self._journal = journal
        self._store = store
        self._clock = clock
        self._mark = Path(journal.path).with_name(MARK)

    def __repr__(self) -> str:
        return f"<Indexer of {self._journal.path}>"

    def progress(self) -> IndexProgress:
        """How far the index has come. Raises StoreUnavailable."""
        return self._journal.read(index_builder.progress)

    async def begin_anew(self) -> IndexProgress:
        """All of it has to be made anew; durable when this returns. Raises StoreUnavailable."""
        await self._store.take(lambda: self._journal.within(index_builder.begin_anew))
        return self.progress()

    async def run_forever(self) -> None:
        """Make what is missing, now and whenever it is wanted."""
        is_declared = False
        while not is_declared:
            try:
                await self._store.take(
                    lambda: self._journal.within(lambda it: index_builder.declare(it, self._declared))
                )
                is_declared = True
            except StoreError:
                await self._store.wait_available()
                await asyncio.sleep(RETRY_SECONDS)
        while True:
            with contextlib.suppress(StoreError):
                if self._mark.exists():
                    # The file goes at last: what is wanted may be done twice, and is not forgotten.
                    await self.begin_anew()
                    self._mark.unlink(missing_ok=True)
                if self._journal.read(index_builder.has_work):
                    await self._make()
            await asyncio.sleep(LOOK_SECONDS)

    async def _make(self) -> None:
        begun = told = self._clock()
        steps, failure = 0, ""
        while True:
            since = self._clock()
            try:
                steps += 1
                if not await self._step():
                    break
                now, failure = self._clock(), ""
                pause = now - since
                if steps == 1 or now - told >= TELL_SECONDS:
                    told, found = now, self.progress()
                    log.info("search index is made", indexed=found.indexed, entities=found.last)
            except StoreError as error:
                if str(error) != failure:
                    log.warning("the search index waits for the store", reason=str(error))
                failure, pause = str(error), RETRY_SECONDS
                await self._store.wait_available()
            await asyncio.sleep(pause)
        log.info("search index made", steps=steps, seconds=round(self._clock() - begun, 1))

    async def _step(self) -> bool:
        """One step; whether there is more to do. Raises StoreUnavailable."""
        more: list[bool] = []

        def step() -> None:
            more.append(self._journal.within(index_builder.step))
            self._journal.commit()

        await self._store.take(step, is_aside=True)
        return more[-1]

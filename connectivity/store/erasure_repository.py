"""The records of erasures, and the deletion of what they erase, as the journal stores them.

Deletion is done in short steps, so that commands go on between them. `ErasureRepository` works on a running store,
`erase_in_journal` on the journal of a data folder without a service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from connectivity.store.store import Store
from mappings.ids import EntityId
from spark_store.errors import StoreUnavailable
from spark_store.journal import erasure
from spark_store.journal.erasure import Erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import Lake

_READERS_SECONDS = 0.2
"""How long processes that read the journal are given before its log is emptied."""


class ErasureRepository:
    """The erasures of a running service. Every method raises StoreUnavailable."""

    def __init__(self, store: Store, lake: Lake) -> None:
        self._store = store
        self._lake = lake

    def begin(
        self, entity: EntityId, at: str, by: str, lake_erased: int, on_record: Callable[[Erasure], None]
    ) -> Awaitable[None]:
        """Store the record of a new erasure; commands that are decided from now on find no state.

        `on_record` gets the record before anything else is read or written.
        """
        return self._store.commits.execute(
            lambda it: on_record(erasure.begin(it, entity.type.value, entity.id, at, by, lake_erased)),
            forgets=self._store.snapshot(entity),
        )

    def unfinished(self) -> list[Erasure]:
        """Return the durable records that journal or lake have not finished, oldest first."""
        with JournalReader.open(self._lake.journal) as journal_reader:
            return journal_reader.unfinished_erasures()

    async def delete(self, record: Erasure, now: Callable[[], str]) -> None:
        """Delete what the record erases from the journal, and note that; `now` returns the time of the note."""
        for step in steps(record):
            await self._store.commits.execute(step)
        while not await self._store.commits.scrub():  # noqa: ASYNC110 - another process reads; nothing says when it has ended
            await asyncio.sleep(_READERS_SECONDS)
        at = now()
        await self._store.commits.execute(lambda it: erasure.finish_journal(it, record, at))

    def finish_lake(self, last: int, at: str) -> Awaitable[None]:
        """Note that the lake has finished every erasure up to the number `last`."""
        return self._store.commits.execute(lambda it: erasure.finish_lake(it, last, at))

    async def delete_numbers(self) -> None:
        """Delete the numbers of erased events that no new lake can need, some at a time."""
        boundary = await asyncio.to_thread(self._oldest_event)
        more = [True]
        while more.pop():
            await self._store.commits.execute(lambda it: more.append(erasure.fill_holes(it, boundary)))

    def _oldest_event(self) -> int:
        """Return the oldest known event number; 1 in a journal without events."""
        with JournalReader.open(self._lake.journal) as journal_reader:
            return journal_reader.oldest_known()


def erase_in_journal(journal: Journal, entity: EntityId, now: Callable[[], str], by: str, lake_erased: int) -> Erasure:
    """Erase an entity, and finish other erasures of the journal. Raises StoreUnavailable."""
    begun = journal.within(lambda it: erasure.begin(it, entity.type.value, entity.id, now(), by, lake_erased))
    journal.commit()
    for record in journal.within(erasure.records):
        if record.journal_done is None:
            for step in steps(record):
                journal.within(step)
                journal.commit()
            if not journal.scrub():
                raise StoreUnavailable(
                    f"{journal.path}: another process is reading the journal; stop the pipeline or that process, and "
                    "try again"
                )
            journal.within(partial(erasure.finish_journal, erasure=record, at=now()))
            journal.commit()
    found = journal.within(lambda it: erasure.records(it, begun.id - 1))[0]
    journal.rollback()
    return found


def steps(record: Erasure) -> Iterator[Callable[[Any], None]]:
    """Yield the short steps that delete everything. Each must be executed before the next is requested."""
    more = True

    def entries(connection: Any) -> None:
        nonlocal more
        more = erasure.take_entries(connection, record)

    while more:
        yield entries
    position: int | None = 0

    def answers(connection: Any) -> None:
        nonlocal position
        position = erasure.take_answers(connection, record, position or 0)

    while position is not None:
        yield answers

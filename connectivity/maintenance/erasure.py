"""Erasure of one entity on an operator's command, from journal and lake.

`Eraser` belongs to a running service. An erasure has a place in the order of changes: earlier states go, later commands find
no state. Events and remembered answers are deleted in short steps, the log is emptied, and the record is finished; the
pipeline then erases the lake (`spark_store.pipeline.erasure`). An unfinished erasure continues at the next start.
`erase_offline` does the same without a service, under the data folder's lock.

Subscriptions to the entity fail. A redelivered command of the entity is executed again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from connectivity.errors import ConnectivityError
from connectivity.store.erasure_repository import ErasureRepository, erase_in_journal
from connectivity.store.folder_lock import open_journal
from connectivity.store.store import Store
from connectivity.subscriptions.manager import SubscriptionManager
from mappings.errors import Fault
from mappings.ids import MAX_ID_LENGTH, EntityId, EntityType, parse_entity_id, utf16_length
from mappings.texts import shorten
from mappings.timestamps import utc_text
from spark_store.errors import StoreError
from spark_store.journal.erasure import Erasure
from spark_store.journal.reader import JournalReader, expect_journal
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import Watermark, read_watermark

log = structlog.get_logger(__name__)

ERASED = Fault(
    410,
    "streaming.subscription.erased",
    "The history of this entity has been erased.",
    "Subscribe again if the entity is created again.",
)

_LOOK_SECONDS = 1.0
"""How often the watermark is read while the lake has erasures to do."""

_GAP_SECONDS = 3600.0
"""How often the numbers of erased events are searched for those that no lake needs."""


class UnknownEntity(ConnectivityError):
    """The entity does not exist and never existed."""


class InvalidEntity(ConnectivityError):
    """The given type or ID is invalid."""


class ErasureUnavailable(ConnectivityError):
    """The store cannot be used now. An erasure that has begun is finished later."""


def entity_of(text: str, type: str) -> EntityId:
    """Return the entity that an operator names. Raises InvalidEntity."""
    if type not in set(EntityType):
        raise InvalidEntity(f"expected the type thing, policy or stream, found {_quote(type)}")
    kind = EntityType(type)
    found = parse_entity_id(kind, text)
    if found is not None:
        return found
    if kind is not EntityType.STREAM and (length := utf16_length(text)) > MAX_ID_LENGTH:
        raise InvalidEntity(f"expected an id of at most {MAX_ID_LENGTH} characters, found {length} characters")
    example = "tank-9/0" if kind is EntityType.STREAM else "acme.site:lamp-7"
    raise InvalidEntity(f"expected the id of a {type}, such as {example}, found {_quote(text)}")


def _unknown(entity: EntityId) -> UnknownEntity:
    return UnknownEntity(
        f"found no {entity.type.value} {entity}, expected one that exists or has existed; check ID and type"
    )


def _quote(text: str) -> str:
    return repr(shorten(text)) if text else "nothing"


def record_as_json(record: Erasure, watermark: Watermark) -> dict[str, Any]:
    """Return a record as API and commands show it."""
    is_done = record.id <= watermark.erased and record.journal_done is not None
    found = record._asdict()
    return {**found, "lake_done": record.lake_done or (watermark.erased_at if is_done else None)}


class Eraser:
    """The erasures of a running service."""

    def __init__(
        self,
        store: Store,
        streams: SubscriptionManager,
        lake: Lake,
        hidden: dict[EntityId, int],
        now: Callable[[], datetime],
    ) -> None:
        """`hidden` is updated with the entities that the lake must not show, up to which event.

        Raises StoreUnavailable.
        """
        self._store = store
        self._erasures = ErasureRepository(store, lake)
        self._streams = streams
        self._lake = lake
        self._hidden = hidden
        self._now = now
        self._hiding: dict[int, Erasure] = {}
        """By ID, the erasures that hide something: begun, perhaps not durable, and not done in the lake."""
        self._unfinished_erasures = self._erasures.unfinished()
        """The durable ones, as the journal has them."""
        for record in self._unfinished_erasures:
            self._hide(record)
        self._is_requested = asyncio.Event()
        self._is_stale = True
        """Whether the journal may have records that were not read yet."""
        self._reason = ""

    async def erase(self, entity: EntityId, by: str) -> dict[str, Any]:
        """Begin an erasure; return the durable record. Raises UnknownEntity, ErasureUnavailable."""
        begun: list[Erasure] = []

        def begin(record: Erasure) -> None:
            begun.append(record)
            self._hide(record)

        try:
            # In a thread, since the disk may be slow. It comes before the step is queued: nothing may come between the check
            # and the step.
            lake_erased = (await asyncio.to_thread(read_watermark, self._lake.watermark)).erased
            if self._store.snapshot(entity) is None:
                raise _unknown(entity)
            await self._erasures.begin(entity, utc_text(self._now()), by, lake_erased, begin)
        except StoreError as error:
            if begun:
                self._show(begun[0])
                # A commit that failed may have been carried out.
                self._is_requested.set()
            raise ErasureUnavailable(str(error)) from error
        ended = self._streams.fail_entity(entity, ERASED)
        (record,) = begun
        log.info("erasure started", erasure=record.id, type=record.entity_type, by=by, subscriptions=ended)
        self._is_requested.set()
        return record_as_json(record, Watermark())

    async def all(self) -> list[dict[str, Any]]:
        """Return every record. Raises ErasureUnavailable."""
        return await asyncio.to_thread(read_records, self._lake.data_dir)

    async def round(self) -> None:
        """Do pending work, then wait until there may be more."""
        try:
            if self._is_stale:
                await self._finish_journal()
                self._is_stale = False
            is_waiting = await self._look_at_lake()
            if not is_waiting:
                await self._erasures.delete_numbers()
            self._reason = ""
        except StoreError as error:
            if str(error) != self._reason:
                log.warning("erasure waits for the store", reason=str(error))
            self._reason = str(error)
            await self._store.commits.wait_available()
            self._is_stale = is_waiting = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS if is_waiting else _GAP_SECONDS):
                await self._is_requested.wait()
            self._is_stale = True
            self._is_requested.clear()

    async def _finish_journal(self) -> None:
        """Erase the journal's part of all unfinished records."""
        for record in await self._read():
            if record.journal_done is None:
                await self._erasures.delete(record, lambda: utc_text(self._now()))
                log.info("erasure done in the journal", erasure=record.id)
        self._unfinished_erasures = await self._read()

    async def _read(self) -> list[Erasure]:
        records = await asyncio.to_thread(self._erasures.unfinished)
        for record in records:
            self._hide(record)
        return records

    def _hide(self, record: Erasure) -> None:
        self._hiding[record.id] = record
        self._notify(record)

    def _show(self, record: Erasure) -> None:
        self._hiding.pop(record.id, None)
        self._notify(record)

    def _notify(self, record: Erasure) -> None:
        """Hide of the record's entity what any of its erasures hides."""
        key = (record.entity_type, record.entity)
        found = [it.seq for it in self._hiding.values() if (it.entity_type, it.entity) == key]
        entity = entity_of(record.entity, record.entity_type)
        if found:
            self._hidden[entity] = max(found)
        else:
            self._hidden.pop(entity, None)

    async def _look_at_lake(self) -> bool:
        """Store which erasures the lake has done; return whether some are left."""
        if not self._unfinished_erasures:
            return False
        watermark = await asyncio.to_thread(read_watermark, self._lake.watermark)
        done = [record for record in self._unfinished_erasures if record.id <= watermark.erased]
        if done:
            at = watermark.erased_at or utc_text(self._now())
            await self._erasures.finish_lake(watermark.erased, at)
            for record in done:
                self._show(record)
            self._unfinished_erasures = self._unfinished_erasures[len(done) :]
            log.info("erasure done in the lake", erasure=watermark.erased)
        return bool(self._unfinished_erasures)


def read_records(data_dir: Path) -> list[dict[str, Any]]:
    """Return every record of a data folder, oldest first. Raises ErasureUnavailable."""
    lake = Lake(data_dir)
    try:
        watermark = read_watermark(lake.watermark)
        with JournalReader.open(lake.journal) as journal_reader:
            return [record_as_json(record, watermark) for record in journal_reader.erasures()]
    except StoreError as error:
        raise ErasureUnavailable(str(error)) from error


def previous_erasure(records: Iterable[Mapping[str, Any]], record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the previous erasure of the same entity among records, which begin with the oldest."""
    of = ("entity_type", "entity")
    found = [it for it in records if it["id"] < record["id"] and all(it[name] == record[name] for name in of)]
    return found[-1] if found else None


def has_policy(data_dir: Path, entity: EntityId) -> bool:
    """Whether this is a thing with a known policy of the same ID, even a deleted one.

    Raises ErasureUnavailable.
    """
    if entity.type is not EntityType.THING:
        return False
    try:
        with JournalReader.open(Lake(data_dir).journal) as journal_reader:
            return journal_reader.state(EntityType.POLICY.value, entity.id) is not None
    except StoreError as error:
        raise ErasureUnavailable(str(error)) from error


def erase_offline(data_dir: Path, entity: EntityId, by: str) -> dict[str, Any]:
    """Erase an entity from the journal of a folder without a service, and finish other erasures.

    The pipeline erases the lake when it runs again. Raises DataFolderLocked, UnknownEntity, ErasureUnavailable.
    """
    try:
        expect_journal(data_dir / "journal.db")
        with open_journal(data_dir) as journal:
            if journal.snapshot(entity) is None:
                raise _unknown(entity)
            lake_erased = read_watermark(Lake(data_dir).watermark).erased
            found = erase_in_journal(journal, entity, lambda: utc_text(datetime.now(UTC)), by, lake_erased)
            return record_as_json(found, Watermark())
    except StoreError as error:
        raise ErasureUnavailable(str(error)) from error

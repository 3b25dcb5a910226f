"""Erasure of one entity on an operator's command: everything that journal and lake know of it.

`Eraser` belongs to a running service. An erasure begins in order with all changes: what was decided before it goes, what is
decided after it finds an entity without state. Then the events and the remembered answers are taken away in short steps
between everything else, the log is emptied, and the record is finished; the pipeline does the lake's part as soon as it sees
that (`spark_store.pipeline.erasure`). Whatever is killed, the next start goes on with what is not finished. Records are read
in worker threads, once after something was asked for; until the lake is done nothing but the watermark is looked at.

`erase_here` does the same where no service runs; it takes the data folder's lock.

Subscriptions that run on the entity fail. A redelivered command of the entity is not known any more, so it is a new command.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from connectivity.errors import ConnectivityError
from connectivity.store.folder_lock import lock_folder
from connectivity.store.store import Store
from connectivity.subscriptions.manager import SubscriptionManager
from mappings.errors import Fault
from mappings.ids import MAX_ID_LENGTH, EntityId, EntityType, parse_entity_id, utf16_length
from mappings.texts import shortened, utc_text
from spark_store.errors import StoreError, StoreUnavailable
from spark_store.journal import erasure
from spark_store.journal.erasure import Erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader, expect_journal
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import Watermark, read_watermark

log = structlog.get_logger(__name__)


ERASED = Fault(
    410,
    "streaming.subscription.erased",
    "The history of this entity has been erased.",
    "Subscribe again if the entity is made anew.",
)

_READERS_SECONDS = 0.2
"""How long those who read the journal at the moment are given before its log is emptied."""

_LOOK_SECONDS = 1.0
"""How often the watermark is looked at while the lake has something to do."""

_HOLES_SECONDS = 3600.0
"""How often holes are looked for that nobody needs any more."""


class UnknownEntity(ConnectivityError):
    """There is no such entity and never was."""


class NoEntity(UnknownEntity):
    """What was given cannot name one: its type or its id is none."""


class ErasureUnavailable(ConnectivityError):
    """The store cannot be used now. What was begun is finished later."""


def entity_of(text: str, type: str) -> EntityId:
    """The entity that an operator names. Raises NoEntity."""
    if type not in set(EntityType):
        raise NoEntity(f"expected the type thing, policy or stream, found {_quoted(type)}")
    kind = EntityType(type)
    found = parse_entity_id(kind, text)
    if found is not None:
        return found
    if kind is not EntityType.STREAM and (length := utf16_length(text)) > MAX_ID_LENGTH:
        raise NoEntity(f"expected an id of at most {MAX_ID_LENGTH} characters, found one of {length}")
    example = "tank-9/0" if kind is EntityType.STREAM else "acme.site:lamp-7"
    raise NoEntity(f"expected the id of a {type}, such as {example}, found {_quoted(text)}")


def _quoted(text: str) -> str:
    return repr(shortened(text)) if text else "nothing"


def shown(record: Erasure, watermark: Watermark) -> dict[str, Any]:
    """A record as API and commands show it."""
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
        """`hidden` is told which entities the lake must not show up to which event, until it has done its part.

        Raises StoreUnavailable.
        """
        self._store = store
        self._streams = streams
        self._lake = lake
        self._hidden = hidden
        self._now = now
        self._hiding: dict[int, Erasure] = {}
        """By number, those that something is hidden for: begun, perhaps not durable yet, and not done in the lake."""
        self._unfinished = _unfinished(lake)
        """As the journal has them: all are durable."""
        for record in self._unfinished:
            self._hide(record)
        self._asked = asyncio.Event()
        self._is_stale = True
        """Whether the journal may have records that were not read yet."""
        self._reason = ""

    async def erase(self, entity: EntityId, by: str) -> dict[str, Any]:
        """Begin to erase; the durable record. Raises UnknownEntity, NotErased."""
        begun: list[Erasure] = []

        def begin(connection: Any) -> None:
            at = utc_text(self._now())
            record = erasure.begin(connection, entity.type.value, entity.id, at, by, lake_erased)
            begun.append(record)
            self._hide(record)

        try:
            # In a thread, since the disk may be busy; before the order begins, in which nothing may come between. What the
            # lake carries out meanwhile the journal knows of.
            lake_erased = (await asyncio.to_thread(read_watermark, self._lake.watermark)).erased
            if self._store.snapshot(entity) is None:
                raise UnknownEntity(f"found no {entity.type.value} {entity}, expected one that is or was there")
            await self._store.execute(begin, forgets=entity)
        except StoreUnavailable as error:
            if begun:
                self._show(begun[0])
                # A commit that failed may have been carried out all the same.
                self._asked.set()
            raise ErasureUnavailable(str(error)) from error
        ended = self._streams.fail_entity(entity, ERASED)
        (record,) = begun
        log.info("erasure begun", erasure=record.id, type=record.entity_type, by=by, subscriptions=ended)
        self._asked.set()
        return shown(record, Watermark())

    async def all(self) -> list[dict[str, Any]]:
        """Every record. Raises NotErased."""
        return await asyncio.to_thread(listed, self._lake)

    async def round(self) -> None:
        """Do what is asked for or unfinished, then wait until there may be more to do."""
        try:
            if self._is_stale:
                await self._finish_journal()
                self._is_stale = False
            is_waiting = await self._look_at_lake()
            if not is_waiting:
                await self._fill_holes()
            self._reason = ""
        except StoreError as error:
            if str(error) != self._reason:
                log.warning("an erasure waits for the store", reason=str(error))
            self._reason = str(error)
            await self._store.wait_available()
            self._is_stale = is_waiting = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS if is_waiting else _HOLES_SECONDS):
                await self._asked.wait()
            self._is_stale = True
            self._asked.clear()

    async def _finish_journal(self) -> None:
        """The journal's part of everything that it has not done."""
        for record in await self._read():
            if record.journal_done is None:
                await self._finish(record)
        self._unfinished = await self._read()

    async def _read(self) -> list[Erasure]:
        records = await asyncio.to_thread(_unfinished, self._lake)
        for record in records:
            self._hide(record)
        return records

    def _hide(self, record: Erasure) -> None:
        self._hiding[record.id] = record
        self._tell(record)

    def _show(self, record: Erasure) -> None:
        self._hiding.pop(record.id, None)
        self._tell(record)

    def _tell(self, record: Erasure) -> None:
        """Hide of the record's entity what any erasure of it hides."""
        key = (record.entity_type, record.entity)
        found = [it.seq for it in self._hiding.values() if (it.entity_type, it.entity) == key]
        entity = entity_of(record.entity, record.entity_type)
        if found:
            self._hidden[entity] = max(found)
        else:
            self._hidden.pop(entity, None)

    async def _finish(self, record: Erasure) -> None:
        """Take everything away, one short step after the other, and say so."""
        for step in steps(record):
            await self._store.execute(step)
        while not await self._store.scrub():  # noqa: ASYNC110 - another process reads; nothing says when it has ended
            await asyncio.sleep(_READERS_SECONDS)
        at = utc_text(self._now())
        await self._store.execute(lambda it: erasure.finish_journal(it, record, at))
        log.info("erasure done in the journal", erasure=record.id)

    async def _look_at_lake(self) -> bool:
        """Note what the lake has done; whether something is left for it to do."""
        if not self._unfinished:
            return False
        watermark = await asyncio.to_thread(read_watermark, self._lake.watermark)
        done = [record for record in self._unfinished if record.id <= watermark.erased]
        if done:
            at = watermark.erased_at or utc_text(self._now())
            await self._store.execute(lambda it: erasure.finish_lake(it, watermark.erased, at))
            for record in done:
                self._show(record)
            self._unfinished = self._unfinished[len(done) :]
            log.info("erasure done in the lake", erasure=watermark.erased)
        return bool(self._unfinished)

    async def _fill_holes(self) -> None:
        """Forget those that a new lake could not be filled with any more either, some at a time."""
        border = await asyncio.to_thread(_border, self._lake)
        more = [True]

        def step(connection: Any) -> None:
            more.append(erasure.fill_holes(connection, border))

        while more.pop():
            await self._store.execute(step)


def _unfinished(lake: Lake) -> list[Erasure]:
    with JournalReader.open(lake.journal) as follower:
        return follower.unfinished_erasures()


def _border(lake: Lake) -> int:
    """The first number that is still known of; 1 in a journal that has no event yet."""
    with JournalReader.open(lake.journal) as follower:
        newest = follower.newest()
        known = follower.oldest_known()
    return newest + 1 if known is None else known


def steps(record: Erasure) -> Iterator[Callable[[Any], None]]:
    """The short steps that take everything away, each to be carried out before the next is asked for."""
    more = True

    def entries(connection: Any) -> None:
        nonlocal more
        more = erasure.take_entries(connection, record)

    while more:
        yield entries
    place: int | None = 0

    def answers(connection: Any) -> None:
        nonlocal place
        place = erasure.take_answers(connection, record, place or 0)

    while place is not None:
        yield answers
    place = 0

    def paths(connection: Any) -> None:
        nonlocal place
        place = erasure.take_paths(connection, place or 0)

    while place is not None:
        yield paths


def listed(lake: Lake) -> list[dict[str, Any]]:
    """Every record, oldest first. Raises NotErased."""
    try:
        watermark = read_watermark(lake.watermark)
        with JournalReader.open(lake.journal) as follower:
            return [shown(record, watermark) for record in follower.erasures()]
    except StoreError as error:
        raise ErasureUnavailable(str(error)) from error


def recorded(data_dir: Path) -> list[dict[str, Any]]:
    """Every record of a data folder, whether a service runs or not. Raises NotErased."""
    return listed(Lake(data_dir))


def before(data_dir: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The latest erasure of the same entity before this one. Raises NotErased."""
    of = ("entity_type", "entity")
    found = [
        it for it in recorded(data_dir) if it["id"] < record["id"] and all(it[name] == record[name] for name in of)
    ]
    return found[-1] if found else None


def has_policy(data_dir: Path, entity: EntityId) -> bool:
    """Whether this is a thing, and a policy of its own id is known, which may be deleted. Raises NotErased."""
    if entity.type is not EntityType.THING:
        return False
    try:
        with JournalReader.open(Lake(data_dir).journal) as follower:
            return follower.state(EntityType.POLICY.value, entity.id) is not None
    except StoreError as error:
        raise ErasureUnavailable(str(error)) from error


def erase_here(data_dir: Path, entity: EntityId, by: str) -> dict[str, Any]:
    """Erase from the journal of a folder without a service, and finish what another erasure has left.

    The lake's part is the pipeline's, when it runs again. Raises DataFolderLocked, UnknownEntity, NotErased.
    """
    try:
        expect_journal(data_dir / "journal.db")
        with lock_folder(data_dir), contextlib.closing(Journal.open(data_dir / "journal.db")) as journal:
            if journal.snapshot(entity) is None:
                raise UnknownEntity(f"found no {entity.type.value} {entity}, expected one that is or was there")
            now = utc_text(datetime.now(UTC))
            lake_erased = read_watermark(Lake(data_dir).watermark).erased
            asked = journal.within(lambda it: erasure.begin(it, entity.type.value, entity.id, now, by, lake_erased))
            journal.commit()
            for record in journal.within(erasure.records):
                if record.journal_done is None:
                    _finish_here(journal, record)
            found = journal.within(lambda it: erasure.records(it, asked.id - 1))[0]
            journal.rollback()
            return shown(found, Watermark())
    except StoreError as error:
        raise ErasureUnavailable(str(error)) from error


def _finish_here(journal: Journal, record: Erasure) -> None:
    for step in steps(record):
        journal.within(step)
        journal.commit()
    if not journal.scrub():
        raise StoreUnavailable(f"{journal.path}: somebody reads it; end the pipeline or whoever does, and ask again")
    journal.within(lambda it: erasure.finish_journal(it, record, utc_text(datetime.now(UTC))))
    journal.commit()

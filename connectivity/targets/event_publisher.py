"""Moves the event cursors of all targets, and stores their positions.

A cursor begins at its stored position; a new one begins after the newest event, and its connection opens when that is
durable. Targets are identified by their addresses, so other changes of a document keep positions. A connection that is
closed by its document, or deleted, loses them. After each commit all cursors have a turn together, so that each question
about an event is answered once for all. Positions are stored a few times a second while they move, and once at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Final, NamedTuple

import structlog

from connectivity.connections.model import Connection, Target
from connectivity.monitoring.prometheus import GaugeReading
from connectivity.store.cursor_repository import CursorRepository
from connectivity.store.store import Store
from connectivity.targets.event_cursor import EventCursor
from connectivity.targets.open_connection import ConnectionComponent, OpenConnection
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext
from connectivity.twins.context import StateLookup
from mappings.ids import EntityId, EntityType
from mappings.model.signals import TwinEvent
from spark_store.errors import StoreUnavailable
from spark_store.records import CursorPosition, PublishedEvent

log = structlog.get_logger(__name__)

WRITE_SECONDS: Final = 0.2
"""How long a position may have moved before it is stored. After a crash, later events are sent again."""

AGAIN_SECONDS: Final = 0.5
"""The pause before a store is asked again that could not say where targets are."""

TURN_EVENTS: Final = 64
TURN_SECONDS: Final = 0.002
"""How much is judged before other tasks get a turn on the event loop."""

MAX_LISTENERS: Final = 1000
"""How many listeners a cursor may have before finished ones are removed."""

BEHIND_EVENTS, BEHIND_SECONDS = 1000, 5.0
"""The lag from which the status of a connection reports that a target is behind."""


class TargetLag(NamedTuple):
    """The lag of a target: events it has not passed, seconds since the oldest of them was stored."""

    events: int
    seconds: float


class EventPublisher(ConnectionComponent):
    """Every target that events go to."""

    job = "advance event cursors"

    def __init__(self, store: Store, world: StateLookup, now: Callable[[], datetime]) -> None:
        """Raises StoreUnavailable."""
        self.on_skip: Callable[[str, str, int], object] = lambda connection, target, events: None  # noqa: ARG005
        """Called with connection, target and number of missed events."""
        self._store = store
        self._repository = CursorRepository(store)
        self._world = world
        self._now = now
        self._cursors: dict[str, list[EventCursor]] = {}
        """By connection, the open cursors."""
        self._positions: dict[tuple[str, str], CursorPosition] = {
            position[:2]: position for position in self._repository.positions()
        }
        """The positions to store."""
        self._written = dict(self._positions)
        self._dropped: set[str] = set()
        """Connections whose positions are deleted here, but not in the journal yet."""
        self._joining: Counter[str] = Counter()
        self._is_due = False
        self._served = 0
        """How many times lagging cursors have had their turn."""
        self._writing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        if self._positions:
            store.tail.follow(self.wake)

    @property
    def has_targets(self) -> bool:
        """Whether there are targets for events: then events are stored with their causes."""
        return bool(self._positions or self._joining)

    def of(self, connection_id: str) -> Sequence[EventCursor]:
        """The open cursors of a connection."""
        return self._cursors.get(connection_id, ())

    def is_prepared(self, connection: Connection) -> bool:
        """Whether exactly the targets of a connection have durable positions."""
        known = [target for id, target in self._positions if id == connection.id]
        return sorted(known) == sorted(keys(connection).values())

    async def prepare(self, connection: Connection) -> None:
        """Create the missing positions of a connection. Waits for the store."""
        wanted = list(keys(connection).values())
        self._joining[connection.id] += 1
        try:
            while True:
                try:
                    self._store.tail.follow(self.wake)
                    if connection.id in self._dropped:
                        await self._drop(connection.id)
                    await self._repository.keep_only(connection.id, wanted)
                    found = {
                        position[:2]: position
                        for position in self._repository.positions()
                        if position.connection == connection.id
                    }
                    break
                except StoreUnavailable as error:
                    log.warning("targets wait for the store", connection=connection.id, error=str(error))
                    # A store that can write, but not read, is treated as available.
                    await asyncio.sleep(AGAIN_SECONDS)
                    await self._store.commits.wait_available()
            for key in [key for key in self._positions if key[0] == connection.id and key not in found]:
                del self._positions[key], self._written[key]
            for key, position in found.items():
                if key not in self._positions:
                    self._positions[key] = self._written[key] = position
        finally:
            self._joining[connection.id] -= 1
            self._joining += Counter()
            self._update_following()

    def opened(self, opened: OpenConnection) -> None:
        """Open the cursors of a connection whose targets have positions."""
        cursors = []
        for index, key in keys(opened.connection).items():
            if (position := self._positions.get((opened.connection_id, key))) is None:
                continue
            cursors.append(EventCursor(opened.targets[index], position, self.wake))
            # Creates the time series, so that its first increase is visible.
            self.on_skip(opened.connection_id, str(index), 0)
        if cursors:
            self._cursors[opened.connection_id] = cursors
            self.wake()

    async def stop(self, connection_id: str) -> None:
        """Send no more events to a connection, and wait until its broker has confirmed the posted ones."""
        if cursors := self.of(connection_id):
            await asyncio.gather(*(cursor.stop() for cursor in cursors))

    def closed(self, connection_id: str) -> None:
        """Close the cursors of a connection. Their positions are kept."""
        for cursor in self._cursors.pop(connection_id, ()):
            self._note(cursor)
            cursor.close()

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        """Delete the positions of connections for which this is false."""
        for connection_id in {id for id, _ in self._positions if id not in self._cursors and not is_wanted(id)}:
            for key in [key for key in self._positions if key[0] == connection_id]:
                del self._positions[key], self._written[key]
            log.info("target positions deleted with closed connection", connection=connection_id)
            self._dropped.add(connection_id)
            self._watch(self._drop(connection_id))
        self._update_following()

    async def _drop(self, connection_id: str) -> None:
        await self._repository.keep_only(connection_id, ())
        self._dropped.discard(connection_id)

    def _update_following(self) -> None:
        if not self.has_targets:
            self._store.tail.leave(self.wake)

    def linked(self, connection_id: str) -> None:
        """A connection that had no link has one."""
        for cursor in self.of(connection_id):
            cursor.linked()
        self.wake()

    def wake(self) -> None:
        """There may be something to do for a cursor."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        tail = self._store.tail
        newest = tail.newest
        is_more = False
        end = monotonic() + TURN_SECONDS
        # Cursors at the same event continue together: nearly always all of them.
        groups: dict[int, list[EventCursor]] = {}
        for cursors in self._cursors.values():
            for cursor in cursors:
                is_more = self._retry_parked(cursor, end) or is_more
                if cursor.judged < newest and cursor.can_go_on:
                    groups.setdefault(cursor.judged, []).append(cursor)
        end = monotonic() + TURN_SECONDS
        for number, taken in enumerate(self._in_turn(list(groups))):
            if number > 1 and monotonic() > end:
                is_more = True
                break
            self._served += number > 0
            try:
                is_more = self._advance(taken, groups[taken], monotonic() + TURN_SECONDS / 2) or is_more
            except StoreUnavailable as error:
                log.warning("targets wait for the store", error=str(error))
        if is_more:
            self.wake()
        self._schedule_write()

    def _in_turn(self, places: list[int]) -> list[int]:
        """Yield the cursors: those that are up to date first, then the lagging ones by turns."""
        if len(places) < 2:
            return places
        places.remove(first := max(places))
        start = self._served % len(places)
        return [first, *places[start:], *places[:start]]

    def _advance(self, taken: int, group: list[EventCursor], until: float) -> bool:
        """Move cursors at the same event for a while; return whether one could continue at once.

        Raises StoreUnavailable.
        """
        tail = self._store.tail
        events = tail.after(taken, TURN_EVENTS)
        if not events:
            trimmed = tail.last_trimmed()
            for cursor in group:
                if cursor.can_go_on:
                    cursor.skip(tail.newest, trimmed)
            return False
        for found in events:
            # A post may have failed within the call: then a cursor has gone back, and must skip nothing.
            if not (group := [cursor for cursor in group if cursor.can_go_on]):
                break
            if found.seq > taken + 1:
                trimmed = tail.last_trimmed()
                for cursor in group:
                    cursor.skip(found.seq - 1, trimmed)
            taken = found.seq
            if found.event.entity.type is not EntityType.THING:
                for cursor in group:
                    cursor.skip(taken, 0)
                continue
            signal_context = self.signal_context(found)
            group = [cursor for cursor in group if self._offer(cursor, found, signal_context)]
            if monotonic() > until:
                break
        return any(cursor.can_go_on for cursor in group)

    def _offer(
        self,
        cursor: EventCursor,
        found: PublishedEvent,
        signal_context: SignalContext[TwinEvent],
        *,
        is_retry: bool = False,
    ) -> bool:
        """Whether the cursor has passed the event, perhaps by an internal error. Else it is tried again."""
        try:
            (cursor.retry if is_retry else cursor.take)(found, signal_context)
        except StoreUnavailable as error:
            log.warning("a target waits for the store", connection=cursor.route.connection_id, error=str(error))
            return False
        except Exception:
            log.exception("event not processed", connection=cursor.route.connection_id, seq=found.seq)
            (cursor.fail_retry if is_retry else cursor.fail)(found)
        return True

    def _retry_parked(self, cursor: EventCursor, until: float) -> bool:
        """Send the next events of parked things that are due; return whether others are."""
        tail = self._store.tail
        try:
            while (due := cursor.next_retry()) is not None:
                entity, revision = due
                found, missed = tail.next_event(entity, revision), 0
                if found is None or found.event.revision > revision:
                    start = tail.beginning(entity)
                    # The event that was found is sent, even if it has been trimmed since.
                    first = start.first if found is None else found.event.revision
                    missed = first - max(revision, start.erased + 1)
                if found is None or found.seq > cursor.judged:
                    cursor.unpark(entity, missed)
                else:
                    cursor.miss(missed)
                    if not self._offer(cursor, found, self.signal_context(found), is_retry=True):
                        break
                if monotonic() > until:
                    return True
        except StoreUnavailable as error:
            log.warning("a target waits for the store", connection=cursor.route.connection_id, error=str(error))
        return False

    def sweep(self) -> None:
        """Wake cursors that wait for a reason that is not announced; to be called once in a while."""
        for cursors in self._cursors.values():
            for cursor in cursors:
                if cursor.listeners > MAX_LISTENERS:
                    cursor.forget_listeners(lambda listener: getattr(listener, "is_vain", False))
        if self._store.commits.is_available:
            for connection_id in self._dropped - self._joining.keys():
                self._watch(self._drop(connection_id))
        if self._cursors:
            self.wake()

    def find_event(self, entity: EntityId, revision: int) -> PublishedEvent | None:
        """Return one durable event. Raises StoreUnavailable."""
        found = self._store.tail.next_event(entity, revision)
        return found if found is not None and found.event.revision == revision else None

    def signal_context(self, found: PublishedEvent) -> SignalContext[TwinEvent]:
        """Return an event with the present state."""
        last = found.cause.last if found.cause is not None else None
        return SignalContext(twin_event(found), self._world, self._now, last)

    def _note(self, cursor: EventCursor) -> bool:
        """Note the cursor's position; return whether it differs from the stored one."""
        position = cursor.position
        key = position[:2]
        before = self._positions.get(key)
        if before is None:
            return False
        if position.skipped > before.skipped:
            self.on_skip(position.connection, str(cursor.route.index), position.skipped - before.skipped)
        self._positions[key] = position
        return position != self._written[key]

    def _moved(self) -> list[CursorPosition]:
        for cursors in self._cursors.values():
            for cursor in cursors:
                self._note(cursor)
        return [position for key, position in self._positions.items() if position != self._written[key]]

    def _schedule_write(self) -> None:
        if self._writing is None and self._cursors:
            self._writing = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._write_positions)

    def _write_positions(self) -> None:
        self._writing = None
        if moved := self._moved():
            self._watch(self._move(moved))
        if moved or any(cursor.has_unconfirmed for cursors in self._cursors.values() for cursor in cursors):
            self._schedule_write()

    async def _move(self, moved: Sequence[CursorPosition]) -> None:
        await self._repository.advance(moved)
        for position in moved:
            if position[:2] in self._positions:
                self._written[position[:2]] = position

    def _watch(self, working: Awaitable[None]) -> None:
        task = asyncio.ensure_future(working)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, StoreUnavailable):
            log.error("target positions not stored", exc_info=error)

    async def close(self) -> None:
        """Close all cursors and store their positions, so that nothing is sent again after an orderly stop."""
        for connection_id in list(self._cursors):
            self.closed(connection_id)
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self._tasks:
            await asyncio.wait(self._tasks)
        if moved := self._moved():
            with contextlib.suppress(StoreUnavailable):
                await self._move(moved)

    def lag(self, cursor: EventCursor) -> TargetLag:
        """Raises StoreUnavailable."""
        newest, seq = self._store.tail.newest, cursor.seq
        if newest <= seq:
            return TargetLag(0, 0.0)
        oldest = self._store.tail.one(seq + 1)
        if oldest is None:
            return TargetLag(0, 0.0)
        stored = datetime.fromisoformat(oldest.event.timestamp).astimezone(UTC)
        return TargetLag(newest - seq, max(0.0, (self._now() - stored).total_seconds()))

    def conditions(self, connection_id: str) -> Iterator[tuple[int | None, str]]:
        """Return the conditions of targets for the status of a connection, by their index."""
        for cursor in self.of(connection_id):
            index = cursor.route.index
            with contextlib.suppress(StoreUnavailable):
                lag = self.lag(cursor)
                if lag.events and (lag.events >= BEHIND_EVENTS or lag.seconds >= BEHIND_SECONDS):
                    why = f": {cursor.reason}" if cursor.reason else ""
                    yield index, f"is {lag.events} events behind, for {lag.seconds:.0f} s{why}"
            if cursor.parked:
                yield index, f"has parked {cursor.parked}"
            if cursor.skipped:
                yield index, f"has missed {cursor.skipped} events"

    def figures(self) -> Iterator[GaugeReading]:
        """Return the metrics."""
        lags: dict[tuple[str, ...], tuple[int, float]] = {}
        parked: dict[tuple[str, ...], float] = {}
        with contextlib.suppress(StoreUnavailable):
            for connection_id, cursors in self._cursors.items():
                for cursor in cursors:
                    labels = connection_id, str(cursor.route.index)
                    parked[labels] = len(cursor.parked)
                    lags[labels] = self.lag(cursor)
        yield from target_metrics(lags, parked)


def target_metrics(
    lags: Mapping[tuple[str, ...], tuple[int, float]], parked: Mapping[tuple[str, ...], float]
) -> Iterator[GaugeReading]:
    """Return the metrics of targets, by connection and index: their lags and parked things."""
    names = ("connection", "target")
    events: dict[tuple[str, ...], float] = {labels: lag[0] for labels, lag in lags.items()}
    seconds = {labels: lag[1] for labels, lag in lags.items()}
    yield GaugeReading(
        "connectivity_target_lag_events",
        "Stored events that a target has not processed yet, without events of parked things.",
        events,
        names,
    )
    yield GaugeReading(
        "connectivity_target_lag_seconds",
        "Age of the oldest stored event that a target has not processed yet, without events of parked things.",
        seconds,
        names,
    )
    yield GaugeReading(
        "connectivity_target_parked_things",
        "Things whose events wait apart, because the target's broker refuses messages to their addresses.",
        parked,
        names,
    )


def keys(connection: Connection) -> dict[int, str]:
    """Return the targets of a connection that receive events: index → key of the position.

    The key is the target's address, with a number for those that share one: other changes keep the position.
    """
    found: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for index, target in enumerate(connection.targets):
        if wants_events(target):
            found[index] = f"{seen[target.address]}:{target.address}"
            seen[target.address] += 1
    return found


def wants_events(target: Target) -> bool:
    """Whether a target's topics include events of twins."""
    return any(topic.partition("?")[0] == TWIN_EVENTS for topic in target.topics)


def twin_event(found: PublishedEvent) -> TwinEvent:
    """Return an event as targets receive it."""
    event = found.event
    headers = found.cause.headers if found.cause is not None else {}
    return TwinEvent(event.entity, event.revision, event.timestamp, event.action, event.path, event.value, headers)

"""The cursors of all targets that events go to: where they are, who moves them, what is written down of them.

A target's cursor begins where its place is in the journal; one without a place begins behind the newest event, and its
connection is opened when that is durable. Targets are known by their addresses, so a document may change around them. A
connection that is closed by its document, or whose document is gone, loses its places: opened again, it starts anew.

After each commit all cursors have a turn, together: what is asked about an event is worked out once for all of them. The
loop gets its turn after some milliseconds. Places are written down a few times a second while they move, with a commit that
somebody else needs if there is one, and once more at the end.
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
from connectivity.targets.signal_context import TWIN_EVENTS, ClockedState, SignalContext
from connectivity.targets.target import TargetPublisher
from mappings.ids import EntityId, EntityType
from mappings.model.signals import TwinEvent
from spark_store.errors import StoreUnavailable
from spark_store.records import CursorPosition, PublishedEvent

log = structlog.get_logger(__name__)


WRITE_SECONDS: Final = 0.2
"""So long a place may have moved before that is written down: what was sent since then is sent again after a crash."""

AGAIN_SECONDS: Final = 0.5
"""The pause before a store is asked again that could not say where targets are."""

TURN_EVENTS: Final = 64
TURN_SECONDS: Final = 0.002
"""So much is judged before others have their turn on the loop."""

MOST_LISTENERS: Final = 1000
"""So many events of a cursor may be listened for before it is looked who still does."""

BEHIND_EVENTS, BEHIND_SECONDS = 1000, 5.0
"""From here on the status of a connection says that a target is behind."""


class TargetLag(NamedTuple):
    """How far a target is behind: events that it has not passed, seconds since the oldest of them was stored."""

    events: int
    seconds: float


class EventPublisher:
    """Every target that events go to."""

    def __init__(self, store: Store, present: ClockedState) -> None:
        """Raises StoreUnavailable."""
        self.on_skip: Callable[[str, str, int], object] = lambda connection, target, events: None  # noqa: ARG005
        """Told connection, target and number of events that a target has missed."""
        self._store = store
        self._repository = CursorRepository(store)
        self._present = present
        self._cursors: dict[str, list[EventCursor]] = {}
        """By connection, those that are open."""
        self._places: dict[tuple[str, str], CursorPosition] = {
            place[:2]: place for place in self._repository.positions()
        }
        """As they are worth writing down."""
        self._written = dict(self._places)
        self._dropped: set[str] = set()
        """Connections whose places are not worth anything any more, but are still in the journal."""
        self._joining: Counter[str] = Counter()
        self._is_due = False
        self._served = 0
        """How many times cursors that lag have had their turn."""
        self._writing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        if self._places:
            store.tail.follow(self.wake)

    def __repr__(self) -> str:
        return f"<Cursors of {len(self._places)} targets, {sum(map(len, self._cursors.values()))} open>"

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is to be sent events, now or later: then they are stored with their causes."""
        return bool(self._places or self._joining)

    def of(self, connection_id: str) -> Sequence[EventCursor]:
        """The open cursors of a connection."""
        return self._cursors.get(connection_id, ())

    # coming and going

    def has_places(self, connection: Connection) -> bool:
        """Whether every target of a connection has a durable place, and no other of it has."""
        known = [target for id, target in self._places if id == connection.id]
        return sorted(known) == sorted(keys(connection).values())

    async def place(self, connection: Connection) -> None:
        """See to it that a connection `has_places`. Waits for the store."""
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
                        place[:2]: place for place in self._repository.positions() if place.connection == connection.id
                    }
                    break
                except StoreUnavailable as error:
                    log.warning("targets wait for the store", connection=connection.id, error=str(error))
                    # A store that can write, but cannot be read, counts as available.
                    await asyncio.sleep(AGAIN_SECONDS)
                    await self._store.wait_available()
            for key in [key for key in self._places if key[0] == connection.id and key not in found]:
                del self._places[key], self._written[key]
            for key, place in found.items():
                if key not in self._places:
                    self._places[key] = self._written[key] = place
        finally:
            self._joining[connection.id] -= 1
            self._joining += Counter()
            self._look_whether_wanted()

    def join(self, connection: Connection, targets: Sequence[TargetPublisher]) -> None:
        """A connection is being opened, whose targets have places: events go to them from there on."""
        opened = []
        for index, key in keys(connection).items():
            if (place := self._places.get((connection.id, key))) is None:
                continue
            opened.append(EventCursor(targets[index], place, self.wake))
            # So that the first one that is skipped is seen as one more.
            self.on_skip(connection.id, str(index), 0)
        if opened:
            self._cursors[connection.id] = opened
            self.wake()

    async def stop(self, connection_id: str) -> None:
        """Nothing more goes to a connection. Waits until its broker has confirmed what is on its way."""
        if cursors := self.of(connection_id):
            await asyncio.gather(*(cursor.stop() for cursor in cursors))

    def leave(self, connection_id: str) -> None:
        """A connection is closed. Where its targets were, they go on."""
        for cursor in self._cursors.pop(connection_id, ()):
            self._note(cursor)
            cursor.close()

    def keep(self, is_wanted: Callable[[str], bool]) -> None:
        """Only connections of which this is true may be open: others have no places any more."""
        for connection_id in {id for id, _ in self._places if id not in self._cursors and not is_wanted(id)}:
            for key in [key for key in self._places if key[0] == connection_id]:
                del self._places[key], self._written[key]
            log.info("targets lose their places, since their connection is not to be open", connection=connection_id)
            self._dropped.add(connection_id)
            self._watch(self._drop(connection_id))
        self._look_whether_wanted()

    async def _drop(self, connection_id: str) -> None:
        await self._repository.keep_only(connection_id, ())
        self._dropped.discard(connection_id)

    def _look_whether_wanted(self) -> None:
        if not self.is_wanted:
            self._store.tail.leave(self.wake)

    # turns

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
        # Those that are at the same event go on together: nearly always all of them.
        groups: dict[int, list[EventCursor]] = {}
        for cursors in self._cursors.values():
            for cursor in cursors:
                if cursor.taken < newest and cursor.can_go_on:
                    groups.setdefault(cursor.taken, []).append(cursor)
        is_more = False
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
        self._write_soon()

    def _in_turn(self, places: list[int]) -> list[int]:
        """Those that are up to date first; of those that lag, and have to be read for, one after the other is the next."""
        if len(places) < 2:
            return places
        places.remove(first := max(places))
        start = self._served % len(places)
        return [first, *places[start:], *places[:start]]

    def _advance(self, taken: int, group: list[EventCursor], until: float) -> bool:
        """Have cursors that are at the same event go on for a while; whether one could go on further at once.

        Raises StoreUnavailable.
        """
        tail = self._store.tail
        events = tail.after(taken, TURN_EVENTS)
        if not events:
            trimmed = tail.trimmed()
            for cursor in group:
                if cursor.can_go_on:
                    cursor.skip(tail.newest, trimmed)
            return False
        for found in events:
            # What was posted may have failed within the call: then a cursor has gone back, and must skip nothing.
            if not (group := [cursor for cursor in group if cursor.can_go_on]):
                break
            if found.seq > taken + 1:
                trimmed = tail.trimmed()
                for cursor in group:
                    cursor.skip(found.seq - 1, trimmed)
            taken = found.seq
            if found.event.entity.type is not EntityType.THING:
                for cursor in group:
                    cursor.skip(taken, 0)
                continue
            happening = self.happening(found)
            group = [cursor for cursor in group if self._offer(cursor, found, happening)]
            if monotonic() > until:
                break
        return any(cursor.can_go_on for cursor in group)

    def _offer(self, cursor: EventCursor, found: PublishedEvent, happening: SignalContext[TwinEvent]) -> bool:
        """Whether the cursor has passed the event, be it by a mistake of ours.

        One that has not is tried again later.
        """
        try:
            cursor.take(found, happening)
        except StoreUnavailable as error:
            log.warning("a target waits for the store", connection=cursor.route.connection_id, error=str(error))
            return False
        except Exception:
            log.exception("an event could not be judged", connection=cursor.route.connection_id, seq=found.seq)
            cursor.fail(found.seq)
        return True

    def sweep(self) -> None:
        """Once in a while: whoever has stopped for a reason that nobody will tell goes on."""
        for cursors in self._cursors.values():
            for cursor in cursors:
                if cursor.listeners > MOST_LISTENERS:
                    cursor.forget_listeners(lambda told: getattr(told, "is_vain", False))
        if self._store.is_available:
            for connection_id in self._dropped - self._joining.keys():
                self._watch(self._drop(connection_id))
        if self._cursors:
            self.wake()

    def followed(self, entity: EntityId, revision: int) -> PublishedEvent | None:
        """One durable event. Raises StoreUnavailable."""
        return self._store.tail.followed(entity, revision)

    def happening(self, found: PublishedEvent) -> SignalContext[TwinEvent]:
        """An event as it is judged in this turn."""
        return SignalContext(twin_event(found), self._present)

    # what is written down

    def _note(self, cursor: EventCursor) -> bool:
        """Whether the cursor has moved since that was written down last."""
        place = cursor.place
        key = place[:2]
        before = self._places.get(key)
        if before is None:
            return False
        if place.skipped > before.skipped:
            self.on_skip(place.connection, str(cursor.route.index), place.skipped - before.skipped)
        self._places[key] = place
        return place != self._written[key]

    def _moved(self) -> list[CursorPosition]:
        for cursors in self._cursors.values():
            for cursor in cursors:
                self._note(cursor)
        return [place for key, place in self._places.items() if place != self._written[key]]

    def _write_soon(self) -> None:
        if self._writing is None and self._cursors:
            self._writing = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._write_down)

    def _write_down(self) -> None:
        self._writing = None
        if moved := self._moved():
            self._watch(self._move(moved))
        if moved or any(cursor.is_underway for cursors in self._cursors.values() for cursor in cursors):
            self._write_soon()

    async def _move(self, moved: Sequence[CursorPosition]) -> None:
        await self._repository.advance(moved)
        for place in moved:
            if place[:2] in self._places:
                self._written[place[:2]] = place

    def _watch(self, working: Awaitable[None]) -> None:
        task = asyncio.ensure_future(working)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, StoreUnavailable):
            log.error("places of targets could not be written", exc_info=error)

    async def close(self) -> None:
        """Write down where everybody is: a service that ends in order repeats nothing."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self._tasks:
            await asyncio.wait(self._tasks)
        if moved := self._moved():
            with contextlib.suppress(StoreUnavailable):
                await self._move(moved)

    # what operators see

    def lag(self, cursor: EventCursor) -> TargetLag:
        """Raises StoreUnavailable."""
        newest, seq = self._store.tail.newest, cursor.seq
        if newest <= seq:
            return TargetLag(0, 0.0)
        oldest = self._store.tail.one(seq + 1)
        if oldest is None:
            return TargetLag(0, 0.0)
        stored = datetime.fromisoformat(oldest.event.timestamp).astimezone(UTC)
        return TargetLag(newest - seq, max(0.0, (self._present.now() - stored).total_seconds()))

    def conditions(self, connection_id: str) -> Iterator[tuple[int, str]]:
        """What the status of a connection says of its targets, by their index."""
        for cursor in self.of(connection_id):
            index = cursor.route.index
            with contextlib.suppress(StoreUnavailable):
                lag = self.lag(cursor)
                if lag.events and (lag.events >= BEHIND_EVENTS or lag.seconds >= BEHIND_SECONDS):
                    why = f": {cursor.reason}" if cursor.reason else ""
                    yield index, f"is {lag.events} events behind, for {lag.seconds:.0f} s{why}"
            if cursor.skipped:
                yield index, f"has missed {cursor.skipped} events"

    def figures(self) -> Iterator[GaugeReading]:
        """For a scrape."""
        lags: dict[tuple[str, ...], tuple[int, float]] = {}
        with contextlib.suppress(StoreUnavailable):
            for connection_id, cursors in self._cursors.items():
                for cursor in cursors:
                    lags[connection_id, str(cursor.route.index)] = self.lag(cursor)
        yield from lag_figures(lags)


def lag_figures(lags: Mapping[tuple[str, ...], tuple[int, float]]) -> Iterator[GaugeReading]:
    """What a scrape shows of targets that are so many events and seconds behind, by connection and index."""
    names = ("connection", "target")
    events: dict[tuple[str, ...], float] = {labels: lag[0] for labels, lag in lags.items()}
    seconds = {labels: lag[1] for labels, lag in lags.items()}
    yield GaugeReading(
        "connectivity_target_lag_events", "Stored events that a target has not passed yet.", events, names
    )
    yield GaugeReading("connectivity_target_lag_seconds", "How long ago the oldest of them was stored.", seconds, names)


def keys(connection: Connection) -> dict[int, str]:
    """Those targets of a connection that events go to: index → the name under which the place is kept.

    It is the target's address, with a number for those that share one: changing anything else of a target moves no place.
    """
    found: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for index, target in enumerate(connection.targets):
        if wants_events(target):
            found[index] = f"{seen[target.address]}:{target.address}"
            seen[target.address] += 1
    return found


def wants_events(target: Target) -> bool:
    """Whether events of twins are among a target's topics."""
    return any(topic.partition("?")[0] == TWIN_EVENTS for topic in target.topics)


def twin_event(found: PublishedEvent) -> TwinEvent:
    """An event as it goes to targets."""
    event = found.event
    headers = found.cause.headers if found.cause is not None else {}
    return TwinEvent(event.entity, event.revision, event.timestamp, event.action, event.path, event.value, headers)

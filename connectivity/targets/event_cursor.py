"""The cursor of one target through all events: which it is sent, and how far it is.

A cursor takes events in the order in which they were stored, judges each by the present state, and posts the selected ones;
at most `WINDOW` wait for the broker. Its position is the last event before the first unfinished one, so it may be stored
late: events after it are sent again after a crash, at least once, in order of revisions (Ditto connections, targets).
Without a link nothing is judged; the journal keeps the events. A permanent failure is counted, logged and skipped. A thing
whose address is refused is parked: the others go on. After another temporary failure the cursor goes back to the first
failed event after a growing pause, and sends one by one until it has passed the failure. Trimmed events are skipped and
counted. `listen` reports the outcome of an event once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, TypeAlias

import structlog

from connectivity.connections.lifecycle import back_off
from connectivity.errors import ConnectivityError, MessageRefused, PublishFailed
from connectivity.monitoring.logs import log_context
from connectivity.targets.parked_things import ParkedThings
from connectivity.targets.publisher import is_final
from connectivity.targets.signal_context import SignalContext, SuppressionReason
from connectivity.targets.target import TargetPublisher
from mappings.ids import EntityId
from mappings.model.signals import Event, TwinEvent
from spark_store.records import CursorPosition, PublishedEvent

log = structlog.get_logger(__name__)

WINDOW: Final = 200
"""How many events of a target may wait for its broker."""

WINDOW_BYTES: Final = 4 << 20
"""How many bytes may wait before no further event is posted."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a temporary failure is retried."""

ENRICHMENT_FAILED: Final = "signal.enrichment.failed"

_INTERNAL_ERROR: Final = 500

Result: TypeAlias = ConnectivityError | SuppressionReason | None
"""The outcome of an event at a target: confirmed (None), an error, or a reason for suppression."""

OnResult = Callable[[Result], None]


class EventCursor:
    """The cursor of one target. `seq`, `skipped` and the positions of parked things are stored."""

    def __init__(self, route: TargetPublisher, stored: CursorPosition, wake: Callable[[], None]) -> None:
        """`wake` is called when the cursor could continue."""
        self.route = route
        self.skipped = stored.skipped
        self.judged = stored.seq
        """The number of the last event that was judged."""
        self._stored = stored
        self._wake = wake
        self._open: dict[int, TwinEvent] = {}
        """By number, the unconfirmed events."""
        self._open_bytes = 0
        self.parked = ParkedThings(stored.parked, _pause)
        self._retried: dict[EntityId, TwinEvent] = {}
        """Of parked things, the unconfirmed events."""
        self._retry_timer: asyncio.TimerHandle | None = None
        self._listeners: dict[int, list[OnResult]] = {}
        self._failed: int | None = None
        """The number of the first event, among those on their way, that has to be sent again."""
        self._one_by_one_until = 0
        """Up to this number events go one by one."""
        self._tries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._is_full = self._is_stopped = self._is_closed = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def seq(self) -> int:
        """Up to this event the target needs nothing more."""
        first = next(iter(self._open), self.judged + 1)
        return (first if self._failed is None else min(first, self._failed)) - 1

    @property
    def position(self) -> CursorPosition:
        return self._stored._replace(seq=self.seq, skipped=self.skipped, parked=self.parked.positions)

    @property
    def reason(self) -> str | None:
        """Why the broker rejects events; None if it does not."""
        return self._reason if self._timer is not None or self._failed is not None else None

    @property
    def has_unconfirmed(self) -> bool:
        """Whether the broker has unconfirmed events."""
        return bool(self._open or self._retried)

    def is_passed(self, seq: int) -> bool:
        """Whether the cursor has passed this event."""
        return seq <= self.judged and seq not in self._open and (self._failed is None or seq < self._failed)

    def listen(self, seq: int, on_result: OnResult) -> None:
        """Call `on_result` once with the outcome of an event that is not passed."""
        self._listeners.setdefault(seq, []).append(on_result)

    def forget_listeners(self, is_vain: Callable[[OnResult], bool]) -> None:
        """Remove listeners that are no longer interested."""
        self._listeners = {
            seq: left
            for seq, listeners in self._listeners.items()
            if (left := [listener for listener in listeners if not is_vain(listener)])
        }

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def can_go_on(self) -> bool:
        """Whether the target may be sent an event now."""
        if self._is_stopped or self._failed is not None or self._timer is not None or not self.route.outbox.is_attached:
            return False
        window = 1 if self.judged < self._one_by_one_until else WINDOW
        self._is_full = len(self._open) >= window or self._open_bytes >= WINDOW_BYTES
        return not self._is_full

    def take(self, found: PublishedEvent, signal_context: SignalContext[TwinEvent]) -> None:
        """Process the next event after `judged`; between them are only gaps. Raises StoreUnavailable."""
        seq, entity = found.seq, found.event.entity
        if entity in self.parked and not self._is_own(found):
            self.judged = seq
            # After a restart this may be an unconfirmed event before the refused one.
            self.parked.park(entity, found.event.revision, "", 0.0)
            self._notify(seq, PublishFailed(self.parked.reason(entity)))
            return
        judged = self._judge(found, signal_context)
        self.judged = seq
        if not isinstance(judged, TwinEvent):
            if judged is None:
                # No outcome is reported: a connection does not acknowledge its own events.
                self._listeners.pop(seq, None)
            elif self._listeners:
                self._notify(seq, judged)
            return
        self._open[seq] = judged
        self._open_bytes += _size(judged)
        if (
            self.route.post(judged, partial(self._ended, seq), partial(self._finish, seq, SuppressionReason.EMPTY))
            is None
        ):
            self._finish(seq, SuppressionReason.EMPTY)

    def _is_own(self, found: PublishedEvent) -> bool:
        return found.cause is not None and found.cause.origin == self.route.connection_id

    def _judge(
        self, found: PublishedEvent, signal_context: SignalContext[TwinEvent]
    ) -> TwinEvent | SuppressionReason | None:
        """Return the event as it is sent, or why it is not; None for an event of its own connection."""
        if self._is_own(found):
            return None
        judged = self.route.filter(signal_context)
        if judged is SuppressionReason.ENRICHMENT:
            self.skipped += 1
            self._log(ENRICHMENT_FAILED, judged.value, **_about(signal_context.signal))
        elif judged is SuppressionReason.EXPENSIVE:
            self.skipped += 1
            self._log("event skipped", judged.value, **_about(signal_context.signal))
        return judged

    def next_retry(self) -> tuple[EntityId, int] | None:
        """Return a parked thing that may be retried now, and its next revision."""
        if self._is_stopped or not self.parked or not self.route.outbox.is_attached:
            return None
        if self._open_bytes >= WINDOW_BYTES:
            self._is_full = True
            return None
        return self.parked.due(monotonic())

    def retry(self, found: PublishedEvent, signal_context: SignalContext[TwinEvent]) -> None:
        """Process the next event of a parked thing. Raises StoreUnavailable."""
        judged, event = self._judge(found, signal_context), signal_context.signal
        self.parked.begin(event.entity, event.revision)
        ended = partial(self._retry_ended, event)
        if isinstance(judged, TwinEvent):
            self._retried[event.entity] = judged
            self._open_bytes += _size(judged)
            if self.route.post(judged, ended, partial(ended, None)) is not None:
                return
        ended(None)

    def fail_retry(self, found: PublishedEvent) -> None:
        """The next event of a parked thing cannot be judged or posted: it is missed."""
        self.parked.begin(found.event.entity, found.event.revision)
        self._retry_ended(found.event, _internal_error())

    def _retry_ended(self, event: TwinEvent | Event, error: ConnectivityError | None) -> None:
        if self._is_closed:
            return
        if (sent := self._retried.pop(event.entity, None)) is not None:
            self._open_bytes -= _size(sent)
        if error is None or is_final(error):
            if error is not None:
                self.skipped += 1
                self._log("event skipped", str(error), entity=str(event.entity), revision=event.revision)
            self.parked.passed(event.entity, event.revision, monotonic())
        else:
            self.parked.refused(event.entity, str(error), monotonic())
        self._notify_idle()
        self._schedule_retry()

    def unpark(self, entity: EntityId, missed: int) -> None:
        """Send the further events of a thing with those of the others again. `missed`: how many were trimmed."""
        self.parked.leave(entity)
        self.miss(missed)
        log.info("thing continues", connection=self.route.connection_id, target=self.route.index, entity=str(entity))
        # The timer was for this thing.
        self._schedule_retry()

    def _park(self, event: TwinEvent, seq: int, error: ConnectivityError) -> bool:
        """Park the thing of an event that has failed; return whether it is parked."""
        is_new = event.entity not in self.parked
        # Behind a failure that the cursor goes back to, the thing would continue too late.
        is_first = self._failed is None or seq < self._failed
        if is_new and not (isinstance(error, MessageRefused) and is_first and not self.route.is_fixed):
            return False
        if not self.parked.park(event.entity, event.revision, str(error), monotonic()):
            return False
        if is_new:
            self._log("thing parked", str(error), **_about(event))
            self._schedule_retry()
        return True

    def _schedule_retry(self) -> None:
        """Wake the cursor when the next parked thing is due."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if (pause := self.parked.next_due - monotonic()) <= 0:
            self._wake()
        elif pause < inf:
            self._retry_timer = asyncio.get_running_loop().call_later(pause, self._wake)

    def fail(self, found: PublishedEvent) -> None:
        """The next event cannot be judged or posted: it is missed, like one that can never be sent."""
        self._close_event(found.seq)
        self.judged = found.seq
        self.skipped += 1
        self._notify(found.seq, _internal_error())

    def skip(self, last: int, trimmed: int) -> None:
        """Skip numbers after `judged` up to `last`.

        Events up to number `trimmed` were trimmed, and are missed; the others are not for targets, or were erased.
        """
        self.miss(min(last, trimmed) - self.judged)
        for seq in [seq for seq in self._listeners if self.judged < seq <= last]:
            self._notify(seq, PublishFailed("the journal has trimmed the event", status=424))
        self.judged = max(self.judged, last)

    def miss(self, events: int) -> None:
        """Count events that were trimmed, if there are any."""
        if events > 0:
            self.skipped += events
            self._log("events skipped", "the journal has trimmed them", events=events)

    def _ended(self, seq: int, error: ConnectivityError | None) -> None:
        if self._is_closed or seq not in self._open:
            return
        if error is None:
            self._tries = 0
            self._finish(seq, None)
        elif is_final(error):
            self.skipped += 1
            self._log("event skipped", str(error), **_about(self._open[seq]))
            self._finish(seq, error)
        else:
            if not self._park(self._open[seq], seq, error):
                self._reason = str(error)
                self._failed = seq if self._failed is None else min(seq, self._failed)
            self._finish(seq, error)

    def _finish(self, seq: int, result: Result) -> None:
        self._close_event(seq)
        self._notify(seq, result)
        self._notify_idle()
        if self._failed is not None:
            if not self._open:
                self._rewind()
        elif self._is_full:
            self._wake()

    def _notify_idle(self) -> None:
        if not self.has_unconfirmed and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _close_event(self, seq: int) -> None:
        if (event := self._open.pop(seq, None)) is not None:
            self._open_bytes -= _size(event)

    def _rewind(self) -> None:
        """Everything posted has ended, with a failure: wait, then send from the first failure on."""
        assert self._failed is not None
        self._one_by_one_until = max(self._one_by_one_until, self.judged)
        self.judged, self._failed = self._failed - 1, None
        self._tries += 1
        self._pause()

    def linked(self) -> None:
        """Continue on a new link.

        A refused event is not the first one that is sent there: if the broker closes links because of it, other events would
        not get through.
        """
        if self._tries and self._failed is None:
            self._pause()

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_pause(self._tries), self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        self._wake()

    def again(self, event: TwinEvent, on_result: OnResult) -> None:
        """Send a passed event again, and report its outcome."""
        if self._is_closed or not self.route.outbox.is_attached:
            on_result(PublishFailed("the broker is unavailable"))
        elif event.entity in self.parked:
            on_result(PublishFailed(self.parked.reason(event.entity)))
        elif self.route.post(event, on_result, partial(on_result, SuppressionReason.EMPTY)) is None:
            on_result(SuppressionReason.EMPTY)

    async def stop(self) -> None:
        """Take no more events; wait until the broker has confirmed those that are on their way."""
        self._is_stopped = True
        if self.has_unconfirmed:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def close(self) -> None:
        """Close the cursor. Open events are unconfirmed; no outcomes are reported."""
        self._is_stopped = self._is_closed = True
        self._listeners.clear()
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._timer = None

    def _notify(self, seq: int, result: Result) -> None:
        listeners: Sequence[OnResult] = self._listeners.pop(seq, ())
        for on_result in listeners:
            on_result(result)

    def _log(self, what: str, why: str, **more: object) -> None:
        log.warning(what, connection=self.route.connection_id, target=self.route.index, error=why, **more)


def _pause(tries: int) -> float:
    return back_off(tries, None, shortest=SHORTEST_PAUSE, longest=LONGEST_PAUSE, jitter=random.random())


def _internal_error() -> PublishFailed:
    return PublishFailed("internal error while processing the event", status=_INTERNAL_ERROR)


def _about(event: TwinEvent) -> dict[str, Any]:
    return {"entity": str(event.entity), "revision": event.revision, **log_context(event.headers)}


def _size(event: TwinEvent) -> int:
    return len(event.value or b"") + len(event.extra or b"")

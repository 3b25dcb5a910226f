"""One target on its way through all events: which of them it is sent, and how far it has come.

A `EventCursor` takes events in the order in which they were stored, judges each by what is the case now, and posts those
that its target is meant to have; at most `WINDOW` of them wait for the broker. Its place is the last event before the first
one that is still open: everything up to there needs nothing more. So the place may be written down late, and what is sent
again after a crash is what had not been written down: at least once, in the order of revisions (Ditto connections, targets).

While the broker is away nothing is judged or posted; the journal keeps what comes. What the broker can never take, or what
cannot be written, is counted, logged and passed over. What it may take later is tried again after a pause that grows: the
cursor goes back to the first such event and sends from there on, one by one until it has passed the place of the trouble, so
that the last thing which a reader hears of an entity is the newest. What the journal has let go is skipped, and counted.

Whoever wants to know what becomes of an event at this target is told once (`listen`). No clock but the loop's, no store.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import structlog

from connectivity.connections.lifecycle import back_off
from connectivity.errors import ConnectivityError, DeliveryGivenUp, PublishFailed
from connectivity.monitoring.log_context import log_context
from connectivity.targets.signal_context import SignalContext, SuppressionReason
from connectivity.targets.target import TargetPublisher
from mappings.model.signals import TwinEvent
from spark_store.records import CursorPosition, PublishedEvent

log = structlog.get_logger(__name__)


WINDOW: Final = 200
"""So many events of a target may wait for its broker."""

WINDOW_BYTES: Final = 4 << 20
"""With so much in what waits, no further event joins it."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before what the broker did not take is tried again."""

ENRICHMENT_FAILED: Final = "signal.enrichment.failed"

_LATER: Final = frozenset({408, 424, 429})
_OWN_FAULT: Final = 500

Result: TypeAlias = ConnectivityError | SuppressionReason | None
"""What became of an event at a target: the broker has it (None), or did not take it, or it was kept from the target."""

Told = Callable[[Result], None]


class EventCursor:
    """One target's way. `seq` and `skipped` are what is worth writing down."""

    def __init__(
        self, route: TargetPublisher, place: CursorPosition, wake: Callable[[], None], window: int = WINDOW
    ) -> None:
        """`wake` is called when the cursor could go on."""
        self.route = route
        self.skipped = place.skipped
        self.taken = place.seq
        """The number of the last event that was judged."""
        self._place = place
        self._wake = wake
        self._window = window
        self._open: dict[int, TwinEvent] = {}
        """By number, those that the broker has not confirmed."""
        self._open_bytes = 0
        self._listeners: dict[int, list[Told]] = {}
        self._failed: int | None = None
        """The number of the first event, among those on their way, that has to be sent again."""
        self._careful_until = 0
        """Up to this number events go one by one."""
        self._tries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._is_full = self._is_stopped = self._is_closed = False
        self._idle: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Cursor {self.route.connection_id}[{self.route.index}] at {self.seq}, {len(self._open)} open>"

    @property
    def seq(self) -> int:
        """Up to this event the target needs nothing more."""
        first = next(iter(self._open), self.taken + 1)
        return (first if self._failed is None else min(first, self._failed)) - 1

    @property
    def place(self) -> CursorPosition:
        return self._place._replace(seq=self.seq, skipped=self.skipped)

    @property
    def reason(self) -> str | None:
        """Why the broker does not take what it is sent, while that is so; None otherwise."""
        return self._reason if self._timer is not None or self._failed is not None else None

    @property
    def is_underway(self) -> bool:
        """Whether the broker has something that it has not confirmed."""
        return bool(self._open)

    def is_passed(self, seq: int) -> bool:
        """Whether nothing more comes of this event by itself."""
        return seq <= self.taken and seq not in self._open and (self._failed is None or seq < self._failed)

    def listen(self, seq: int, told: Told) -> None:
        """Be told what becomes of an event that is not passed. `told` is called once, then or never."""
        self._listeners.setdefault(seq, []).append(told)

    def forget_listeners(self, is_vain: Callable[[Told], bool]) -> None:
        """Whoever is not interested any more need not be told."""
        self._listeners = {
            seq: left for seq, told in self._listeners.items() if (left := [each for each in told if not is_vain(each)])
        }

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    # the way

    @property
    def can_go_on(self) -> bool:
        """Whether the target may be sent something now."""
        if self._is_stopped or self._failed is not None or self._timer is not None or not self.route.outbox.is_attached:
            return False
        window = 1 if self.taken < self._careful_until else self._window
        self._is_full = len(self._open) >= window or self._open_bytes >= WINDOW_BYTES
        return not self._is_full

    def take(self, found: PublishedEvent, happening: SignalContext[TwinEvent]) -> None:
        """The next event, which is behind `taken`; nothing but gaps lies between. Raises StoreUnavailable."""
        seq = found.seq
        if found.cause is not None and found.cause.origin == self.route.connection_id:
            # Nobody is told: to whoever caused it, nothing is acknowledged for its own connection.
            self.taken = seq
            self._listeners.pop(seq, None)
            return
        judged = self.route.judge(happening)
        self.taken = seq
        if isinstance(judged, SuppressionReason):
            if judged is SuppressionReason.ENRICHMENT:
                self.skipped += 1
                self._log(ENRICHMENT_FAILED, judged.value, **_about(happening.signal))
            if self._listeners:
                self._tell(seq, judged)
            return
        self._open[seq] = judged
        self._open_bytes += _size(judged)
        if (
            self.route.post(judged, partial(self._ended, seq), partial(self._over, seq, SuppressionReason.EMPTY))
            is None
        ):
            self._over(seq, SuppressionReason.EMPTY)

    def fail(self, seq: int) -> None:
        """The next event cannot be judged or posted: it is missed, like one that can never be sent."""
        self._shut(seq)
        self.taken = seq
        self.skipped += 1
        self._tell(seq, PublishFailed("the event could not be judged", status=_OWN_FAULT))

    def skip(self, last: int, trimmed: int) -> None:
        """There are no events behind `taken` up to `last`: those up to the number `trimmed` were trimmed, which is a miss;
        the others are nothing that a target is sent, or were erased."""
        missed = min(last, trimmed) - self.taken
        if missed > 0:
            self.skipped += missed
            self._log("events are skipped", "the journal has let them go", events=missed)
        for seq in [seq for seq in self._listeners if self.taken < seq <= last]:
            self._tell(seq, PublishFailed("the journal has let it go", status=424))
        self.taken = max(self.taken, last)

    def _ended(self, seq: int, error: ConnectivityError | None) -> None:
        if self._is_closed or seq not in self._open:
            return
        if error is None:
            self._tries = 0
            self._over(seq, None)
        elif is_final(error):
            self.skipped += 1
            self._log("an event is passed over", str(error), **_about(self._open[seq]))
            self._over(seq, error)
        else:
            self._reason = str(error)
            self._failed = seq if self._failed is None else min(seq, self._failed)
            self._over(seq, error)

    def _over(self, seq: int, result: Result) -> None:
        self._shut(seq)
        self._tell(seq, result)
        if not self._open and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._failed is not None:
            if not self._open:
                self._go_back()
        elif self._is_full:
            self._wake()

    def _shut(self, seq: int) -> None:
        if (event := self._open.pop(seq, None)) is not None:
            self._open_bytes -= _size(event)

    def _go_back(self) -> None:
        """Everything that was on its way has ended, not all of it well: wait, then send from the first failure on."""
        assert self._failed is not None
        self._careful_until = max(self._careful_until, self.taken)
        self.taken, self._failed = self._failed - 1, None
        self._tries += 1
        self._rest()

    def linked(self) -> None:
        """There is a new link.

        What the broker has refused is not the first thing that it hears there: of one that hangs up about it, nothing else
        would have a link for longer than that takes.
        """
        if self._tries and self._failed is None:
            self._rest()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        pause = back_off(self._tries, None, shortest=SHORTEST_PAUSE, longest=LONGEST_PAUSE, jitter=random.random())
        self._timer = asyncio.get_running_loop().call_later(pause, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        self._wake()

    def again(self, event: TwinEvent, told: Told) -> None:
        """Send an event once more that is passed, and tell what becomes of it."""
        if self._is_closed or not self.route.outbox.is_attached:
            told(PublishFailed("the broker is away"))
        elif self.route.post(event, told, partial(told, SuppressionReason.EMPTY)) is None:
            told(SuppressionReason.EMPTY)

    async def stop(self) -> None:
        """Take no more events; wait until the broker has confirmed those that are on their way."""
        self._is_stopped = True
        if self._open:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def close(self) -> None:
        """The connection is closed. What is open has not been confirmed; nobody is told anything any more."""
        self._is_stopped = self._is_closed = True
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, seq: int, result: Result) -> None:
        listeners: Sequence[Told] = self._listeners.pop(seq, ())
        for told in listeners:
            told(result)

    def _log(self, what: str, why: str, **more: object) -> None:
        log.warning(what, connection=self.route.connection_id, target=self.route.index, error=why, **more)


def _about(event: TwinEvent) -> dict[str, Any]:
    return {"entity": str(event.entity), "revision": event.revision, **log_context(event.headers)}


def _size(event: TwinEvent) -> int:
    return len(event.value or b"") + len(event.extra or b"")


def is_final(error: ConnectivityError) -> bool:
    """Whether the same event would fail the same way again: it cannot be written, or the broker can never take it."""
    if not isinstance(error, PublishFailed):
        return False
    status = error.fault.status
    return isinstance(error, DeliveryGivenUp) or status == _OWN_FAULT or (400 <= status < 500 and status not in _LATER)

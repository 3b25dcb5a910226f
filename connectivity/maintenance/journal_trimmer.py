"""Deletes old events from the journal that the lake has.

Events are deleted up to the watermark, which the pipeline publishes when both tables are complete, if the lake's own log
confirms it, and if they are older than `journal.retention`. An event with a future time, of a clock that was ahead, goes
with the first later event without one. Numbers alone prove little: a journal restored from a backup gives numbers again that
the lake has for other events. So before each round the newest event that both have is compared; if it differs, nothing is
deleted. States stay.

Steps are small parts of commits. After a kill, events are either in the lake or in both, and are read once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from connectivity.store.store import Store
from mappings.model.signals import Event
from mappings.timestamps import utc_text
from spark_store.errors import HistoryUnavailable, LakeUnfit, StoreUnavailable
from spark_store.journal.journal import TRIM_EVENTS
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import read_watermark
from spark_store.records import NumberedEvent, OldestEvent, Snapshot

if TYPE_CHECKING:
    from spark_store.lake.history_reader import LakeHistory

log = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 1.0
"""The pause between two rounds."""

STEP_SECONDS: Final = 0.005
"""The pause between two steps of a round, so that half of the commits are without one."""

LOG_SECONDS: Final = 60.0
"""How often trimming is logged at most."""

_LOOK_EVENTS: Final = 100
"""How many events with future times are looked at without a pause: about a millisecond."""

_ANY_TIME: Final = "~"
"""A text above all times of events."""

_HELP: Final = (
    "journal and lake do not match: restore the older of the two from a backup, or move the folder `lake` away"
)


def difference(mine: NumberedEvent, kept: NumberedEvent | None, snapshot: Snapshot | None) -> str | None:
    """Return how the journal's event differs from that of the same revision in the lake; None if equal.

    `snapshot` is the lake's newest snapshot up to there: retention keeps it when it deletes the event.
    """
    event = mine.event
    name = f"{event.entity} at revision {event.revision}, {event.timestamp}"
    if kept is None:
        if snapshot is not None and (snapshot.revision, snapshot.modified) == (event.revision, event.timestamp):
            return None
        return (
            f"expected {name} in the lake, as in the journal, found neither the event nor a snapshot that replaces it"
        )
    if kept.seq != mine.seq:
        return f"expected {name} in the lake with this number, found it with the number {kept.seq}"
    if wrong := [field for field in Event._fields if getattr(kept.event, field) != getattr(event, field)]:
        return f"expected {name} in the lake, as in the journal, found a different {', '.join(wrong)}"
    return None


class JournalTrimmer:
    """Trims the journal of one store."""

    def __init__(
        self,
        store: Store,
        lake: Lake,
        retention: timedelta,
        now: Callable[[], datetime],
        *,
        on_trim: Callable[[int], object] = lambda events: None,  # noqa: ARG005 - what callers name it
        on_round: Callable[[bool], object] = lambda is_possible: None,  # noqa: ARG005 - the same
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Callbacks: `on_trim` with the number of deleted events, `on_round` with whether it could trim.

        They are called after each step and each round. `clock` returns monotonic seconds.
        """
        self._store = store
        self._lake = lake
        self._retention = retention
        self._now = now
        self._on_trim = on_trim
        self._on_round = on_round
        self._clock = clock
        self._unlogged = 0
        self._last_log = float("-inf")
        self._reason: str | None = None
        self._ahead = 0
        """Up to which number the journal begins with events of a clock that was ahead."""

    async def round(self) -> int:
        """Delete all events that may be deleted now; return how many."""
        trimmed = 0
        try:
            for last, before in await self._due():
                while True:
                    step = await self._store.commits.trim(last, before)
                    trimmed += step
                    self._on_trim(step)
                    if step < TRIM_EVENTS:
                        break
                    await asyncio.sleep(STEP_SECONDS)
            self._reason = None
        except (StoreUnavailable, HistoryUnavailable, LakeUnfit) as error:
            # The next round may succeed; logged once, not every second.
            if (reason := str(error)) != self._reason:
                log.warning("journal not trimmed", reason=reason)
            self._reason = reason
        self._on_round(self._reason is None)
        self._notify(trimmed)
        return trimmed

    async def _due(self) -> list[tuple[int, str]]:
        """Return up to which numbers, and before which times, events are deleted now, one after the other.

        Only events that watermark and lake log confirm.
        """
        before = self._before()
        # In a thread, since the disk may be slow.
        watermark = (await asyncio.to_thread(read_watermark, self._lake.watermark)).seq
        first = await self._oldest_past()
        if first is None or first.seq > watermark or first.timestamp >= before:
            return []
        reaches = await self._store.ask_lake(lambda cold, _: cold.reaches()) or 0
        if (newest := self._store.newest_seq()) < reaches:
            raise LakeUnfit(f"the lake has events up to {reaches}, but the journal only up to {newest}; {_HELP}")
        last = min(watermark, reaches)
        if not await self._matches_lake(last):
            return []
        oldest = self._store.oldest()
        has_future = oldest is not None and oldest.seq < first.seq
        future = [(min(last, first.seq - 1), _ANY_TIME)] if has_future else []
        return [*future, (last, before)]

    async def _oldest_past(self) -> OldestEvent | None:
        """Return the oldest event whose time is not in the future.

        The clock was ahead when earlier ones were written: they are at least as old.
        """
        now, looked = utc_text(self._now()), 0
        found = self._store.oldest()
        while found is not None and found.timestamp > now:
            self._ahead = max(self._ahead, found.seq)
            found, looked = self._store.oldest(self._ahead), looked + 1
            if looked % _LOOK_EVENTS == 0:
                await asyncio.sleep(STEP_SECONDS)
        return found

    async def _matches_lake(self, last: int) -> bool:
        """Whether journal and lake have the same newest event up to this number; False without one.

        Raises LakeUnfit.
        """
        if (mine := self._store.newest_up_to(last)) is None:
            return False
        entity, revision = mine.event.entity, mine.event.revision

        def look(cold: LakeHistory, _: int) -> tuple[NumberedEvent | None, Snapshot | None]:
            kept = cold.find_numbered(entity, revision, reaching=last)
            return kept, cold.snapshot(entity, revision) if kept is None else None

        found = await self._store.ask_lake(look)
        kept, snapshot = found if found is not None else (None, None)
        if (reason := difference(mine, kept, snapshot)) is not None:
            raise LakeUnfit(f"event {mine.seq}: {reason}; {_HELP}")
        return True

    def _before(self) -> str:
        """Return the timestamp before which events may be deleted."""
        try:
            return utc_text(self._now() - self._retention)
        except OverflowError:
            return ""  # older than any event

    def _notify(self, trimmed: int) -> None:
        self._unlogged += trimmed
        if self._unlogged and self._clock() - self._last_log >= LOG_SECONDS:
            oldest = self._store.oldest()
            log.info("journal trimmed", events=self._unlogged, oldest=None if oldest is None else oldest.seq)
            self._unlogged, self._last_log = 0, self._clock()

"""Trimming: the journal lets go of old events that the lake has.

What may go is numbered up to the watermark, which the pipeline publishes when both tables are complete; the lake's own log
has to say the same, so that a watermark that was left behind by a lake that is gone takes nothing away. Numbers alone prove
little: a journal that was restored from a backup gives numbers again that the lake has for other events. Two pasts that part
never meet again, so before each round the newest event that both vouch for is compared, and where it differs nothing goes.
And what goes is older than `journal.hot_window`. States stay in any case, and so does everything where there is no lake.

Steps ride on commits and are small; between two of them others have their turn. A service that is killed has trimmed some
steps more or less: what is gone is in the lake, and what is in both is read once.
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
from mappings.texts import utc_text
from spark_store.errors import HistoryUnavailable, LakeUnfit, StoreUnavailable
from spark_store.journal.journal import TRIM_EVENTS
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import read_watermark
from spark_store.records import NumberedEvent, Snapshot

if TYPE_CHECKING:
    from spark_store.lake.history_reader import LakeHistory


log = structlog.get_logger(__name__)


ROUND_SECONDS: Final = 1.0
"""From the end of one round to the next."""

STEP_SECONDS: Final = 0.005
"""Between two steps of a round: half of a busy disk's commits are without one."""

LOG_SECONDS: Final = 60.0
"""What was trimmed is logged so often at most."""


_HELP: Final = "lake and journal do not belong together: restore the one that is older, or move the folder `lake` away"


def unlike(mine: NumberedEvent, kept: NumberedEvent | None, border: Snapshot | None) -> str | None:
    """What tells the journal's event from that of the same revision in the lake; None if they are the same.

    `border` is the lake's newest snapshot up to there: where retention has taken the event, it has left the state after it.
    """
    event = mine.event
    name = f"{event.entity} at revision {event.revision}, {event.timestamp}"
    if kept is None:
        if border is not None and (border.revision, border.modified) == (event.revision, event.timestamp):
            return None
        return f"expected {name} in the lake, as in the journal, found neither it nor a snapshot that stands for it"
    if kept.seq != mine.seq:
        return f"expected {name} in the lake with this number, found it with the number {kept.seq}"
    if wrong := [field for field in Event._fields if getattr(kept.event, field) != getattr(event, field)]:
        return f"expected {name} in the lake, as in the journal, found it with another {', '.join(wrong)}"
    return None


class JournalTrimmer:
    """Trims one store's journal for as long as the service runs."""

    def __init__(
        self,
        store: Store,
        lake: Lake,
        hot_window: timedelta,
        now: Callable[[], datetime],
        *,
        on_trim: Callable[[int], object] = lambda events: None,  # noqa: ARG005 - what callers name it
        on_round: Callable[[bool], object] = lambda is_possible: None,  # noqa: ARG005 - the same
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_trim` is told how many events each step has taken away, `on_round` after each round whether it could trim;
        `clock` gives monotonic seconds."""
        self._store = store
        self._lake = lake
        self._hot_window = hot_window
        self._now = now
        self._on_trim = on_trim
        self._on_round = on_round
        self._clock = clock
        self._untold = 0
        self._told = float("-inf")
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<Trimmer of {self._lake.journal}, beyond {self._hot_window}>"

    async def round(self) -> int:
        """Everything that may go now. How many events went."""
        trimmed = 0
        try:
            before = self._before()
            last = await self._last(before)
            while last:
                step = await self._store.trim(last, before)
                trimmed += step
                self._on_trim(step)
                if step < TRIM_EVENTS:
                    break
                await asyncio.sleep(STEP_SECONDS)
            self._reason = None
        except (StoreUnavailable, HistoryUnavailable, LakeUnfit) as error:
            # The next round may go well; said once, not in every second.
            if (reason := str(error)) != self._reason:
                log.warning("the journal is not trimmed", reason=reason)
            self._reason = reason
        self._on_round(self._reason is None)
        self._tell(trimmed)
        return trimmed

    async def _last(self, before: str) -> int:
        """The number of the last event that both the watermark and the lake's log vouch for; 0 where nothing is due."""
        # In a thread, since the disk may be busy.
        watermark = (await asyncio.to_thread(read_watermark, self._lake.watermark)).seq
        oldest = self._store.oldest()
        if oldest is None or oldest.seq > watermark or oldest.timestamp >= before:
            return 0
        reaches = await self._store.ask_lake(lambda cold, _: cold.reaches()) or 0
        if (newest := self._store.newest_seq()) < reaches:
            raise LakeUnfit(
                f"expected a journal with event {reaches}, the lake's newest, found {newest} events; {_HELP}"
            )
        last = min(watermark, reaches)
        return last if await self._is_same_past(last) else 0

    async def _is_same_past(self, last: int) -> bool:
        """Whether the lake's newest event up to this number is the journal's; False without one. Raises LakeUnfit."""
        if (mine := self._store.newest_until(last)) is None:
            return False
        entity, revision = mine.event.entity, mine.event.revision

        def look(cold: LakeHistory, _: int) -> tuple[NumberedEvent | None, Snapshot | None]:
            kept = cold.numbered(entity, revision, reaching=last)
            return kept, cold.snapshot(entity, revision) if kept is None else None

        found = await self._store.ask_lake(look)
        kept, border = found if found is not None else (None, None)
        if (difference := unlike(mine, kept, border)) is not None:
            raise LakeUnfit(f"event {mine.seq}: {difference}; {_HELP}")
        return True

    def _before(self) -> str:
        """Where the hot window begins, as events write times."""
        try:
            return utc_text(self._now() - self._hot_window)
        except OverflowError:
            return ""  # nothing is so old

    def _tell(self, trimmed: int) -> None:
        self._untold += trimmed
        if self._untold and self._clock() - self._told >= LOG_SECONDS:
            oldest = self._store.oldest()
            log.info("journal trimmed", events=self._untold, oldest=None if oldest is None else oldest.seq)
            self._untold, self._told = 0, self._clock()

"""How far the clock is believed by whoever deletes what is old.

What a clock that runs ahead makes old cannot be brought back, and the newest event is no witness: it has its time from the
same clock. So from one look to the next the time that is believed goes on by no more than what was measured meanwhile. What
the clock says beyond that is believed once it has gone steadily for a day (`PROOF`); until then people can set it right.

Nobody measures how long a process did not run. As much as a day of it is believed at once. After a longer stop, or where the
machine has slept, less than could be is deleted for a day, which does no harm.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

PROOF = timedelta(days=1)
"""For so long a clock that went ahead has to go steadily."""
SLACK = timedelta(minutes=1)
"""Between two looks a clock may be corrected by so much."""


class Look(NamedTuple):
    """What the clock said, and what is believed; the monotonic seconds then, and those since which it has gone steadily."""

    clock: datetime
    believed: datetime
    seconds: float
    steady: float

    @property
    def ahead(self) -> timedelta | None:
        """By how much the clock is beyond what is believed, if it is."""
        return self.clock - self.believed if self.clock > self.believed else None


def first_look(believed: datetime | None, clock: datetime, seconds: float) -> Look:
    """The first look of a process; what an earlier one believed last, if there was one."""
    return Look(clock, clock if believed is None else min(clock, believed + PROOF), seconds, seconds)


def look(last: Look, clock: datetime, seconds: float) -> Look:
    """The next look of the same process."""
    passed = timedelta(seconds=seconds - last.seconds)
    steady = last.steady if abs(clock - last.clock - passed) <= SLACK else seconds
    if clock <= last.believed + passed + SLACK or timedelta(seconds=seconds - steady) >= PROOF:
        return Look(clock, clock, seconds, steady)
    return Look(clock, last.believed + passed, seconds, steady)

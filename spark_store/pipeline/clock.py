"""How far the clock is believed by whoever deletes what is old.

What a clock that runs ahead makes old cannot be brought back, and the newest event is no witness: it has its time from the
same clock. So from one look to the next the time that is believed goes on by what was measured meanwhile. What the clock
says beyond that, or short of it, is believed once it has gone steadily for a day (`PROOF`); until then people can set it
right. So a machine that begins in 1970 whenever it is switched on does not lose what is believed. Meanwhile the earlier one
of the two counts (`ClockReading.until`).

Looks are kept, and the system measures for as long as the machine is up, whichever process asks it and also while the
machine sleeps. How long it was off nobody measures. As much as a day of that is believed, at once or when the clock is set
later on; after a longer time less than could be is deleted for a day, which does no harm.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

PROOF = timedelta(days=1)
"""For so long a clock that went ahead has to go steadily."""
SLACK = timedelta(minutes=1)
"""Between two looks a clock may be corrected by so much."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESS = str(uuid4())


class Uptime(NamedTuple):
    """Which start of the machine this is, and the seconds since then."""

    boot: str
    seconds: float


class ClockReading(NamedTuple):
    """What the clock said, and what is believed; when that was, and the seconds since which the clock has gone steadily; how
    much may still be believed of the time for which the machine was off."""

    clock: datetime
    believed: datetime
    uptime: Uptime
    steady: float
    off: timedelta = timedelta(0)

    @property
    def ahead(self) -> timedelta | None:
        """By how much the clock is beyond what is believed, if it is."""
        return self.clock - self.believed if self.clock > self.believed else None

    @property
    def until(self) -> datetime:
        """What age may be counted from."""
        return min(self.clock, self.believed)


def look(last: ClockReading | None, clock: datetime, uptime: Uptime) -> ClockReading:
    """The next look, of the same process or of another one; what the last one was, if there was one."""
    if last is None:
        return ClockReading(clock, clock, uptime, uptime.seconds)
    passed = timedelta(seconds=uptime.seconds - last.uptime.seconds)
    steady, off = last.steady, last.off
    if uptime.boot != last.uptime.boot or passed < timedelta(0):
        passed, steady, off = timedelta(0), uptime.seconds, PROOF
    elif abs(clock - last.clock - passed) > SLACK:
        steady = uptime.seconds
    if timedelta(seconds=uptime.seconds - steady) >= PROOF:
        return ClockReading(clock, clock, uptime, steady)
    measured = last.believed + passed
    if abs(clock - measured) <= SLACK:
        return ClockReading(clock, clock, uptime, steady, off)
    credited = max(timedelta(0), min(clock - measured, off))
    return ClockReading(clock, measured + credited, uptime, steady, off - credited)


def uptime() -> Uptime:
    """Now, as the system says it; where it does not, each process is a start of its own."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = _PROCESS
    return Uptime(boot, time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))

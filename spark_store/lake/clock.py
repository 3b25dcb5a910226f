"""The trusted time of retention, protected from clocks that are wrong.

Deleted events cannot be restored, and the newest event has its time from the same clock. So between two readings the trusted
time advances by the measured uptime. A different time of the clock is trusted after it has run steadily for a
day (`PROOF`); until then operators can correct it, and the earlier one of the two applies (`ClockReading.until`). The system
measures while the machine is up or sleeps. Of the time that it was off, a day is trusted; after a longer time retention
deletes less for a day.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec

PROOF = timedelta(days=1)
"""How long a clock that jumped ahead must run steadily."""
SLACK = timedelta(minutes=1)
"""How much a clock may be corrected between two readings."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESS = str(uuid4())


class Uptime(msgspec.Struct, frozen=True):
    """Which start of the machine this is, and the seconds since then."""

    boot: str
    seconds: float


class ClockReading(msgspec.Struct, frozen=True):
    """A reading of the clock.

    Clock and trusted time, when it was read, since when the clock has run steadily, and how much of the time off may still
    be trusted.
    """

    clock: datetime
    trusted: datetime
    uptime: Uptime
    steady: float
    off: timedelta = timedelta(0)

    @property
    def ahead(self) -> timedelta | None:
        """How far the clock is ahead of the trusted time."""
        return self.clock - self.trusted if self.clock > self.trusted else None

    @property
    def until(self) -> datetime:
        """The time from which ages are computed."""
        return min(self.clock, self.trusted)


def next_reading(last: ClockReading | None, clock: datetime, uptime: Uptime) -> ClockReading:
    """Return the next reading, of this process or another one, after the `last` one."""
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
    measured = last.trusted + passed
    if abs(clock - measured) <= SLACK:
        return ClockReading(clock, clock, uptime, steady, off)
    credited = max(timedelta(0), min(clock - measured, off))
    return ClockReading(clock, measured + credited, uptime, steady, off - credited)


def uptime() -> Uptime:
    """Return the uptime and boot ID of the system; if unknown, each process is a boot of its own."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = _PROCESS
    return Uptime(boot, time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))

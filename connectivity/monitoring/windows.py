"""Counts of the last minute, hour and day, in sliding windows.

Adding to a `WindowedCount` costs one comparison and one addition, whatever the number of windows. The count of one second is
moved into the windows at the first access in a later second. So each window slides by the width of its buckets: 10 s, one
minute, one hour (Ditto connections, metrics).

Seconds come from a `SecondClock` that is advanced about once a second, because reading the time for every message would cost
more than counting it. They are monotonic, so setting the system clock does not move counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple


class TimeWindow(NamedTuple):
    """A period: its name, the seconds of one bucket, and the number of buckets."""

    name: str
    seconds: int
    buckets: int


WINDOWS: Final = (TimeWindow("PT1M", 10, 6), TimeWindow("PT1H", 60, 60), TimeWindow("PT24H", 3600, 24))

_OFFSETS: Final = tuple(sum(window.buckets for window in WINDOWS[:index]) for index in range(len(WINDOWS)))
_EMPTY: Final = bytes(8 * sum(window.buckets for window in WINDOWS))


class SecondClock:
    """The time in whole seconds, as of the last tick."""

    __slots__ = ("_now", "second")

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns monotonic seconds."""
        self._now = now
        self.second = int(now())

    def tick(self) -> None:
        """Read the time."""
        self.second = int(self._now())


class CountSnapshot(NamedTuple):
    """The counts in the windows, in the order of `WINDOWS`, and the second of the latest one, if any."""

    windows: tuple[int, ...] = (0,) * len(WINDOWS)
    last: int | None = None

    def __add__(self, other: object) -> CountSnapshot:
        """Return the sum of both."""
        if not isinstance(other, CountSnapshot):
            return NotImplemented
        latest_seconds = [each.last for each in (self, other) if each.last is not None]
        sums = tuple(left + right for left, right in zip(self.windows, other.windows, strict=True))
        return CountSnapshot(sums, max(latest_seconds, default=None))


class WindowedCount:
    """A growing number with windows. Its buckets are allocated at the first count."""

    __slots__ = ("_buckets", "_cleared_until", "_total_before", "clock", "last", "open", "second")

    def __init__(self, clock: SecondClock) -> None:
        self.clock = clock
        self.second = clock.second
        """The second that `open` belongs to."""
        self.open = 0
        """The count of that second."""
        self._total_before = 0
        self._buckets: array[int] | None = None
        self._cleared_until = clock.second
        """Expired buckets were cleared up to this second."""
        self.last: int | None = None
        """The latest second with a count, except for the open one."""

    @property
    def total(self) -> int:
        """The count since the beginning."""
        return self._total_before + self.open

    def add(self, count: int = 1) -> None:
        """Add to the count."""
        if self.second != self.clock.second:
            self.roll()
        self.open += count

    def roll(self) -> None:
        """Move the open count into the windows and begin the current second."""
        if self.open:
            buckets = self._current_buckets(self.second)
            for window, offset in zip(WINDOWS, _OFFSETS, strict=True):
                buckets[offset + self.second // window.seconds % window.buckets] += self.open
            self._total_before += self.open
            self.last, self.open = self.second, 0
        self.second = self.clock.second

    def read(self) -> CountSnapshot:
        """Return the counts of the windows that end now."""
        self.roll()
        if self._buckets is None:
            return CountSnapshot()
        buckets = self._current_buckets(self.second)
        sums = (
            sum(buckets[offset : offset + window.buckets]) for window, offset in zip(WINDOWS, _OFFSETS, strict=True)
        )
        return CountSnapshot(tuple(sums), self.last)

    def reset(self) -> None:
        """Reset the windows. The total stays."""
        self.roll()
        self._buckets = self.last = None

    def _current_buckets(self, second: int) -> array[int]:
        """Return the buckets after clearing those that have expired at this second."""
        if self._buckets is None:
            self._buckets, self._cleared_until = array("Q", _EMPTY), second
        buckets = self._buckets
        for window, offset in zip(WINDOWS, _OFFSETS, strict=True):
            current = second // window.seconds
            passed = min(window.buckets, current - self._cleared_until // window.seconds)
            for bucket in range(current - passed + 1, current + 1):
                buckets[offset + bucket % window.buckets] = 0
        self._cleared_until = max(self._cleared_until, second)
        return buckets

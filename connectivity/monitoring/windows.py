"""How often something has happened within the last minute, hour and day.

A `WindowedCount` is made to be added to by whoever is in a hurry: one comparison and one addition, whatever the number of
windows. What was counted within one second is laid into the windows when the next one begins for it, or when somebody reads.
So each window slides by the width of its buckets: ten seconds, a minute, an hour (Ditto connections, metrics).

Seconds come from a `SecondClock` that somebody moves on about once a second: asking the time for every message would cost
more than counting it. They are monotonic, so that a clock which is set does not move what was counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple


class TimeWindow(NamedTuple):
    """A span of time: its name, the seconds of one of its buckets, and how many of them it has."""

    name: str
    seconds: int
    buckets: int


WINDOWS: Final = (TimeWindow("PT1M", 10, 6), TimeWindow("PT1H", 60, 60), TimeWindow("PT24H", 3600, 24))

_OFFSETS: Final = tuple(sum(window.buckets for window in WINDOWS[:index]) for index in range(len(WINDOWS)))
_EMPTY: Final = bytes(8 * sum(window.buckets for window in WINDOWS))


class SecondClock:
    """Whole seconds, as they were when somebody looked last."""

    __slots__ = ("_now", "second")

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._now = now
        self.second = int(now())

    def __repr__(self) -> str:
        return f"<Clock at {self.second}>"

    def tick(self) -> None:
        """Look what time it is."""
        self.second = int(self._now())


class CountSnapshot(NamedTuple):
    """What a count has in its windows, in their order, and the second in which the newest of it was counted, if any."""

    windows: tuple[int, ...] = (0,) * len(WINDOWS)
    last: int | None = None

    def __add__(self, other: object) -> CountSnapshot:
        """Both together."""
        if not isinstance(other, CountSnapshot):
            return NotImplemented
        lasts = [each.last for each in (self, other) if each.last is not None]
        sums = tuple(mine + theirs for mine, theirs in zip(self.windows, other.windows, strict=True))
        return CountSnapshot(sums, max(lasts, default=None))


class WindowedCount:
    """One number that grows. Its buckets take memory once it has grown."""

    __slots__ = ("_before", "_buckets", "_folded", "clock", "last", "open", "second")

    def __init__(self, clock: SecondClock) -> None:
        self.clock = clock
        self.second = clock.second
        """The second that `open` belongs to."""
        self.open = 0
        """What was counted in that second."""
        self._before = 0
        self._buckets: array[int] | None = None
        self._folded = clock.second
        """Up to this second old buckets were emptied."""
        self.last: int | None = None
        """The second in which something was counted last, apart from what is open."""

    def __repr__(self) -> str:
        return f"<Count {self.total}>"

    @property
    def total(self) -> int:
        """Everything that was ever counted."""
        return self._before + self.open

    def add(self, count: int = 1) -> None:
        """Count so many."""
        if self.second != self.clock.second:
            self.roll()
        self.open += count

    def roll(self) -> None:
        """A new second has begun."""
        if self.open:
            buckets = self._emptied(self.second)
            for window, offset in zip(WINDOWS, _OFFSETS, strict=True):
                buckets[offset + self.second // window.seconds % window.buckets] += self.open
            self._before += self.open
            self.last, self.open = self.second, 0
        self.second = self.clock.second

    def read(self) -> CountSnapshot:
        """What the windows that end now have."""
        self.roll()
        if self._buckets is None:
            return CountSnapshot()
        buckets = self._emptied(self.second)
        sums = (
            sum(buckets[offset : offset + window.buckets]) for window, offset in zip(WINDOWS, _OFFSETS, strict=True)
        )
        return CountSnapshot(tuple(sums), self.last)

    def reset(self) -> None:
        """Forget what the windows have. The total stays."""
        self.roll()
        self._buckets = self.last = None

    def _emptied(self, second: int) -> array[int]:
        """The buckets, without what is too old at this second."""
        if self._buckets is None:
            self._buckets, self._folded = array("Q", _EMPTY), second
        buckets = self._buckets
        for window, offset in zip(WINDOWS, _OFFSETS, strict=True):
            current = second // window.seconds
            passed = min(window.buckets, current - self._folded // window.seconds)
            for bucket in range(current - passed + 1, current + 1):
                buckets[offset + bucket % window.buckets] = 0
        self._folded = max(self._folded, second)
        return buckets

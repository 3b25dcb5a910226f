"""A clock that tests move, for code that takes the time as an argument or a callable."""

from __future__ import annotations


class Clock:
    """A clock in monotonic seconds. `clock.now` can replace `time.monotonic`."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def __repr__(self) -> str:
        return f"<Clock at {self._now}>"

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move on by `seconds` (never back) and return the new time."""
        if seconds < 0:
            raise ValueError(f"a clock moves on only, found {seconds} s")
        self._now += seconds
        return self._now

"""The pace of search threads: turns and rests while commands are processed, full speed otherwise.

Search threads execute Python for each row, and the event loop waits for the interpreter at about thirty points of a command.
So, while the service processes commands, one search thread at a time has a turn of a millisecond, and all of them rest for
a millisecond after it, in which a command is finished. The first turns after a while without searches need no rests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

BUSY_SECONDS: Final = 0.05
"""How long after the last commands the service is busy."""

TURN_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.001

UNPAID_SECONDS: Final = 0.005
"""The seconds of rests that are left out after a while without searches, so that short ones have none."""

_NEVER: Final = float("-inf")

Row = TypeVar("Row")


class SearchPace:
    """The turns of all search threads."""

    __slots__ = ("_free_at", "_lock", "busy_at", "now", "sleep")

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`now` is a clock like `time.perf_counter`."""
        self.busy_at = _NEVER
        """When commands were processed last. Set by the event loop."""
        self.now, self.sleep = now, sleep
        self._lock = threading.Lock()
        self._free_at = _NEVER
        """When the given turns and their rests are over."""

    def next_turn(self, now: float, used: float) -> float:
        """Return when a thread begins its next turn: `now` unless the service is busy.

        `used`: the seconds of its last turn.
        """
        if now > self.busy_at + BUSY_SECONDS:
            return now
        each = TURN_SECONDS + REST_SECONDS
        with self._lock:
            # A long turn has a long rest.
            late = max(0.0, used / TURN_SECONDS - 1) * each
            begin = max(self._free_at + late, now - UNPAID_SECONDS)
            self._free_at = begin + each
        return max(now, begin)


class ThreadPace:
    """The turns of one search thread."""

    __slots__ = ("_begun", "_pace", "ends", "now", "rested")

    def __init__(self, pace: SearchPace) -> None:
        self._pace, self.now = pace, pace.now
        self._begun = _NEVER
        self.ends = _NEVER
        """When its turn ends, and it has to `rest`."""
        self.rested = 0.0
        """For how many seconds it has rested in all."""

    def begin(self) -> None:
        """Begin a page, in the thread's last turn or in a new one."""
        if (now := self.now()) >= self.ends:
            self._begun = self.ends = now

    def rest(self, now: float) -> float:
        """Wait for the next turn after one that has ended, and return the time after that."""
        pace = self._pace
        begin = pace.next_turn(now, now - self._begun)
        if begin > now:
            pace.sleep(begin - now)
            now, before = self.now(), now
            self.rested += now - before
        self._begun, self.ends = now, now + TURN_SECONDS
        return now

    def each(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows, with rests between them."""
        for row in rows:
            if (now := self.now()) >= self.ends:
                self.rest(now)
            yield row

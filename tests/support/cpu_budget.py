"""What a piece of work costs a processor, for tests which hold that no input is a trap.

A trap takes minutes or hours where an honest input takes milliseconds, so a bound between the two is no timing. It must
hold on any machine and in any company, though: a clock on the wall counts what other programs do, the processor time of
a process counts its other threads, and a collection of everything that ten thousand tests have left takes a second by
itself. Only the thread that does the work is counted here, and nothing is collected meanwhile. And as one processor is
slower than another, or shares its parts with a busy neighbour, seconds are those of a machine of average speed: work that is
always the same, done before and after, tells how many of this one's they are.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AVERAGE = 0.0004
"""Seconds of a processor of average speed for `_work`."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """The block takes this thread no more than so many seconds of a processor of average speed; AssertionError else."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        before = _slowness()
        begun = time.thread_time()
        yield
        taken = time.thread_time() - begun
        allowed = seconds * max(1.0, before, _slowness())
    finally:
        if collecting:
            gc.enable()
    assert taken <= allowed, f"it took {taken:.2f} s of this processor, expected at most {allowed:.2f} s"


def _slowness() -> float:
    """How many times as long as one of average speed this processor takes at the moment."""
    return min(_work() for _ in range(3)) / _AVERAGE


def _work() -> float:
    """Seconds of this processor for something that never changes."""
    begun = time.thread_time()
    for _ in range(2):
        made: list[dict[str, list[Any]]] = [{"a": [number, str(number)]} for number in range(1000)]
        sum(len(it["a"][1]) for it in made)
    return time.thread_time() - begun

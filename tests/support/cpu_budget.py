"""Measures the processor time of work, for tests that no input is disproportionately slow.

Such an input takes minutes instead of milliseconds, so a limit between the two is not sensitive to the machine. Only the
thread of the work is measured, without garbage collection, because wall time includes other programs, and the processor
time of the process includes other threads. Seconds are normalized to a machine of average speed, by a constant piece of
work before and after the measurement.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_AVERAGE = 0.0004
"""The seconds that a processor of average speed takes for `_work`."""


_CALLS = 3
"""How often `at_most_milliseconds` measures."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Require that the block takes at most `seconds` of processor time, normalized to average speed."""
    with _budget(seconds) as taken:
        begun = time.thread_time()
        yield
        taken.append(time.thread_time() - begun)


def at_most_milliseconds(milliseconds: float, work: Callable[[], T]) -> T:
    """Require that the quickest of three calls takes at most `milliseconds` like `at_most`, and return its result.

    Programs on other cores share caches, and can slow down a few milliseconds, but not the constant piece of work.
    """
    with _budget(milliseconds / 1000) as taken:
        for _ in range(_CALLS):
            begun = time.thread_time()
            result = work()
            taken.append(time.thread_time() - begun)
    return result


@contextmanager
def _budget(seconds: float) -> Iterator[list[float]]:
    """Compare the least of the times in the list with `seconds`, normalized to average speed."""
    collecting, taken = gc.isenabled(), list[float]()
    gc.disable()
    try:
        before = _slowness()
        yield taken
        allowed = seconds * max(1.0, before, _slowness())
    finally:
        if collecting:
            gc.enable()
    least = min(taken)
    assert least <= allowed, f"it took {least:.4f} s of this processor, expected at most {allowed:.4f} s"


def _slowness() -> float:
    """Return how many times slower than average this processor is at the moment."""
    return min(_work() for _ in range(3)) / _AVERAGE


def _work() -> float:
    """Return the seconds that this processor takes for a constant piece of work."""
    begun = time.thread_time()
    for _ in range(2):
        made: list[dict[str, list[Any]]] = [{"a": [number, str(number)]} for number in range(1000)]
        sum(len(it["a"][1]) for it in made)
    return time.thread_time() - begun

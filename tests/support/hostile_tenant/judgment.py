"""Decides whether a tenant was harmed by another one, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_TIMES = 3.0
"""How many times as long as alone a command may take beside a hostile tenant, at the 99th percentile."""

FLOOR_MS = 5.0
"""Times alone below this are taken as this: less than two time slices of the scheduler, on cores that are shared."""

PROCESSOR_FLOOR_MS = 6.0
"""Processor times alone below this are taken as this."""


class Answered(NamedTuple):
    """An answered command: when it was due, in seconds, and the milliseconds until its answer.

    `processor`: the milliseconds of processor that the service has used meanwhile, for everybody.
    """

    due: float
    milliseconds: float
    processor: float


class Span(NamedTuple):
    """A time from one moment of the monotonic clock to another."""

    begin: float
    end: float


class Bounds(NamedTuple):
    """The memory and disk that the service may use beside a hostile tenant, in bytes."""

    memory: int
    """By how much its memory may grow."""
    stored: int = 1 << 40
    """The size of its files."""


class Measured(NamedTuple):
    """The measurements of a tenant: its commands alone and beside the other, and its failures."""

    alone: Sequence[Answered]
    beside: Sequence[Answered]
    refused: int = 0
    unanswered: int = 0
    unreachable: int = 0
    """Requests to the API that were not answered."""
    memory: int = 0
    """By how many bytes the service's memory has grown."""
    stored: int = 0
    """The bytes of its files."""

    @property
    def times(self) -> float:
        """How many times as long as alone commands took beside the other, at the 99th percentile."""
        return milliseconds(self.beside, 99) / max(FLOOR_MS, milliseconds(self.alone, 99))

    def __str__(self) -> str:
        return (
            f"alone p50 {milliseconds(self.alone, 50):.1f} ms, p99 {milliseconds(self.alone, 99):.1f} ms; "
            f"beside p50 {milliseconds(self.beside, 50):.1f} ms, p99 {milliseconds(self.beside, 99):.1f} ms; "
            f"{self.times:.2f} times; processor alone p90 {processor(self.alone, 90):.1f} ms, "
            f"beside p50 {processor(self.beside, 50):.1f} ms, p90 {processor(self.beside, 90):.1f} ms; "
            f"memory +{self.memory >> 20} MiB, {self.stored >> 20} MiB stored"
        )


def within(answers: Sequence[Answered], span: Span) -> list[Answered]:
    """The commands that were due in a time."""
    return [each for each in answers if span.begin <= each.due < span.end]


def milliseconds(answers: Sequence[Answered], percent: int) -> float:
    """The time in which so many percent of the commands were answered."""
    return percentile([each.milliseconds for each in answers], percent)


def processor(answers: Sequence[Answered], percent: int) -> float:
    """The same in milliseconds of processor that the service has used meanwhile."""
    return percentile([each.processor for each in answers], percent)


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def failures(measured: Measured, bounds: Bounds) -> list[str]:
    """The failures of a tenant, and the limits that the service exceeded."""
    found = []
    if measured.refused:
        found.append(f"{measured.refused} commands refused, expected none")
    if measured.unanswered:
        found.append(f"{measured.unanswered} commands without an answer, expected none")
    if measured.unreachable:
        found.append(f"{measured.unreachable} requests to the API without an answer, expected none")
    if measured.memory > bounds.memory:
        found.append(f"{measured.memory:,} bytes of memory more, expected at most {bounds.memory:,}")
    if measured.stored > bounds.stored:
        found.append(f"{measured.stored:,} bytes stored, expected at most {bounds.stored:,}")
    return found


def is_delayed(measured: Measured) -> bool:
    """Whether a tenant waited longer than it may beside another one."""
    return measured.times > MOST_TIMES


def waits_behind(measured: Measured) -> bool:
    """Whether commands of a tenant wait until the service has done much for the other one.

    Half of the commands may take three times the processor time of nine of ten alone. This holds on a machine that does
    other things, too: they delay an answer and cost the service no processor time, and what piles up in a delay does so
    alone as well.
    """
    return processor(measured.beside, 50) > MOST_TIMES * max(PROCESSOR_FLOOR_MS, processor(measured.alone, 90))

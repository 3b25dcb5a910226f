"""Decide whether one tenant harmed another, with pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_TIMES = 3.0
"""The maximum ratio of command times with a hostile tenant to those alone, at the 99th percentile."""

FLOOR_MS = 5.0
"""The minimum time alone to compare with, because shorter times are a matter of the scheduler."""

PROCESSOR_FLOOR_MS = 6.0
"""The minimum processor time alone to compare with."""


class Answered(NamedTuple):
    """A command with a response: when it was due, in seconds, and the milliseconds until the response.

    `processor` is the processor time of the service until then, for all tenants, in milliseconds.
    """

    due: float
    milliseconds: float
    processor: float


class Span(NamedTuple):
    """A time span of the monotonic clock."""

    begin: float
    end: float


class Bounds(NamedTuple):
    """The limits of memory and disk for the service with a hostile tenant, in bytes."""

    memory: int
    """The maximum growth of the memory."""
    stored: int = 1 << 40
    """The maximum total size of the files."""


class Measured(NamedTuple):
    """The measurements of a tenant: its commands alone and with the hostile tenant, and its failures."""

    alone: Sequence[Answered]
    beside: Sequence[Answered]
    refused: int = 0
    unanswered: int = 0
    unreachable: int = 0
    """Requests to the API without a response."""
    memory: int = 0
    """The growth of the service's memory, in bytes."""
    stored: int = 0
    """The total size of its files, in bytes."""

    @property
    def times(self) -> float:
        """The ratio of command times with the hostile tenant to those alone, at the 99th percentile."""
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
    """Return the commands that were due in a time span."""
    return [each for each in answers if span.begin <= each.due < span.end]


def milliseconds(answers: Sequence[Answered], percent: int) -> float:
    """Return the time within which `percent` of the commands got a response."""
    return percentile([each.milliseconds for each in answers], percent)


def processor(answers: Sequence[Answered], percent: int) -> float:
    """Return the service's processor time at this percentile of the commands, in milliseconds."""
    return percentile([each.processor for each in answers], percent)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def failures(measured: Measured, bounds: Bounds) -> list[str]:
    """Return the failures of a tenant, and the limits that the service exceeded."""
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
    """Return whether commands took longer with the hostile tenant than permitted."""
    return measured.times > MOST_TIMES


def waits_behind(measured: Measured) -> bool:
    """Return whether commands of a tenant wait for much work of the service for the other one.

    The median of the processor time may be three times the 90th percentile alone. Processor time is robust on a busy
    machine: other programs delay a response, but the service uses no processor time then.
    """
    return processor(measured.beside, 50) > MOST_TIMES * max(PROCESSOR_FLOOR_MS, processor(measured.alone, 90))

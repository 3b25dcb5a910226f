"""The test publishers: streams that are the same everywhere, for tests of clients (reactive-streams-io, names).

`range` counts up in decimal digits and `fixed` in whole numbers of a fixed size, `fail` counts and then fails, `big` is one
large element, `never` is silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from mappings.errors import Fault
from mappings.reactive_streams_io.names import Trial
from mappings.reactive_streams_io.runs import Run

_SMALL = 64
_LASTS = [bytes([last]) for last in range(256)]

FAILURE = Fault(500, "rsio:tck.failed", "This publisher fails, as it was asked to.")


def elements(trial: Trial) -> Iterator[bytes]:
    """The elements of a test publisher whose elements differ in size, counted from 1.

    That of `never` are none, which is not its end. Those of `fixed` come in runs (`numbers`).
    """
    match trial.kind:
        case "range" | "fail":
            return (str(number).encode() for number in range(1, trial.count + 1))
        case "big":
            # It is large: nobody has it before it is asked for.
            return (b"x" * trial.size for _ in range(1))
        case _:
            return iter(())


def number(trial: Trial) -> int:
    """How many elements a test publisher has."""
    return 1 if trial.kind == "big" else trial.count


def numbers(first: int, count: int, size: int) -> Run:
    """So many whole numbers, each in so many octets. One that its size cannot hold begins anew."""
    behind = first + count
    if size > _SMALL:
        return Run(b"".join(number.to_bytes(size, "big") for number in range(first, behind)), size)
    # All that differ in their last octet alone are made together: benchmarks read these by the million.
    modulus = 1 << 8 * (size - 1)
    heads = ((number % modulus).to_bytes(size - 1, "big") for number in range(first >> 8, (behind + 255) >> 8))
    octets = b"".join(head + head.join(_LASTS) for head in heads)
    start = (first & 255) * size
    return Run(octets[start : start + count * size], size)


def element_size(trial: Trial) -> int:
    """The size of all its elements, or 0."""
    return trial.size if trial.kind == "fixed" else 0


def ending(trial: Trial) -> Fault | None:
    """How it ends behind its elements: None for complete. `never` does not."""
    return FAILURE if trial.kind == "fail" else None

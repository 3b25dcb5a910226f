"""The test publishers: streams that are the same everywhere, for tests of clients (reactive-streams-io, names).

`range` counts up in decimal digits and `fixed` in whole numbers of a fixed size, `fail` counts and then fails, `big` is one
large element, `never` is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from struct import Struct

from mappings.errors import Fault
from mappings.reactive_streams_io.names import Trial

_SMALL = 64
_LASTS = [bytes([last]) for last in range(256)]

FAILURE = Fault(500, "rsio:tck.failed", "This publisher fails, as it was asked to.")


def elements(trial: Trial) -> Iterator[bytes]:
    """The elements of a test publisher, counted from 1. That of `never` are none, which is not its end."""
    match trial.kind:
        case "range" | "fail":
            return (str(number).encode() for number in range(1, trial.count + 1))
        case "fixed":
            return islice(_numbers(trial.size), trial.count)
        case "big":
            return iter((b"x" * trial.size,))
        case _:
            return iter(())


def _numbers(size: int) -> Iterator[bytes]:
    """Whole numbers from 1, in so many octets. One that its size cannot hold begins anew."""
    if size > _SMALL:
        return (number.to_bytes(size, "big") for number in count(1))
    # All that differ in their last octet alone are made together: benchmarks read these by the million.
    modulus = 1 << 8 * (size - 1)
    heads = ((number % modulus).to_bytes(size - 1, "big") for number in count())
    apart = Struct(f"{size}s" * len(_LASTS)).unpack
    numbers: Iterator[bytes] = chain.from_iterable(apart(head + head.join(_LASTS)) for head in heads)
    next(numbers)
    return numbers


def element_size(trial: Trial) -> int:
    """The size of all its elements, or 0."""
    return trial.size if trial.kind == "fixed" else 0


def ending(trial: Trial) -> Fault | None:
    """How it ends behind its elements: None for complete. `never` does not."""
    return FAILURE if trial.kind == "fail" else None

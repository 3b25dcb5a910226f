"""The test publishers: streams that are the same everywhere, for tests of clients (reactive-streams-io, names).

`range` counts up in decimal digits and `fixed` in whole numbers of a fixed size, `fail` counts and then fails, `big` is one
large element, `never` is silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from mappings.errors import Fault
from mappings.reactive_streams_io.names import Trial

FAILURE = Fault(500, "rsio:tck.failed", "This publisher fails, as it was asked to.")


def elements(trial: Trial) -> Iterator[bytes]:
    """The elements of a test publisher, counted from 1. That of `never` are none, which is not its end."""
    match trial.kind:
        case "range" | "fail":
            return (str(number).encode() for number in range(1, trial.count + 1))
        case "fixed":
            # A number that its size cannot hold begins anew.
            modulus = 1 << 8 * min(trial.size, 8)
            return ((number % modulus).to_bytes(trial.size, "big") for number in range(1, trial.count + 1))
        case "big":
            return iter((b"x" * trial.size,))
        case _:
            return iter(())


def element_size(trial: Trial) -> int:
    """The size of all its elements, or 0."""
    return trial.size if trial.kind == "fixed" else 0


def ending(trial: Trial) -> Fault | None:
    """How it ends behind its elements: None for complete. `never` does not."""
    return FAILURE if trial.kind == "fail" else None

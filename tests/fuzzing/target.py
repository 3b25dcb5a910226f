"""A target: a function of bytes that raises if a property fails, with its seeds and dictionary.

The time and memory for an input are limited, relative to its size.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mappings.errors import Fault

SECONDS, SECONDS_OF_A_BYTE = 1.0, 0.001
MEMORY, MEMORY_OF_A_BYTE = 96 << 20, 16 << 10
"""The maximum growth of the memory in bytes; some parsers hold an input several times."""


class Target(NamedTuple):
    """A function to run with each input, the first inputs, and words that mutations insert."""

    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()

    def check(self, data: bytes) -> None:
        """Run an input within its limits.

        Raises AssertionError if it exceeds them twice, and the target's own errors.
        """
        if not self._is_bounded(data):
            assert self._is_bounded(data), f"{len(data)} bytes exceed the bounds for time or memory"

    def _is_bounded(self, data: bytes) -> bool:
        memory, begun = peak_memory(), time.thread_time()
        self.run(data)
        seconds, grown = time.thread_time() - begun, peak_memory() - memory
        return seconds <= SECONDS + SECONDS_OF_A_BYTE * len(data) and grown <= MEMORY + MEMORY_OF_A_BYTE * len(data)


LONGEST_MESSAGE = 2000
"""The maximum length of an error message with the input that it quotes, in bytes."""


def check_fault(fault: Fault) -> None:
    """Check that a refusal can be sent, blames the client, and is short."""
    assert 400 <= fault.status < 500, fault
    assert fault.error
    assert 0 < len(fault.message.encode()) <= LONGEST_MESSAGE, fault


def peak_memory() -> int:
    """Return the peak memory of the process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def target(run: Callable[[bytes], object], seeds: Iterable[bytes | str], words: Iterable[bytes | str] = ()) -> Target:
    """Return a target; texts are encoded as UTF-8."""
    return Target(run, tuple(map(_encoded, seeds)), tuple(map(_encoded, words)))


def _encoded(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text

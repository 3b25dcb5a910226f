"""Elements of one size that were made together, and stay together on their way (reactive-streams-io, packing).

To whoever counts them, cuts them in two or takes them one by one a run is a sequence like any other; whoever packs it takes
its octets as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


class Run(Sequence[bytes]):
    """Elements of `size` octets each, next to each other."""

    __slots__ = ("octets", "size")

    def __init__(self, octets: bytes, size: int) -> None:
        """Raises ValueError for octets that are no whole elements."""
        if size < 1 or len(octets) % size:
            raise ValueError(f"found {len(octets)} octets, expected whole elements of {size}")
        self.octets = octets
        self.size = size

    def __repr__(self) -> str:
        return f"<Run of {len(self)} elements of {self.size} octets>"

    def __len__(self) -> int:
        return len(self.octets) // self.size

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Run: ...
    def __getitem__(self, index: int | slice) -> bytes | Run:
        """An element; or those next to each other from one to another, as a run. Raises ValueError for any other step."""
        size = self.size
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"found a step of {step}, expected 1")
            return Run(self.octets[start * size : max(start, stop) * size], size)
        start = range(len(self))[index] * size
        return self.octets[start : start + size]

    def __iter__(self) -> Iterator[bytes]:
        octets, size = self.octets, self.size
        return (octets[start : start + size] for start in range(0, len(octets), size))

"""The publisher's side of one stream: waiting elements, as frames (rsio, packing and splitting).

Elements wait unencoded and become a frame when the transport takes one, so that all that wait are packed together, and none
waits to fill a pack. Those of a fixed size wait as one run of bytes. A large element is sent in parts, between which other
streams have their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import overload

from mappings.errors import EncodeError, Fault
from mappings.reactive_streams_io.frames import SubscribeFrame, varint
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits


class PackedElements(Sequence[bytes]):
    """Elements of `size` bytes each, next to each other."""

    __slots__ = ("raw", "size")

    def __init__(self, raw: bytes, size: int) -> None:
        """Raises ValueError for bytes that are no whole elements."""
        if size < 1 or len(raw) % size:
            raise ValueError(f"found {len(raw)} bytes, expected whole elements of {size} bytes")
        self.raw = raw
        self.size = size

    def __len__(self) -> int:
        return len(self.raw) // self.size

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> PackedElements: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedElements:
        """An element; or those next to each other from one to another, as a run.

        Raises ValueError for any other step.
        """
        size = self.size
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"found a step of {step}, expected 1")
            return PackedElements(self.raw[start * size : max(start, stop) * size], size)
        start = range(len(self))[index] * size
        return self.raw[start : start + size]

    def __iter__(self) -> Iterator[bytes]:
        raw, size = self.raw, self.size
        return (raw[start : start + size] for start in range(0, len(raw), size))


_LARGEST_HEAD = 16
"""The most bytes of a packed frame before its elements."""


class PublisherSide:
    """One stream that a peer subscribes to.

    `asked` is its subscribe; `waiting_bytes` is their size until the transport takes them.
    """

    __slots__ = (
        "_element",
        "_ending",
        "_head",
        "_large",
        "_limits",
        "_place",
        "_run",
        "_size",
        "_waiting",
        "demand",
        "has_begun",
        "is_queued",
        "stream",
        "subscribe_frame",
        "subscriber",
        "waiting_bytes",
    )

    def __init__(self, stream: int, asked: SubscribeFrame, limits: EndpointLimits) -> None:
        self.stream = stream
        self.subscriber = asked.subscriber
        self.subscribe_frame = asked
        self.demand = asked.demand
        self.has_begun = False
        self.is_queued = False
        self.waiting_bytes = 0
        self._limits = limits
        self._head = varint(asked.subscriber)
        self._size = 0
        self._waiting: deque[bytes] = deque()
        self._run = bytearray()
        self._place = 0
        self._large: memoryview | None = None
        self._element = 0
        self._ending: bytes | None = None

    @property
    def has_ended(self) -> bool:
        """Its last frame has been said, even if it waits."""
        return self._ending is not None

    def begin(self, element_size: int) -> bytes:
        """The frame that a stream begins with. Raises ValueError for a size that cannot be."""
        if not 0 <= element_size <= self._limits.element_size:
            raise ValueError(f"found an element size of {element_size}, expected 0 to {self._limits.element_size}")
        self.has_begun = True
        self._size = element_size
        return b"\x81" + self._head + varint(element_size)

    def request(self, demand: int) -> None:
        """Add demand. The greatest demand is treated as unbounded."""
        self.demand = min(self.demand + demand, UNBOUNDED)

    def offer(self, elements: Sequence[bytes]) -> None:
        """Queue elements.

        Raises EncodeError (413) for one that is too large, before any is queued; ValueError for more than the demand, for a
        wrong size, and for a stream that has not begun or has ended.
        """
        if len(elements) > self.demand:
            raise ValueError(f"found {len(elements)} elements, expected at most {self.demand}")
        if not self.has_begun or self.has_ended:
            raise ValueError(f"found elements for a stream that has {'ended' if self.has_ended else 'not begun'}")
        if size := self._size:
            added = size * len(elements)
            self._run += _join(elements, size)
        else:
            added = sum(map(len, elements))
            if added > self._limits.element and (largest := max(map(len, elements))) > self._limits.element:
                message = f"found an element of {largest} bytes, expected at most {self._limits.element}"
                raise EncodeError(Fault(413, "rsio:element.toolarge", message))
            self._waiting.extend(elements)
        self.waiting_bytes += added
        if self.demand < UNBOUNDED:
            self.demand -= len(elements)

    def end(self, frame: bytes) -> None:
        """Queue the last frame after all elements. Only the first call applies."""
        if self._ending is None:
            self._ending = frame

    def next_frame(self) -> bytes | None:
        """Return the next frame; None if nothing waits. The last frame of a stream is its end."""
        if self._large is not None:
            return self._part(self._large)
        if self._run:
            return self._packed()
        if self._waiting:
            return self._single(self._waiting.popleft())
        return self._ending

    def whole_elements(self, room: int) -> list[bytes]:
        """Return next frames of one element each that fit: the fast path for many elements."""
        frames: list[bytes] = []
        if self._large is not None or self._run:
            return frames
        waiting, head, most = self._waiting, b"\x82" + self._head, self._limits.split_above
        while waiting:
            element = waiting[0]
            size = len(element)
            frame = head + varint(size) + element
            room -= len(frame)
            if room < 0 or size > most:
                break
            self.waiting_bytes -= size
            frames.append(frame)
            waiting.popleft()
        return frames

    @property
    def has_more(self) -> bool:
        """Whether there is a frame for the transport."""
        return bool(self._run or self._waiting or self._large is not None or self._ending)

    @property
    def ends_next(self) -> bool:
        """Whether the next frame is the end, with nothing before it."""
        return self.has_ended and not (self._run or self._waiting or self._large is not None)

    def _packed(self) -> bytes:
        size = self._size
        count = max(1, (min(self._limits.batch, self._limits.frame) - _LARGEST_HEAD) // size)
        end = min(self._place + count * size, len(self._run))
        raw = bytes(self._run[self._place : end])
        self._place = end
        # The run is cut now and then, not at every frame: that would move it each time.
        if end == len(self._run) or end > self._limits.backlog:
            del self._run[:end]
            self._place = 0
        self.waiting_bytes -= len(raw)
        if len(raw) == size:
            return b"\x82" + self._head + raw
        return b"\x83" + self._head + varint(len(raw) // size) + raw

    def _single(self, element: bytes) -> bytes:
        if len(element) > self._limits.split_above:
            self._large = memoryview(element)
            return self._part(self._large)
        self.waiting_bytes -= len(element)
        return b"\x82" + self._head + varint(len(element)) + element

    def _part(self, large: memoryview) -> bytes:
        data, rest = large[: self._limits.part], large[self._limits.part :]
        self.waiting_bytes -= len(data)
        code = b"\x84" if rest else b"\x85"
        frame = code + self._head + varint(self._element) + varint(len(data)) + data
        self._large = rest or None
        if not rest:
            self._element = (self._element + 1) % 128
        return frame


def _join(elements: Sequence[bytes], size: int) -> bytes:
    """Elements of this size next to each other. Raises ValueError where one has another size."""
    if isinstance(elements, PackedElements):
        raw, is_fit = elements.raw, elements.size == size
    else:
        raw = b"".join(elements)
        # All have this size.
        is_fit = len(raw) == size * len(elements) and max(map(len, elements), default=size) <= size
    if not is_fit:
        raise ValueError(f"found elements of other sizes, expected {size} bytes each")
    return raw

"""The subscriber's side: our streams at a peer, by ID and generation (rsio, reusing ids).

An ID is reused at once, while frames of its last stream may still arrive. The peer sends one `onSubscribe` for every
subscribe: each subscribe adds a generation to its ID, each `onSubscribe` moves to the next one, and later frames belong to
it. Frames of canceled or ended generations are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from mappings.errors import EncodeError, Fault
from mappings.reactive_streams_io.errors import ProtocolViolation, broken
from mappings.reactive_streams_io.events import Completed, ElementsReceived, StreamAccepted, StreamEvent, StreamFailed
from mappings.reactive_streams_io.frames import OnComplete, OnError, OnNext, OnNextLastPart, OnNextPacked, OnNextPart
from mappings.reactive_streams_io.limits import MAX_ID, UNBOUNDED, EndpointLimits


class Generation:
    """One stream that we subscribed to: its outstanding demand, and incomplete elements."""

    __slots__ = ("_limits", "_open", "demand", "element_size", "is_over", "open_bytes", "stream", "subscriber")

    def __init__(self, stream: int, subscriber: int, demand: int, limits: EndpointLimits) -> None:
        self.stream = stream
        self.subscriber = subscriber
        self.demand = min(demand, UNBOUNDED)
        self.element_size = 0
        self.is_over = False
        self._limits = limits
        self._open: dict[int, bytearray] = {}
        self.open_bytes = 0

    @property
    def has_open_elements(self) -> bool:
        return bool(self._open)

    def end(self) -> None:
        """End the stream; later frames are dropped."""
        self.is_over = True
        self._open.clear()
        self.open_bytes = 0

    def take(self, count: int) -> int:
        """Subtract received elements from the demand; return how many were requested."""
        taken = min(count, self.demand)
        if self.demand < UNBOUNDED:
            self.demand -= taken
        return taken

    def part(self, element: int, data: bytes, *, is_last: bool) -> bytes | ProtocolViolation | None:
        """Join a part to its element.

        Returns the whole element after its last part, None before, or the violation.
        """
        joined = self._open.get(element)
        if joined is None:
            if not self.take(1):
                return ProtocolViolation.MORE_THAN_DEMANDED
            if not is_last and len(self._open) >= self._limits.open_elements:
                return ProtocolViolation.TOO_MANY_OPEN_ELEMENTS
            joined = self._open[element] = bytearray()
        joined += data
        self.open_bytes += len(data)
        if len(joined) > self._limits.element:
            return ProtocolViolation.ELEMENT_TOO_LARGE
        if not is_last:
            return None
        del self._open[element]
        self.open_bytes -= len(joined)
        if self.element_size and len(joined) != self.element_size:
            return ProtocolViolation.WRONG_ELEMENT_SIZE
        return bytes(joined)


class SubscriberSide:
    """All streams that we subscribed to at one peer. Frames go in, events come out.

    `to_cancel` has the IDs of publishers that violated a rule; `open_bytes` are the bytes of incomplete elements of all
    streams.
    """

    __slots__ = ("_by_stream", "_current", "_limits", "_pending", "open_bytes", "to_cancel")

    def __init__(self, limits: EndpointLimits) -> None:
        self._limits = limits
        self._by_stream: dict[int, Generation] = {}
        self._pending: dict[int, deque[Generation]] = {}
        self._current: dict[int, Generation] = {}
        self.to_cancel: list[int] = []
        self.open_bytes = 0

    @property
    def streams(self) -> list[int]:
        """The active streams, oldest first."""
        return list(self._by_stream)

    def subscribe(self, stream: int, demand: int, above: int = 0) -> Generation:
        """A new generation of the smallest free id above this one.

        Raises EncodeError where too many live already.
        """
        if len(self._by_stream) >= self._limits.subscriptions:
            raise EncodeError(
                Fault(
                    429, "rsio:subscriptions.limit", f"found {len(self._by_stream)} subscriptions, which is the limit"
                )
            )
        taken = {generation.subscriber for generation in self._by_stream.values()}
        subscriber = next(
            each
            for each in range(above + 1, MAX_ID)
            if each not in taken and len(self._pending.get(each, ())) < self._limits.generations
        )
        generation = Generation(stream, subscriber, demand, self._limits)
        self._pending.setdefault(subscriber, deque()).append(generation)
        self._by_stream[stream] = generation
        return generation

    def id_of(self, stream: int) -> int | None:
        """The id of a stream that lives."""
        generation = self._by_stream.get(stream)
        return None if generation is None else generation.subscriber

    def request(self, stream: int, demand: int) -> Generation | None:
        """Add demand to an active stream; return its generation, or None.

        Raises ValueError for demand below 1.
        """
        if demand <= 0:
            raise ValueError(f"found a demand of {demand}, expected at least 1")
        if (generation := self._by_stream.get(stream)) is not None:
            generation.demand = min(generation.demand + demand, UNBOUNDED)
        return generation

    def cancel(self, stream: int) -> Generation | None:
        """Want no more of a stream: its generation if it lived."""
        if (generation := self._by_stream.get(stream)) is not None:
            self._end(generation)
        return generation

    def end_all(self, reason: str) -> list[StreamEvent]:
        """End all streams, since the peer is gone; return their events. All IDs are free again."""
        ended: list[StreamEvent] = [StreamFailed(stream, reason) for stream in self._by_stream]
        for generation in self._by_stream.values():
            generation.end()
        self.open_bytes = 0
        self._by_stream.clear()
        self._pending.clear()
        self._current.clear()
        return ended

    def begins(self, subscriber: int, element_size: int) -> list[StreamEvent]:
        """Process an onSubscribe. Raises ProtocolError without a subscribe."""
        pending = self._pending.get(subscriber)
        if not pending:
            raise broken(ProtocolViolation.NOT_ASKED_FOR, f"one for the id {subscriber}")
        generation = pending.popleft()
        if not pending:
            del self._pending[subscriber]
        self._current[subscriber] = generation
        if generation.is_over:
            return []
        generation.element_size = element_size
        return [StreamAccepted(generation.stream, element_size)]

    def comes(
        self, frame: OnNext | OnNextPacked | OnNextPart | OnNextLastPart | OnComplete | OnError
    ) -> list[StreamEvent]:
        """Elements or an end. Raises ProtocolError for an id that never began."""
        generation = self._current.get(frame.subscriber)
        if generation is None:
            raise broken(ProtocolViolation.NO_ELEMENT_SIZE, f"the id {frame.subscriber}")
        if generation.is_over:
            return []
        if isinstance(frame, OnNext):
            return self._arrived(generation, (frame.element,))
        if isinstance(frame, OnNextPacked):
            return self._arrived(generation, frame.elements)
        if isinstance(frame, OnNextPart | OnNextLastPart):
            return self._part(generation, frame)
        return self._ended(generation, frame)

    def _arrived(self, generation: Generation, elements: Sequence[bytes]) -> list[StreamEvent]:
        taken = generation.take(len(elements))
        violation = ProtocolViolation.MORE_THAN_DEMANDED if taken < len(elements) else None
        limit = self._limits.element
        # By default a larger element fits into no frame.
        if limit < self._limits.frame and max(map(len, elements[:taken]), default=0) > limit:
            taken = sum(1 for _ in takewhile(lambda element: len(element) <= limit, elements))
            violation = ProtocolViolation.ELEMENT_TOO_LARGE
        if violation is None:
            return [ElementsReceived(generation.stream, elements)]
        arrived: list[StreamEvent] = [ElementsReceived(generation.stream, elements[:taken])] if taken else []
        return arrived + self._fail_stream(generation, violation)

    def _part(self, generation: Generation, frame: OnNextPart | OnNextLastPart) -> list[StreamEvent]:
        before = generation.open_bytes
        joined = generation.part(frame.element, frame.data, is_last=isinstance(frame, OnNextLastPart))
        self.open_bytes += generation.open_bytes - before
        if self.open_bytes > self._limits.incomplete_elements:
            joined = ProtocolViolation.ELEMENT_TOO_LARGE
        if isinstance(joined, ProtocolViolation):
            return self._fail_stream(generation, joined)
        return [] if joined is None else [ElementsReceived(generation.stream, (joined,))]

    def _ended(self, generation: Generation, frame: OnComplete | OnError) -> list[StreamEvent]:
        is_cut = generation.has_open_elements
        self._end(generation)
        if isinstance(frame, OnError):
            return [StreamFailed(generation.stream, frame.error)]
        if is_cut:
            return [StreamFailed(generation.stream, _error_text(ProtocolViolation.COMPLETE_AMID_AN_ELEMENT))]
        return [Completed(generation.stream)]

    def _fail_stream(self, generation: Generation, violation: ProtocolViolation) -> list[StreamEvent]:
        self._end(generation)
        self.to_cancel.append(generation.subscriber)
        return [StreamFailed(generation.stream, _error_text(violation))]

    def _end(self, generation: Generation) -> None:
        self.open_bytes -= generation.open_bytes
        generation.end()
        self._by_stream.pop(generation.stream, None)


def _error_text(violation: ProtocolViolation) -> str:
    return f"400 rsio:peer.mistaken The publisher sent {violation.condition}."

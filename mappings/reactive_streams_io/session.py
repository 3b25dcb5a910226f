"""The session of two peers: the part of a connection that outlives a transport.

It has the streams of both directions, their element sizes, and the numbers of sent and received frames. If it can be
resumed, copies of sent frames wait until the peer has acknowledged them, bounded in number and bytes; the oldest are dropped
first, after which a resume may fail. Frames are sent one by one: repeated ones, then replies and requests, then one of each
stream by turns, so that no stream waits for another (rsio, subscriptions and resume).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from mappings.errors import EncodeError, Fault
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.errors import ProtocolViolation, broken
from mappings.reactive_streams_io.events import Cancelled, DemandReceived, StreamEvent, SubscribeReceived
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Frame,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPacked,
    OnNextPart,
    OnSubscribe,
    RequestFrame,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.publisher import PublisherSide
from mappings.reactive_streams_io.subscriber import SubscriberSide

_keys = itertools.count(1)


class RsioSession:
    """The streams between two peers. `key` is its own in this process."""

    __slots__ = (
        "_acknowledged",
        "_control_frames",
        "_copies",
        "_copies_bytes",
        "_limits",
        "_numbers",
        "_order",
        "_repeated",
        "by_stream",
        "keeps_copies",
        "key",
        "publishing",
        "received",
        "sent",
        "sent_bytes",
        "sizes",
        "subscribing",
        "window",
    )

    def __init__(self, limits: EndpointLimits, *, keeps_copies: bool) -> None:
        self.key = next(_keys)
        self.publishing: dict[int, PublisherSide] = {}
        self.by_stream: dict[int, PublisherSide] = {}
        self.subscribing = SubscriberSide(limits)
        self.sizes: dict[int, int] = {}
        self.sent = self.received = 0
        self.keeps_copies = keeps_copies
        self.window = limits.window
        self.sent_bytes = 0
        self._acknowledged = 0
        self._limits = limits
        self._numbers = itertools.count(1)
        self._order: deque[PublisherSide] = deque()
        self._control_frames: deque[bytes] = deque()
        self._repeated: deque[bytes] = deque()
        self._copies: deque[bytes] = deque()
        self._copies_bytes = 0

    # Inbound.

    def receive(self, frame: Frame) -> list[StreamEvent]:
        """Process a frame of a stream. Raises ProtocolError for fatal violations."""
        self.received += 1
        match frame:
            case OnNext() | OnNextPacked() | OnNextPart() | OnNextLastPart() | OnComplete() | OnError():
                found = self.subscribing.comes(frame)
            case OnSubscribe():
                found = self.subscribing.begins(frame.subscriber, frame.element_size)
            case SubscribeFrame():
                return self._subscribed(frame)
            case RequestFrame():
                return self._requested(frame)
            case CancelFrame():
                return self._cancelled(frame.subscriber)
            case _:
                raise TypeError(f"found {type(frame).__name__}, expected a frame of a stream")
        while self.subscribing.to_cancel:
            self._queue_frame(CancelFrame(self.subscribing.to_cancel.pop()))
        return found

    def _subscribed(self, frame: SubscribeFrame) -> list[StreamEvent]:
        if (active := self.publishing.get(frame.subscriber)) is not None:
            if active.subscribe_frame != frame:
                raise broken(ProtocolViolation.ID_IN_USE, f"the id {frame.subscriber}")
            return []
        if (length := len(frame.publisher.encode())) > self._limits.publisher:
            message = f"The publisher string has {length} bytes, expected at most {self._limits.publisher}."
            return self._refuse(frame.subscriber, f"400 rsio:publisher.invalid {message}")
        if len(self.publishing) >= self._limits.subscriptions:
            message = f"There are {len(self.publishing)} subscriptions already, which is the limit."
            return self._refuse(frame.subscriber, f"429 rsio:subscriptions.limit {message}")
        publishing = PublisherSide(next(self._numbers), frame, self._limits)
        self.publishing[frame.subscriber] = self.by_stream[publishing.stream] = publishing
        return [SubscribeReceived(publishing.stream, frame.publisher, frame.demand)]

    def _refuse(self, subscriber: int, reason: str) -> list[StreamEvent]:
        self._queue_frame(OnSubscribe(subscriber, 0))
        self._queue_frame(OnError(subscriber, reason))
        return []

    def _requested(self, frame: RequestFrame) -> list[StreamEvent]:
        publishing = self.publishing.get(frame.subscriber)
        if publishing is None or publishing.has_ended:
            return []
        if not frame.demand:
            ended = self._cancelled(frame.subscriber)
            self._queue_frame(
                OnError(frame.subscriber, "400 rsio:demand.invalid The demand must be positive (RS 3.9).")
            )
            return ended
        publishing.request(frame.demand)
        return [DemandReceived(publishing.stream, frame.demand)]

    def _cancelled(self, subscriber: int) -> list[StreamEvent]:
        publishing = self.publishing.get(subscriber)
        if publishing is None:
            return []
        # The subscriber needs one onSubscribe for each subscribe, to distinguish the generations of an ID.
        if not publishing.has_begun:
            self._send_bytes(publishing.begin(0))
        self._drop(publishing)
        return [] if publishing.has_ended else [Cancelled(publishing.stream)]

    # Streams that the peer asked for.

    def accept(self, stream: int, element_size: int = 0) -> bool:
        """Begin a stream. False if it was canceled. Raises ValueError for a second time."""
        publishing = self.by_stream.get(stream)
        if publishing is None:
            return False
        if publishing.has_begun:
            raise ValueError(f"the stream {stream} has already begun")
        self._send_bytes(publishing.begin(element_size))
        return True

    def offer(self, stream: int, elements: Sequence[bytes]) -> bool:
        """Queue elements of a stream. False if it was canceled.

        Raises EncodeError (413) for an element that is too large, ValueError for more than the demand or a wrong size.
        """
        publishing = self.by_stream.get(stream)
        if publishing is None:
            return False
        publishing.offer(elements)
        if elements:
            self._queue(publishing)
        return True

    def end(self, stream: int, error: str | None) -> bool:
        """Complete a stream, or fail it, after all queued elements. False if it was canceled."""
        publishing = self.by_stream.get(stream)
        if publishing is None:
            return False
        if not publishing.has_begun:
            self._send_bytes(publishing.begin(0))
        subscriber = publishing.subscriber
        frame = (
            OnComplete(subscriber)
            if error is None
            else OnError(subscriber, errors.truncate(error, self._limits.text_sent))
        )
        publishing.end(encode(frame))
        self._queue(publishing)
        return True

    def capacity(self, stream: int) -> int:
        """Return how many elements may be queued now."""
        publishing = self.by_stream.get(stream)
        return 0 if publishing is None or publishing.has_ended or not publishing.has_begun else publishing.demand

    def waiting(self, stream: int) -> int:
        """Return the bytes of a stream's elements that the transport has not taken yet."""
        publishing = self.by_stream.get(stream)
        return 0 if publishing is None else publishing.waiting_bytes

    # Streams that we ask for.

    def subscribe(self, publisher: str, demand: int, above: int = 0) -> int:
        """Ask for a stream, by the smallest free id above this one; its number.

        Raises EncodeError where there are too many, or the string is too long.
        """
        if (length := len(publisher.encode())) > self._limits.publisher:
            message = f"found a publisher string of {length} bytes, expected at most {self._limits.publisher}"
            raise EncodeError(Fault(400, "rsio:publisher.invalid", message))
        generation = self.subscribing.subscribe(next(self._numbers), demand, above)
        self._queue_frame(SubscribeFrame(publisher, generation.subscriber, generation.demand))
        return generation.stream

    def id_of(self, stream: int) -> int | None:
        """Return the ID by which we subscribed to a stream; None if it has ended."""
        return self.subscribing.id_of(stream)

    def request(self, stream: int, demand: int) -> bool:
        """Ask for more. False where the stream is over. Raises ValueError for nothing or less."""
        generation = self.subscribing.request(stream, demand)
        if generation is None:
            return False
        self._queue_frame(RequestFrame(generation.subscriber, demand))
        return True

    def cancel(self, stream: int) -> bool:
        """Want no more of a stream. False where it is over."""
        generation = self.subscribing.cancel(stream)
        if generation is None:
            return False
        self._queue_frame(CancelFrame(generation.subscriber))
        return True

    def end_all(self, reason: str) -> list[StreamEvent]:
        """End all streams, since the peer is gone; return their events."""
        cancelled = [Cancelled(each.stream) for each in self.by_stream.values() if not each.has_ended]
        self.publishing.clear()
        self.by_stream.clear()
        self._order.clear()
        self._control_frames.clear()
        self._repeated.clear()
        self.sent_bytes = 0
        self.discard_copies()
        return [*cancelled, *self.subscribing.end_all(reason)]

    # Outbound.

    @property
    def control_frame_count(self) -> int:
        """How many replies and requests wait for the transport; `sent_bytes` is their size."""
        return len(self._control_frames)

    @property
    def is_repeating(self) -> bool:
        """Whether frames of a lost transport are still to be sent again."""
        return bool(self._repeated)

    @property
    def has_streams(self) -> bool:
        return bool(self.by_stream or self.subscribing.streams)

    @property
    def held_bytes(self) -> int:
        """The bytes kept for the peer: copies, replies and elements."""
        waiting = sum(publishing.waiting_bytes for publishing in self.publishing.values())
        return self._copies_bytes + self.sent_bytes + waiting + self.subscribing.open_bytes

    def next_frame(self) -> bytes | None:
        """Return the next frame, which is considered sent; None if there is none."""
        if self._repeated:
            return self._repeated.popleft()
        if self._control_frames:
            frame = self._control_frames.popleft()
            self.sent_bytes -= len(frame)
        elif self._order:
            frame = self._next_in_turn()
        else:
            return None
        self.sent += 1
        if self.keeps_copies:
            self._keep(frame)
        return frame

    def more_frames(self, room: int) -> Sequence[bytes]:
        """Return the next frames that fit, if all are elements of the one active stream."""
        if len(self._order) != 1 or self._control_frames or self._repeated:
            return ()
        publishing = self._order[0]
        frames = publishing.whole_elements(room)
        if not publishing.has_more:
            self._order.popleft()
            publishing.is_queued = False
        self.sent += len(frames)
        if self.keeps_copies:
            for frame in frames:
                self._keep(frame)
        return frames

    def _next_in_turn(self) -> bytes:
        publishing = self._order.popleft()
        is_last = publishing.ends_next
        frame = publishing.next_frame()
        if frame is None:
            raise RuntimeError(f"{publishing} has no frame to send")
        publishing.is_queued = False
        if is_last:
            self._drop(publishing)
        elif publishing.has_more:
            self._queue(publishing)
        return frame

    # Positions.

    @property
    def first_available(self) -> int:
        """The position of the oldest copy; one after the last sent frame if there is none."""
        return self.sent - len(self._copies) + 1

    def acknowledge(self, received: int) -> None:
        """Note that the peer has so many frames. Raises ProtocolError for more than were sent."""
        if received > self.sent:
            raise broken(ProtocolViolation.ACKNOWLEDGED_TOO_MUCH, f"{received}, expected at most {self.sent}")
        while self._copies and self.first_available <= received:
            self._copies_bytes -= len(self._copies.popleft())

    def can_repeat(self, received: int) -> bool:
        """Whether all frames after so many are still kept."""
        return self.first_available - 1 <= received <= self.sent

    def repeat(self, received: int) -> None:
        """Send all frames after so many again. `can_repeat` must be true."""
        self.acknowledge(received)
        self._repeated = deque(self._copies)
        self._acknowledged = self.received

    def acknowledgement(self) -> int | None:
        """Return the acknowledgement to send now, if it is due."""
        return None if self.received - self._acknowledged < max(1, self.window // 4) else self.acknowledge_all()

    def acknowledge_all(self) -> int:
        """Return the number of frames to acknowledge now."""
        self._acknowledged = self.received
        return self.received

    def discard_copies(self) -> None:
        """The session cannot be resumed."""
        self.keeps_copies = False
        self._copies.clear()
        self._copies_bytes = 0

    def _keep(self, frame: bytes) -> None:
        self._copies.append(frame)
        self._copies_bytes += len(frame)
        while len(self._copies) > self.window or self._copies_bytes > self._limits.copies:
            self._copies_bytes -= len(self._copies.popleft())

    def _queue(self, publishing: PublisherSide) -> None:
        if not publishing.is_queued:
            publishing.is_queued = True
            self._order.append(publishing)

    def _drop(self, publishing: PublisherSide) -> None:
        self.publishing.pop(publishing.subscriber, None)
        self.by_stream.pop(publishing.stream, None)
        if publishing.is_queued:
            self._order.remove(publishing)
            publishing.is_queued = False

    def _queue_frame(self, frame: Frame) -> None:
        self._send_bytes(encode(frame))

    def _send_bytes(self, frame: bytes) -> None:
        self._control_frames.append(frame)
        self.sent_bytes += len(frame)

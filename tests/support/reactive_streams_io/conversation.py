"""One end of a connection with the test publishers, its events, and a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from mappings.errors import DecodeError, EncodeError
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.elements import element_size, ending, numbers
from mappings.reactive_streams_io.elements import elements as synthetic_elements
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import (
    Cancelled,
    DemandReceived,
    ElementsReceived,
    EndpointEvent,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.frames import Goodbye
from mappings.reactive_streams_io.publisher_names import SyntheticName, parse
from tests.support.clock import Clock
from tests.support.reactive_streams_io.examples import decoder, raw

H = "01 00 00"
"""The hello of a client without extensions."""

PAGE = 500


class Feed:
    """The elements of a test publisher, read one ahead, so that the end is known with the last element."""

    def __init__(self, name: SyntheticName) -> None:
        self.name = name
        self._elements: Iterator[bytes] = (
            synthetic_elements(name)
            if name.kind != "fixed"
            else (element for number in range(name.count) for element in numbers(number + 1, 1, name.size))
        )
        self._ahead = list(islice(self._elements, 1))

    @property
    def is_over(self) -> bool:
        return not self._ahead and self.name.kind != "never"

    def page(self, most: int) -> list[bytes]:
        page = [*self._ahead, *islice(self._elements, most)]
        self._ahead = page[most:]
        return page[:most]


class EndpointClient:
    """An endpoint and its application. `expect` passes bytes to it and returns its output.

    `pages` limits the pages of all test publishers, regardless of the demand.
    """

    def __init__(
        self, role: EndpointRole = EndpointRole.SERVER, clock: Clock | None = None, pages: int = 1 << 30, **options: Any
    ) -> None:
        self.clock = clock or Clock()
        self.pages = pages
        self.endpoint = Endpoint(role, self.clock.now(), **options)
        self.feeds: dict[int, Feed] = {}
        self.events: list[EndpointEvent] = []
        self.cancelled: list[int] = []

    def __repr__(self) -> str:
        return f"<EndpointClient {self.endpoint}, {self.events[-5:]}>"

    def expect(self, text: str | bytes) -> bytes:
        """Pass bytes, or hexadecimal digits, to the endpoint and return its output."""
        received = raw(text) if isinstance(text, str) else text
        self.react(self.endpoint.receive(received, self.clock.now()))
        return self.sends()

    def sends(self) -> bytes:
        return b"".join(self.messages())

    def messages(self) -> list[bytes]:
        messages = []
        while raw := self.endpoint.take():
            messages.append(raw)
        return messages

    def waits(self, seconds: float) -> bytes:
        """Let `seconds` seconds pass, call `tick` when it is due, and return the output."""
        end = self.clock.now() + seconds
        while (due := self.endpoint.due) is not None and due <= end:
            self.clock.advance(max(0.0, due - self.clock.now()))
            self.react(self.endpoint.tick(self.clock.now()))
        self.clock.advance(end - self.clock.now())
        return self.sends()

    def react(self, events: list[EndpointEvent]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, SubscribeReceived):
                self._open(event)
            elif isinstance(event, DemandReceived):
                self.pump(event.stream)
            elif isinstance(event, Cancelled):
                self.cancelled.append(event.stream)
                self.feeds.pop(event.stream, None)

    def _open(self, event: SubscribeReceived) -> None:
        try:
            name = parse(event.publisher, with_test_publishers=True)
        except DecodeError as error:
            self.endpoint.session.end(event.stream, errors.write(error.fault))
            return
        if not isinstance(name, SyntheticName):
            self.endpoint.session.end(event.stream, "404 rsio:publisher.notfound There is nothing but test publishers.")
            return
        if self.endpoint.session.accept(event.stream, element_size(name)):
            self.feeds[event.stream] = Feed(name)
            self.pump(event.stream)

    def pump(self, stream: int) -> None:
        """Offer the requested elements of a stream, and its end after the last one."""
        feed = self.feeds.get(stream)
        if feed is None:
            return
        while (
            self.pages and (wanted := self.endpoint.session.capacity(stream)) and (page := feed.page(min(wanted, PAGE)))
        ):
            self.pages -= 1
            try:
                self.endpoint.session.offer(stream, page)
            except EncodeError as error:
                self.endpoint.session.end(stream, errors.write(error.fault))
                del self.feeds[stream]
                return
        if feed.is_over:
            del self.feeds[stream]
            fault = ending(feed.name)
            if fault is None:
                self.endpoint.session.end(stream, None)
            else:
                self.endpoint.session.end(stream, errors.write(fault))

    # signals to a subscriber

    def elements(self, stream: int) -> list[bytes]:
        received = (event for event in self.events if isinstance(event, ElementsReceived) and event.stream == stream)
        return [bytes(element) for event in received for element in event.elements]

    def failure(self, stream: int) -> str | None:
        return next(
            (event.reason for event in self.events if isinstance(event, StreamFailed) and event.stream == stream), None
        )

    def reported(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def greeted(**options: Any) -> EndpointClient:
    """Return a server after a handshake without extensions."""
    requester = EndpointClient(**options)
    requester.expect(H)
    return requester


def subscriber(*publishers: str, demand: int = 1, **options: Any) -> tuple[EndpointClient, list[int]]:
    """Return a client that is subscribed to these publishers, and the numbers of its streams."""
    requester = EndpointClient(EndpointRole.CLIENT, **{"extensions": (), **options})
    requester.expect("02 00 00")
    streams = [requester.endpoint.subscribe(publisher, demand) for publisher in publishers]
    requester.sends()
    return requester, streams


def is_goodbye(output: bytes, reason: str = "protocol error") -> bool:
    """Return whether the bytes end with a goodbye whose reason begins so."""
    return any(output[at] == 3 and _is_one(output[at:], reason) for at in range(len(output)))


def _is_one(output: bytes, reason: str) -> bool:
    try:
        frames = list(decoder().feed(output))
    except DecodeError:
        return False
    return len(frames) == 1 and isinstance(frames[0], Goodbye) and frames[0].reason.startswith(reason)


def pipe(one: EndpointClient, other: EndpointClient, *, piece: int = 1 << 20) -> None:
    """Exchange bytes between two ends until both are silent."""
    while True:
        forth, back = one.sends(), other.sends()
        if not forth and not back:
            return
        for place in range(0, len(forth), piece):
            other.react(other.endpoint.receive(forth[place : place + piece], other.clock.now()))
        for place in range(0, len(back), piece):
            one.react(one.endpoint.receive(back[place : place + piece], one.clock.now()))

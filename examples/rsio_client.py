"""A client of reactive-streams-io, with backpressure in both directions and automatic reconnects.

    python -m examples.rsio_client 'things/acme.plant:pump-8/history?from=-3'
    python -m examples.rsio_client 'things/acme.plant:pump-8/history?follow=true' --at tcp://127.0.0.1:8766
    python -m examples.rsio_client ingest/reports --publish <commands.jsonl

An `Endpoint` of `mappings.reactive_streams_io` implements the protocol without input and output; `rsio_links` carries its
bytes. If a link is lost, a `Client` opens another one and continues its streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import Self

from examples.rsio_links import Link, connector
from mappings.errors import DecodeError, EncodeError
from mappings.reactive_streams_io import errors, publisher_names
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole, EndpointState
from mappings.reactive_streams_io.events import (
    Cancelled,
    Closed,
    Completed,
    DemandReceived,
    ElementsReceived,
    EndpointEvent,
    NotResumed,
    SessionOpened,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.resumption import ResumeToken

WINDOW = 64
"""The most elements in flight. The client requests more when it has taken half of them."""

CLOSED = "503 The client is closed."
UNKNOWN_PUBLISHER = "404 rsio:publisher.notfound There is no such publisher here."

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before the client opens another link."""
TICK = 0.5
"""Seconds between two checks of the endpoint's timeouts."""

OFFSET = 5
"""The index of the offset in a message of the Streamr protocol."""


class StreamError(RuntimeError):
    """A stream ended with an error. `status` is like a status of HTTP."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.status = errors.read(reason).status


class SessionLost(StreamError):
    """The session has ended, and all its streams with it. The client can subscribe again."""


@dataclass
class Publication:
    """The elements that the service may not have stored. The first `sent` of them were sent."""

    stream: int | None = None
    elements: deque[bytes] = field(default_factory=deque)
    sent: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Client:
    """A client of the service. It calls `connect` for the first link, and after each lost link.

        async with Client(connector("tcp://127.0.0.1:8766")) as client:
            async for element in client.follow("things/acme.plant:pump-8/history?follow=true"):
                ...

    The client resumes its session on the next link, without effect on the streams. Raises OSError if the first link fails.
    """

    def __init__(self, connect: Callable[[], Awaitable[Link]], limits: EndpointLimits | None = None) -> None:
        self._connect, self._limits = connect, limits or EndpointLimits()
        self._pause = FIRST_PAUSE
        self._endpoint: Endpoint
        self._subscriptions: dict[int, asyncio.Queue[bytes | StreamError | None]] = {}
        self._publications: dict[str, Publication] = {}
        self._has_link, self._has_output = asyncio.Event(), asyncio.Event()
        self._is_closing = self._is_flushed = False
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        link = await self._connect()
        self._new_endpoint(link)
        self._task = asyncio.create_task(self._run(link))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send goodbye, and wait a few seconds for the service to close the session."""
        self._is_closing = True
        self._end_streams()
        if self._has_link.is_set():
            self._handle(self._endpoint.close(time.monotonic()))
            self._wake()
        else:
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    # Subscriptions to publishers of the service.

    async def subscribe(self, publisher: str, window: int = WINDOW) -> AsyncGenerator[bytes, None]:
        """The elements of a publisher, in order. Raises StreamError."""
        await self._has_link.wait()
        if self._is_closing:
            raise StreamError(CLOSED)
        try:
            stream = self._endpoint.subscribe(publisher, window)
        except EncodeError as error:
            raise StreamError(errors.write(error.fault)) from error
        received = self._subscriptions[stream] = asyncio.Queue()
        self._wake()
        taken = 0
        try:
            while isinstance(element := await received.get(), bytes):
                yield element
                taken += 1
                # After the end of the session, its stream number is invalid, but the received elements are still read.
                if 2 * taken >= window and self._subscriptions.get(stream) is received:
                    self._endpoint.session.request(stream, taken)
                    self._wake()
                    taken = 0
            if element is not None:
                raise element
        finally:
            if self._subscriptions.get(stream) is received:
                del self._subscriptions[stream]
                self._endpoint.session.cancel(stream)
                self._wake()

    async def follow(self, publisher: str, window: int = WINDOW) -> AsyncGenerator[bytes, None]:
        """Like `subscribe`, but if a session cannot be resumed, it subscribes again after the last element.

        Before the first element it subscribes to the same publisher again. Raises StreamError; SessionLost if that could
        skip elements (`has_fixed_start`), or if the publisher cannot continue (`can_continue`).
        """
        rest: str | None = publisher
        last: bytes | None = None
        while rest is not None:
            try:
                async with aclosing(self.subscribe(rest, window)) as elements:
                    async for element in elements:
                        last = element
                        yield element
                return
            except SessionLost:
                if not (has_fixed_start(publisher) if last is None else can_continue(publisher)):
                    raise
                rest = publisher if last is None else continuation(publisher, last)

    # Publications to which the service subscribes.

    async def publish(self, publisher: str, elements: AsyncIterable[bytes]) -> None:
        """Send elements as the service requests them, until all of them are sent. Raises StreamError.

        The service requests more elements after it has stored the previous ones. If a session is lost, the client sends
        the other elements again, so the service may receive an element twice. An idempotency key prevents double execution.
        """
        publication = self._publications.setdefault(publisher, Publication())
        async for element in elements:
            if len(element) > self._limits.element:
                raise StreamError(f"413 rsio:element.toolarge An element has {len(element)} bytes.")
            publication.elements.append(element)
            self._send_demanded(publication)
            await self._until(lambda: publication.sent == len(publication.elements), publication)
        await self._until(lambda: self._is_sent(publication), publication)

    async def _until(self, condition: Callable[[], bool], publication: Publication) -> None:
        while not condition():
            if self._is_closing:
                raise StreamError(CLOSED)
            publication.changed.clear()
            await publication.changed.wait()

    def _is_sent(self, publication: Publication) -> bool:
        endpoint = self._endpoint
        is_written = publication.stream is not None and not endpoint.session.waiting(publication.stream)
        return (
            is_written
            and publication.sent == len(publication.elements)
            and endpoint.state is EndpointState.OPEN
            and self._is_flushed
        )

    def _send_demanded(self, publication: Publication) -> None:
        """Send as many elements as the service has requested."""
        if publication.stream is not None:
            end = publication.sent + self._endpoint.session.capacity(publication.stream)
            if demanded := list(islice(publication.elements, publication.sent, end)):
                self._endpoint.session.offer(publication.stream, demanded)
                publication.sent += len(demanded)
                self._wake()
        publication.changed.set()

    def _on_subscribe(self, stream: int, publisher: str) -> None:
        publication = self._publications.setdefault(publisher, Publication())
        if publisher.startswith("ingest/") and publication.stream is None:
            publication.stream = stream
            self._endpoint.session.accept(stream)
            self._send_demanded(publication)
        else:
            self._endpoint.session.end(stream, UNKNOWN_PUBLISHER)

    def _on_demand(self, publication: Publication, demand: int) -> None:
        # The demand for more also acknowledges as many stored elements.
        for _ in range(min(demand, publication.sent)):
            publication.elements.popleft()
            publication.sent -= 1
        self._send_demanded(publication)

    # Links and sessions.

    async def _run(self, link: Link) -> None:
        """Use one link after the other until the client closes."""
        try:
            await self._use_link(link)
            while not self._is_closing:
                ticket = self._endpoint.ticket()
                link = await self._next_link()
                self._new_endpoint(link, ticket)
                await self._use_link(link)
        finally:
            self._is_closing = True
            self._end_streams()
            self._has_link.set()

    def _new_endpoint(self, link: Link, ticket: ResumeToken | None = None) -> None:
        now = time.monotonic()
        self._endpoint = Endpoint(
            EndpointRole.CLIENT, now, limits=self._limits, has_messages=link.has_messages, ticket=ticket
        )
        self._is_flushed = False
        self._has_link.set()

    def _wake(self) -> None:
        """Wake the sender: the endpoint may have output."""
        self._is_flushed = False
        self._has_output.set()

    def _end_streams(self) -> None:
        for received in self._subscriptions.values():
            received.put_nowait(StreamError(CLOSED))
        self._subscriptions.clear()
        for publication in self._publications.values():
            publication.changed.set()

    async def _next_link(self) -> Link:
        """Open another link. The pause before it grows until the service opens a session."""
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            with suppress(OSError):
                return await self._connect()

    async def _use_link(self, link: Link) -> None:
        """Send and receive until the link is lost or the session is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive_bytes(link))
                tasks.create_task(self._send_bytes(link))
                tasks.create_task(self._check_timeouts())
        except* OSError:
            pass
        finally:
            self._has_link.clear()
            await link.close()
        self._handle(self._endpoint.lose(time.monotonic()))

    async def _receive_bytes(self, link: Link) -> None:
        while True:
            raw = await link.receive()
            self._handle(self._endpoint.receive(raw, time.monotonic()))
            self._wake()

    async def _send_bytes(self, link: Link) -> None:
        """Send the endpoint's output. Raises ConnectionResetError when the session is closed."""
        while True:
            while raw := self._endpoint.take():
                await link.send(raw)
            if self._endpoint.is_closed:
                raise ConnectionResetError("the session is closed")
            self._is_flushed = True
            for publication in self._publications.values():
                publication.changed.set()
            await self._has_output.wait()
            self._has_output.clear()

    async def _check_timeouts(self) -> None:
        """Check the timeouts of the endpoint.

        Raises ConnectionResetError if the session is closed, but its last bytes cannot be sent.
        """
        was_closed = False
        while not was_closed:
            await asyncio.sleep(TICK)
            was_closed = self._endpoint.is_closed
            self._handle(self._endpoint.tick(time.monotonic()))
            self._wake()
        raise ConnectionResetError("the link sends no more bytes")

    def _handle(self, events: Sequence[EndpointEvent]) -> None:
        ends = {event.reason for event in events if isinstance(event, Closed | NotResumed)}
        for event in events:
            match event:
                case SessionOpened():
                    self._pause = FIRST_PAUSE
                case ElementsReceived(stream, elements) if stream in self._subscriptions:
                    for element in elements:
                        self._subscriptions[stream].put_nowait(element)
                case Completed(stream) if stream in self._subscriptions:
                    self._subscriptions.pop(stream).put_nowait(None)
                case StreamFailed(stream, reason) if stream in self._subscriptions:
                    self._subscriptions.pop(stream).put_nowait(
                        SessionLost(reason) if reason in ends else StreamError(reason)
                    )
                case SubscribeReceived(stream, publisher):
                    self._on_subscribe(stream, publisher)
                case DemandReceived(stream, demand):
                    for publication in self._publications.values():
                        if publication.stream == stream:
                            self._on_demand(publication, demand)
                case Cancelled(stream):
                    for publication in self._publications.values():
                        if publication.stream == stream:
                            publication.stream, publication.sent = None, 0
        if self._endpoint.is_closed:
            self._has_link.clear()


def parse(publisher: str) -> publisher_names.Name | None:
    """The parts of a publisher's name; None if only the service knows this kind of publisher."""
    try:
        return publisher_names.parse(publisher)
    except DecodeError:
        return None


def has_fixed_start(publisher: str) -> bool:
    """Whether a later subscription begins with the same element, not relative to the newest element."""
    match parse(publisher):
        case publisher_names.History(from_revision=first):
            return first is None or first > 0
        case publisher_names.StreamName(all=everything, from_offset=first, since=since):
            return everything or first is not None or since is not None
    return False


def can_continue(publisher: str) -> bool:
    """Whether elements have a position (a revision or an offset) at which the publisher can continue."""
    match parse(publisher):
        case (
            publisher_names.History(projection=None, fields=None, before=None, encoding="json")
            | publisher_names.StreamName(encoding="json")
        ):
            return True
    return False


def continuation(publisher: str, element: bytes) -> str | None:
    """The publisher of the elements after this one; None if it was the last one. Requires `can_continue`."""
    name, found = publisher_names.parse(publisher), json.loads(element)
    if isinstance(name, publisher_names.StreamName):
        first, last = found[OFFSET] + 1, name.to_offset
        rest: publisher_names.Name = replace(name, all=False, last=None, since=None, from_offset=first)
    else:
        assert isinstance(name, publisher_names.History)
        first, last = found["revision"] + 1, name.to_revision
        rest = replace(name, from_revision=first, after=None)
    return None if last is not None and 0 < last < first else publisher_names.write(rest)


async def input_lines() -> AsyncGenerator[bytes, None]:
    """The lines of the standard input that are not empty."""
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        if line := line.strip():
            yield line


async def run(options: argparse.Namespace) -> None:
    async with Client(connector(options.at, prefix=options.topic, ca=options.ca)) as client:
        if options.publish:
            await client.publish(options.publisher, input_lines())
            return
        left = options.count
        async with aclosing(client.follow(options.publisher, options.window)) as elements:
            async for element in elements:
                print(element.hex() if options.hex else element.decode(), flush=True)
                left = None if left is None else left - 1
                if left == 0:
                    return


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Read the elements of a publisher, or publish elements as the service requests them."
    )
    parser.add_argument(
        "publisher", help="name of the publisher, such as things/acme.plant:pump-8/history?from=-3, or ingest/reports"
    )
    parser.add_argument(
        "--at",
        default="mqtt://127.0.0.1:1883",
        help="address of the broker or listener: mqtt://, tcp:// or ssl:// with host and port",
    )
    parser.add_argument("--topic", default="rsio", help="prefix of the MQTT topics")
    parser.add_argument("--ca", metavar="FILE", help="certificates to trust, for ssl://")
    parser.add_argument("--window", type=int, default=WINDOW, metavar="N", help="most elements in flight")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N elements")
    parser.add_argument("--hex", action="store_true", help="print elements in hexadecimal")
    parser.add_argument("--publish", action="store_true", help="publish the lines of the standard input")
    try:
        asyncio.run(run(parser.parse_args(words)))
    except (StreamError, OSError, ValueError) as error:
        raise SystemExit(f"refused: {error}") from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()

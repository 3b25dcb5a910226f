"""A client of reactive-streams-io: it reads what it asked for at its own pace, brings what the service asks for, and goes on
where it was when a link is lost.

    python -m examples.rsio_client 'things/acme.plant:pump-8/history?from=-3'
    python -m examples.rsio_client 'things/acme.plant:pump-8/history?follow=true' --at tcp://127.0.0.1:8766
    python -m examples.rsio_client ingest/reports --publish <commands.jsonl

What to say is decided by an `Endpoint` of `mappings.reactive_streams_io`, which knows no sockets; `rsio_links` carries its
octets. A `Client` keeps one link after the other under its streams.
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
"""Elements that are on their way at most. More are asked for when half of them have been taken."""

CLOSED = "503 The client is closed."
NOTHING_HERE = "404 rsio:publisher.notfound There is no such publisher here."

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
TICK = 0.5

OFFSET = 5
"""Where it stands in a message of a stream."""


class Ended(RuntimeError):
    """A stream ended early. `status` is like that of HTTP."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.status = errors.read(reason).status


class Lost(Ended):
    """The session is over, and with it all of its streams. A stream can be asked for once more."""


@dataclass
class Bringing:
    """What is brought under one name: `kept` may not be stored yet, `sent` of it have gone out in the stream that lives."""

    stream: int | None = None
    stored: deque[bytes] = field(default_factory=deque)
    sent: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Client:
    """A conversation with the service. `connect` makes a link: the first one, and another one when that is lost.

        async with Client(connector("tcp://127.0.0.1:8766")) as client:
            async for element in client.follow("things/acme.plant:pump-8/history?follow=true"):
                ...

    A session that is lost with its link is resumed on the next one, and its streams notice nothing. Raises OSError if the
    first link cannot be made.
    """

    def __init__(self, connect: Callable[[], Awaitable[Link]], limits: EndpointLimits | None = None) -> None:
        self._connect, self._limits = connect, limits or EndpointLimits()
        self._pause = FIRST_PAUSE
        self._endpoint: Endpoint
        self._coming: dict[int, asyncio.Queue[bytes | Ended | None]] = {}
        self._bringing: dict[str, Bringing] = {}
        self._linked, self._woken = asyncio.Event(), asyncio.Event()
        self._is_leaving = self._is_silent = False
        self._keeping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        link = await self._connect()
        self._begin(link)
        self._keeping = asyncio.create_task(self._keep(link))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye, and wait for the answer for a few seconds."""
        self._is_leaving = True
        self._end_all()
        if self._linked.is_set():
            self._react(self._endpoint.close(time.monotonic()))
            self._wake()
        else:
            self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping

    # What the service brings.

    async def subscribe(self, publisher: str, window: int = WINDOW) -> AsyncGenerator[bytes, None]:
        """The elements of a publisher, in order, as they are taken. Raises Ended."""
        await self._linked.wait()
        if self._is_leaving:
            raise Ended(CLOSED)
        try:
            stream = self._endpoint.subscribe(publisher, window)
        except EncodeError as error:
            raise Ended(errors.write(error.fault)) from error
        coming = self._coming[stream] = asyncio.Queue()
        self._wake()
        taken = 0
        try:
            while isinstance(element := await coming.get(), bytes):
                yield element
                taken += 1
                # A number belongs to its session. If that is over, what has come may still be taken, and no more asked for.
                if 2 * taken >= window and self._coming.get(stream) is coming:
                    self._endpoint.session.request(stream, taken)
                    self._wake()
                    taken = 0
            if element is not None:
                raise element
        finally:
            if self._coming.get(stream) is coming:
                del self._coming[stream]
                self._endpoint.session.cancel(stream)
                self._wake()

    async def follow(self, publisher: str, window: int = WINDOW) -> AsyncGenerator[bytes, None]:
        """The same across sessions: where one cannot be resumed, the publisher is asked for what is behind the last element.

        Raises Ended, and Lost where nobody can know what was missed: before the first element, or unless it `can_go_on`.
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
            except Lost:
                if last is None or not can_go_on(publisher):
                    raise
                rest = after(publisher, last)

    # What the service asks for.

    async def publish(self, publisher: str, elements: AsyncIterable[bytes]) -> None:
        """Bring elements at the pace at which the service asks for them, until all of them are on their way.

        It asks for more when it has stored what it got. What it has not asked for more behind comes again if a session is
        lost, so an element may come twice: what must not be carried out twice has an idempotency key. Raises Ended.
        """
        bringing = self._bringing.setdefault(publisher, Bringing())
        async for element in elements:
            if len(element) > self._limits.element:
                raise Ended(f"413 rsio:element.toolarge An element has {len(element)} octets.")
            bringing.stored.append(element)
            self._bring(bringing)
            await self._until(lambda: bringing.sent == len(bringing.stored), bringing)
        await self._until(lambda: self._is_away(bringing), bringing)

    async def _until(self, condition: Callable[[], bool], bringing: Bringing) -> None:
        while not condition():
            if self._is_leaving:
                raise Ended(CLOSED)
            bringing.changed.clear()
            await bringing.changed.wait()

    def _is_away(self, bringing: Bringing) -> bool:
        endpoint = self._endpoint
        is_said = bringing.stream is not None and not endpoint.session.waiting(bringing.stream)
        return (
            is_said
            and bringing.sent == len(bringing.stored)
            and endpoint.state is EndpointState.OPEN
            and self._is_silent
        )

    def _bring(self, bringing: Bringing) -> None:
        """Send what is wanted."""
        if bringing.stream is not None:
            end = bringing.sent + self._endpoint.session.capacity(bringing.stream)
            if wanted := list(islice(bringing.stored, bringing.sent, end)):
                self._endpoint.session.offer(bringing.stream, wanted)
                bringing.sent += len(wanted)
                self._wake()
        bringing.changed.set()

    def _asked_for(self, stream: int, publisher: str) -> None:
        bringing = self._bringing.setdefault(publisher, Bringing())
        if publisher.startswith("ingest/") and bringing.stream is None:
            bringing.stream = stream
            self._endpoint.session.accept(stream)
            self._bring(bringing)
        else:
            self._endpoint.session.end(stream, NOTHING_HERE)

    def _stored(self, bringing: Bringing, number: int) -> None:
        for _ in range(min(number, bringing.sent)):
            bringing.stored.popleft()
            bringing.sent -= 1
        self._bring(bringing)

    # The conversation.

    async def _keep(self, link: Link) -> None:
        """Keep a link under the streams until we leave."""
        try:
            await self._converse(link)
            while not self._is_leaving:
                ticket = self._endpoint.ticket()
                link = await self._next_link()
                self._begin(link, ticket)
                await self._converse(link)
        finally:
            self._is_leaving = True
            self._end_all()
            self._linked.set()

    def _begin(self, link: Link, ticket: ResumeToken | None = None) -> None:
        now = time.monotonic()
        self._endpoint = Endpoint(
            EndpointRole.CLIENT, now, limits=self._limits, has_messages=link.has_messages, ticket=ticket
        )
        self._is_silent = False
        self._linked.set()

    def _wake(self) -> None:
        """There may be something to say."""
        self._is_silent = False
        self._woken.set()

    def _end_all(self) -> None:
        for coming in self._coming.values():
            coming.put_nowait(Ended(CLOSED))
        self._coming.clear()
        for bringing in self._bringing.values():
            bringing.changed.set()

    async def _next_link(self) -> Link:
        """Another link. The pause before it grows until somebody has said hello."""
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            with suppress(OSError):
                return await self._connect()

    async def _converse(self, link: Link) -> None:
        """Until the link is lost, or nothing more is to be said."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(link))
                tasks.create_task(self._speak(link))
                tasks.create_task(self._watch())
        except* OSError:
            pass
        finally:
            self._linked.clear()
            await link.close()
        self._react(self._endpoint.lose(time.monotonic()))

    async def _listen(self, link: Link) -> None:
        while True:
            raw = await link.receive()
            self._react(self._endpoint.receive(raw, time.monotonic()))
            self._wake()

    async def _speak(self, link: Link) -> None:
        """Say what there is to say. Raises ConnectionResetError when there is nothing more."""
        while True:
            while raw := self._endpoint.take():
                await link.send(raw)
            if self._endpoint.is_closed:
                raise ConnectionResetError("nothing more is to be said")
            self._is_silent = True
            for bringing in self._bringing.values():
                bringing.changed.set()
            await self._woken.wait()
            self._woken.clear()

    async def _watch(self) -> None:
        """Look at the clock. Raises ConnectionResetError where the conversation is over and its end cannot be said."""
        was_closed = False
        while not was_closed:
            await asyncio.sleep(TICK)
            was_closed = self._endpoint.is_closed
            self._react(self._endpoint.tick(time.monotonic()))
            self._wake()
        raise ConnectionResetError("the link takes nothing more")

    def _react(self, events: Sequence[EndpointEvent]) -> None:
        ends = {event.reason for event in events if isinstance(event, Closed | NotResumed)}
        for event in events:
            match event:
                case SessionOpened():
                    self._pause = FIRST_PAUSE
                case ElementsReceived(stream, elements) if stream in self._coming:
                    for element in elements:
                        self._coming[stream].put_nowait(element)
                case Completed(stream) if stream in self._coming:
                    self._coming.pop(stream).put_nowait(None)
                case StreamFailed(stream, reason) if stream in self._coming:
                    self._coming.pop(stream).put_nowait(Lost(reason) if reason in ends else Ended(reason))
                case SubscribeReceived(stream, publisher):
                    self._asked_for(stream, publisher)
                case DemandReceived(stream, demand):
                    for bringing in self._bringing.values():
                        if bringing.stream == stream:
                            self._stored(bringing, demand)
                case Cancelled(stream):
                    for bringing in self._bringing.values():
                        if bringing.stream == stream:
                            bringing.stream, bringing.sent = None, 0
        if self._endpoint.is_closed:
            self._linked.clear()


def can_go_on(publisher: str) -> bool:
    """Whether elements say where they stand, and the publisher can begin anywhere."""
    try:
        name = publisher_names.parse(publisher)
    except DecodeError:
        # The service may have publishers of which nothing is known here.
        return False
    match name:
        case (
            publisher_names.History(projection=None, fields=None, before=None, encoding="json")
            | publisher_names.StreamName(encoding="json")
        ):
            return True
    return False


def after(publisher: str, element: bytes) -> str | None:
    """What to ask for behind an element; None if it was the last one. `can_go_on` has to be True."""
    name, found = publisher_names.parse(publisher), json.loads(element)
    if isinstance(name, publisher_names.StreamName):
        behind, last = found[OFFSET] + 1, name.to_offset
        rest: publisher_names.Name = replace(name, all=False, last=None, since=None, from_offset=behind)
    else:
        assert isinstance(name, publisher_names.History)
        behind, last = found["revision"] + 1, name.to_revision
        rest = replace(name, from_revision=behind, after=None)
    return None if last is not None and 0 < last < behind else publisher_names.write(rest)


async def lines() -> AsyncGenerator[bytes, None]:
    """Those of the standard input."""
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        if line := line.strip():
            yield line


async def run(chosen: argparse.Namespace) -> None:
    async with Client(connector(chosen.at, beginning=chosen.topic, ca=chosen.ca)) as client:
        if chosen.publish:
            await client.publish(chosen.publisher, lines())
            return
        left = chosen.count
        async with aclosing(client.follow(chosen.publisher, chosen.window)) as elements:
            async for element in elements:
                print(element.hex() if chosen.hex else element.decode(), flush=True)
                left = None if left is None else left - 1
                if left == 0:
                    return


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Read what a publisher brings, or bring what the service asks for.")
    parser.add_argument("publisher", help="such as things/acme.plant:pump-8/history?from=-3, or ingest/reports")
    parser.add_argument("--at", default="mqtt://127.0.0.1:1883", help="mqtt://, tcp:// or ssl:// with host and port")
    parser.add_argument("--topic", default="rsio", help="what topics at the broker begin with")
    parser.add_argument("--ca", metavar="FILE", help="whom to trust at ssl://")
    parser.add_argument("--window", type=int, default=WINDOW, metavar="N", help="elements on their way at most")
    parser.add_argument("--count", type=int, metavar="N", help="end after N elements")
    parser.add_argument("--hex", action="store_true", help="print octets, not text")
    parser.add_argument("--publish", action="store_true", help="bring the lines of the standard input")
    try:
        asyncio.run(run(parser.parse_args(words)))
    except (Ended, OSError, ValueError) as error:
        raise SystemExit(f"refused: {error}") from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()

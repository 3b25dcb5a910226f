"""The demo's reader of reactive-streams-io: it reads the history of a device, and traces frames.

result = asyncio.run(read_history(connector("mqtt://127.0.0.1:1883"), "boiler-07", trace))
result.revisions, result.temperatures
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby

from examples.rsio_client import Client
from examples.rsio_links import TIMEOUT, Link
from examples.scenario import thing_id
from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import (
    CODES,
    LAYOUTS,
    ClientHello,
    Frame,
    Goodbye,
    OnNext,
    OnNextPacked,
    OnSubscribe,
    RequestFrame,
    ServerHello,
    SubscribeFrame,
)
from mappings.reactive_streams_io.limits import EndpointLimits

WINDOW = 24

Trace = Callable[[str, int, str], None]
"""Takes the direction of a message (`->` or `<-`), its size in bytes, and a description of its frames."""

_SESSION_FRAMES = ("Seq", "ResumeGrant", "ResumeAck", "Ping", "Pong")
"""Frames of the session itself, which are not traced."""


class TracedLink(Link):
    """A link that passes every message to a trace function."""

    has_messages = True

    def __init__(self, link: Link, trace: Trace) -> None:
        self._link, self._trace = link, trace
        self._up, self._down = (
            Decoder(EndpointLimits(), frozenset(LAYOUTS), CODES[hello]) for hello in (ClientHello, ServerHello)
        )

    async def send(self, raw: bytes) -> None:
        self._trace_frames("->", raw, self._up)
        await self._link.send(raw)

    async def receive(self) -> bytes:
        raw = await self._link.receive()
        self._trace_frames("<-", raw, self._down)
        return raw

    async def close(self) -> None:
        await self._link.close()

    def _trace_frames(self, arrow: str, raw: bytes, decoder: Decoder) -> None:
        if text := ", ".join(descriptions(list(decoder.feed(raw)))):
            self._trace(arrow, len(raw), text)


def descriptions(frames: Sequence[Frame]) -> Iterator[str]:
    """A short description of each run of frames of the same type."""
    for kind, run in groupby(frames, type):
        found = list(run)
        match found[0]:
            case ClientHello() | ServerHello():
                yield "hello"
            case SubscribeFrame(publisher, _, demand):
                yield f"subscribe {demand} of {publisher}"
            case OnSubscribe():
                yield "subscribed"
            case RequestFrame():
                yield f"request {sum(each.demand for each in found if isinstance(each, RequestFrame))}"
            case OnNext():
                yield f"{len(found)} events"
            case OnNextPacked(_, elements):
                yield f"{len(elements)} packed numbers"
            case Goodbye(reason):
                yield f"goodbye {reason}"
            case _ if kind.__name__ not in _SESSION_FRAMES:
                yield kind.__name__.removeprefix("On").removesuffix("Frame").lower()


@dataclass
class ReadResult:
    """The received history, and the number and size in bytes of all messages, sent and received."""

    revisions: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    size: int = 0
    messages: int = 0


async def read_history(connect: Callable[[], Awaitable[Link]], device: str, trace: Trace) -> ReadResult:
    """Read all events of a device's twin, then only the temperatures.

    Raises StreamError, or OSError without a link.
    """
    result = ReadResult()

    def count_and_trace(arrow: str, size: int, description: str) -> None:
        result.size += size
        result.messages += 1
        trace(arrow, size, description)

    async def traced_link() -> Link:
        return TracedLink(await connect(), count_and_trace)

    history = f"things/{thing_id(device)}/history"
    async with asyncio.timeout(TIMEOUT), Client(traced_link) as client:
        async with aclosing(client.subscribe(f"{history}?fields=path,value,revision", WINDOW)) as events:
            async for event in events:
                result.revisions.append(json.loads(event)["revision"])
        async with aclosing(client.subscribe(f"{history}?project=/attributes/temperature&pack=f64", 1000)) as numbers:
            async for number in numbers:
                result.temperatures += struct.unpack(">d", number)
    return result

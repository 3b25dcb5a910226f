"""A reader that speaks reactive-streams-io, for the demo: a device's past in few octets, shown message by message.

    read = asyncio.run(read_past(connector("mqtt://127.0.0.1:1883"), "boiler-07", show))
    read.revisions, read.temperatures

`Overheard` is a link that tells what goes through it: the frames of a message in words, and how many octets they are.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby

from examples.conversation import twin
from examples.rsio_client import Client
from examples.rsio_links import PATIENCE, Link
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

Say = Callable[[str, int, str], None]
"""Takes an arrow, how many octets there are, and what they say."""

_SELDOM_SHOWN = ("Seq", "ResumeGrant", "ResumeAck", "Ping", "Pong")
"""What keeps a session going, and says nothing of its streams."""


class Overheard(Link):
    """A link whose messages are shown."""

    has_messages = True

    def __init__(self, link: Link, say: Say) -> None:
        self._link, self._say = link, say
        self._up, self._down = (
            Decoder(EndpointLimits(), frozenset(LAYOUTS), CODES[hello]) for hello in (ClientHello, ServerHello)
        )

    async def send(self, raw: bytes) -> None:
        self._show("->", raw, self._up)
        await self._link.send(raw)

    async def receive(self) -> bytes:
        raw = await self._link.receive()
        self._show("<-", raw, self._down)
        return raw

    async def close(self) -> None:
        await self._link.close()

    def _show(self, arrow: str, raw: bytes, decoder: Decoder) -> None:
        if said := ", ".join(in_words(list(decoder.feed(raw)))):
            self._say(arrow, len(raw), said)


def in_words(frames: Sequence[Frame]) -> Iterator[str]:
    """What frames say. Those of one kind that come one behind the other are told together."""
    for kind, run in groupby(frames, type):
        found = list(run)
        match found[0]:
            case ClientHello() | ServerHello():
                yield "hello"
            case SubscribeFrame(publisher, _, demand):
                yield f"{demand} of {publisher}"
            case OnSubscribe():
                yield "begins"
            case RequestFrame():
                yield f"{sum(each.demand for each in found if isinstance(each, RequestFrame))} more"
            case OnNext():
                yield f"{len(found)} events"
            case OnNextPacked(_, elements):
                yield f"{len(elements)} numbers packed"
            case Goodbye(reason):
                yield f"goodbye {reason}"
            case _ if kind.__name__ not in _SELDOM_SHOWN:
                yield kind.__name__.removeprefix("On").removesuffix("Frame").lower()


@dataclass
class Read:
    """What came, and the octets that were sent and received for it."""

    revisions: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    raw: int = 0
    messages: int = 0


async def read_past(connect: Callable[[], Awaitable[Link]], device: str, show: Say) -> Read:
    """All events of a device's twin, then the temperatures alone. Raises Ended, and OSError where nobody answers."""
    read = Read()

    def say(arrow: str, raw: int, words: str) -> None:
        read.raw += raw
        read.messages += 1
        show(arrow, raw, words)

    async def overheard() -> Link:
        return Overheard(await connect(), say)

    history = f"things/{twin(device)}/history"
    async with asyncio.timeout(PATIENCE), Client(overheard) as client:
        async with aclosing(client.subscribe(f"{history}?fields=path,value,revision", WINDOW)) as events:
            async for event in events:
                read.revisions.append(json.loads(event)["revision"])
        async with aclosing(client.subscribe(f"{history}?project=/attributes/temperature&pack=f64", 1000)) as numbers:
            async for number in numbers:
                read.temperatures += struct.unpack(">d", number)
    return read

"""A connection whose sources use reactive-streams-io: a lamp with a history, clients by address.

harness = await RsioHarness.filled(revisions=3)
harness.send("a", H, "11 0d …")
await harness.framed("a", 1)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

from connectivity.transports.base import Outcome
from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import (
    CORE,
    Frame,
    Goodbye,
    OnNext,
    ResumeGrant,
    ServerHello,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.in_process.service import LAMP, OWNER, ConnectionHarness, creation, pause, turn, until

H = "01 00 00"
"""The hello of a client without extensions."""

HELLO = ServerHello(0, (1, 2, 3))
HISTORY = f"things/{LAMP}/history"


def definition(**options: Any) -> dict[str, Any]:
    return {"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": {"tck": True, **options}}}


def source(address: str = "in", *subjects: str, **more: Any) -> dict[str, Any]:
    """Return a source whose messages name their reply address."""
    return {
        "addresses": [address],
        "authorizationContext": list(subjects or (OWNER,)),
        "payloadMapping": ["rsio"],
        "replyTarget": {"address": "{{ header:reply-to }}"},
        **more,
    }


OWNER_SOURCE = {"addresses": ["ditto"], "authorizationContext": [OWNER], "replyTarget": {"address": "out"}}


def raw(*parts: str | bytes | Frame) -> bytes:
    """Return the bytes of hexadecimal digits, bytes and frames."""
    return b"".join(
        bytes.fromhex(each) if isinstance(each, str) else each if isinstance(each, bytes) else encode(each)
        for each in parts
    )


def subscribe(publisher: str, subscriber: int = 1, demand: int = 0) -> SubscribeFrame:
    return SubscribeFrame(publisher, subscriber, demand)


def subscribe_synthetic(parameters: str, subscriber: int = 1, demand: int = 0) -> bytes:
    """Return a SUBSCRIBE to a synthetic publisher."""
    return raw(subscribe(f"tck/{parameters}", subscriber, demand))


class RsioHarness(ConnectionHarness):
    """A connection whose clients are identified by their reply addresses."""

    def __init__(self, *sources: dict[str, Any], **more: Any) -> None:
        """`options` are those of the mapping."""
        mapping = definition(**more.pop("options", {}))
        super().__init__(*(sources or (source(),)), OWNER_SOURCE, mappingDefinitions=mapping, **more)

    @classmethod
    async def filled(cls, *sources: dict[str, Any], revisions: int = 0, **more: Any) -> Self:
        """Return a harness with a lamp of `revisions` revisions: created, then `/attributes/on` is 2, 3 …"""
        rsio_harness = cls(*sources, **more)
        if revisions:
            assert (await rsio_harness.dispatch(creation()))["status"] == 201
        for number in range(2, revisions + 1):
            assert (await rsio_harness.dispatch(turn(number)))["status"] in (201, 204)
        rsio_harness.forget()
        return rsio_harness

    async def dispatch(self, payload: bytes) -> dict[str, Any]:
        """Return the response to a command of the lamp's owner."""
        before = len(self.answers_of("out"))
        self.deliver(payload, source=len(self.readers) - 1)
        await until(lambda: len(self.answers_of("out")) > before)
        return self.answers_of("out")[before]

    def answers_of(self, address: str) -> list[dict[str, Any]]:
        return [json.loads(each.envelope.payload) for each in self.link.published if each.address == address]

    def send(self, address: str | None, *parts: str | bytes | Frame, source: int = 0, **headers: str) -> None:
        """Send one message of the client at this address; None for a message without a reply address."""
        reply_headers = {} if address is None else {"reply_to": address}
        self.deliver(raw(*parts), source=source, **reply_headers, **headers)

    def messages(self, address: str) -> list[bytes]:
        """Return the messages to an address so far."""
        return [each.envelope.payload for each in self.link.published if each.address == address]

    async def received(self, address: str, expected: str | bytes) -> None:
        """Wait for exactly these bytes at an address."""
        wanted = raw(expected)
        await until(lambda: len(b"".join(self.messages(address))) >= len(wanted))
        await pause()
        found = b"".join(self.messages(address))
        assert found == wanted, f"{found.hex(' ')} is not {wanted.hex(' ')}"

    def frames(self, address: str) -> list[Frame]:
        """Return the frames to an address so far."""
        known = CORE | {0x02, 0xA0, 0xA2, 0xA3, 0xA4, 0xA8, 0xA9, 0xB0}
        # A resumed session has begun its streams at another address.
        reader = Decoder(EndpointLimits(), known, 0x02, dict.fromkeys(range(100), 0))
        return [frame for message in self.messages(address) for frame in reader.feed(message)]

    async def framed(self, address: str, number: int) -> list[Frame]:
        """Wait for exactly `number` frames at an address and return them."""
        await until(lambda: len(self.frames(address)) >= number)
        await pause()
        found = self.frames(address)
        assert len(found) == number, found
        return found

    def all_settled(self, number: int) -> bool:
        return [outcome for _, outcome in self.outcomes] == [Outcome.SETTLED] * number


def goodbye(frames: Sequence[Frame]) -> str:
    """Return the reason of the final goodbye."""
    last = frames[-1]
    assert isinstance(last, Goodbye), frames
    return last.reason


def elements(frames: Sequence[Frame]) -> list[bytes]:
    """Return the received elements."""
    return [frame.element for frame in frames if isinstance(frame, OnNext)]


def granted(frames: Sequence[Frame]) -> bytes:
    """Return the token that was granted last."""
    *_, grant = (frame for frame in frames if isinstance(frame, ResumeGrant))
    return grant.token


def revisions(elements: Sequence[bytes]) -> list[int]:
    """Return the revisions of elements that are events."""
    return [json.loads(element)["revision"] for element in elements]

"""Sockets that break at any byte: a client that resumes gets every element once and in order.

The service is in this process, the listener and its sockets are real. The client reads and writes some bytes, and resets its
socket within a hello, a resume or an element. Streams have a fixed size or not, whole and split elements; one is the history
of a thing, read from the store (reactive-streams-io, resume).
"""

from __future__ import annotations

import json
import random
import time

import pytest

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import (
    Closed,
    Completed,
    ElementsReceived,
    EndpointEvent,
    NotResumed,
    Resumed,
    StreamFailed,
)
from tests.support.dice import dice
from tests.support.in_process.reactive_streams_io import HISTORY, RsioHarness, definition
from tests.support.in_process.tcp_service import Caller, TcpService, open_tcp_service
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("harnesses")

REVISIONS = 80
STREAMS = {
    "tck/range?n=300": [str(number).encode() for number in range(1, 301)],
    "tck/fixed?n=900&size=5": [number.to_bytes(5, "big") for number in range(1, 901)],
    "tck/big?bytes=150000": [b"x" * 150_000],
}
PAGE = 11
"""The demand of one request."""

PART = 2000
"""Bytes of one part of a split element: most links live long enough for some parts."""

SEEDS_IN_SOAK = 30


class ReconnectingClient:
    """A client that loses its socket again and again."""

    def __init__(self, there: TcpService, dice: random.Random) -> None:
        self.there, self.dice = there, dice
        self.cuts = self.resumed = 0
        self.names: dict[int, str] = {}
        self.got: dict[str, list[bytes]] = {}
        self.over: set[str] = set()
        self.faults: list[EndpointEvent] = []
        self.endpoint = Endpoint(EndpointRole.CLIENT, time.monotonic())
        for name in (HISTORY, *STREAMS):
            self.names[self.endpoint.subscribe(name, PAGE)] = name
            self.got[name] = []

    @property
    def is_done(self) -> bool:
        return len(self.over) == len(self.names)

    async def read_all(self) -> None:
        """Read until all elements have arrived."""
        while True:
            caller = await self.there.caller()
            if await self._converse(caller):
                return
            await caller.leave()
            self.send(self.endpoint.lose(time.monotonic()))
            ticket = self.endpoint.ticket()
            assert ticket is not None, self.faults
            self.endpoint = Endpoint(EndpointRole.CLIENT, time.monotonic(), ticket=ticket)

    async def _converse(self, caller: Caller) -> bool:
        """Return True once all elements have arrived, False if the socket must be reset."""
        # Short links break within the resume, long ones within elements.
        inward, outward = (self.dice.randint(1, self.dice.choice((5, 60, 400, 9000))) for _ in range(2))
        while True:
            is_lasting = self.endpoint.ticket() is None
            while sent := self.endpoint.take():
                caller.writer.write(sent if is_lasting else sent[:outward])
                outward -= 0 if is_lasting else len(sent)
                if outward <= 0:
                    await caller.writer.drain()
                    return self._cut()
            if self.is_done:
                return True
            received = await caller.take_some(1 << 16 if is_lasting else inward)
            inward -= 0 if is_lasting else len(received)
            self.send(self.endpoint.receive(received, time.monotonic()))
            if inward <= 0:
                return self._cut()

    def _cut(self) -> bool:
        self.cuts += 1
        return False

    def send(self, events: list[EndpointEvent]) -> None:
        for event in events:
            match event:
                case ElementsReceived(stream, elements):
                    got = self.got[self.names[stream]]
                    before = len(got)
                    got += map(bytes, elements)
                    if before // PAGE != len(got) // PAGE:
                        self.endpoint.session.request(stream, PAGE)
                case Completed(stream):
                    self.over.add(self.names[stream])
                case Resumed():
                    self.resumed += 1
                case StreamFailed() | NotResumed() | Closed():
                    self.faults.append(event)
                case _:
                    pass


async def read_over_cut_sockets(choose: random.Random) -> None:
    rsio_harness = await RsioHarness.filled(revisions=REVISIONS)
    async with open_tcp_service(rsio_harness, mappingDefinitions=definition(partLimit=PART)) as there:
        client = ReconnectingClient(there, choose)
        await client.read_all()
    assert client.faults == []
    history = client.got.pop(HISTORY)
    assert [json.loads(element)["revision"] for element in history] == list(range(1, REVISIONS + 1))
    assert client.got == STREAMS
    await wait_until(lambda: list(rsio_harness.streams) == [])
    assert client.cuts >= 50
    assert client.resumed >= 20


async def test_every_element_comes_once_and_in_order_over_sockets_that_break() -> None:
    await read_over_cut_sockets(dice("sockets that break"))


@pytest.mark.soak(shard="properties")
@pytest.mark.parametrize("seed", range(SEEDS_IN_SOAK))
async def test_every_element_comes_once_and_in_order_over_thousands_of_sockets_that_break(seed: int) -> None:
    await read_over_cut_sockets(dice("sockets that break", seed))

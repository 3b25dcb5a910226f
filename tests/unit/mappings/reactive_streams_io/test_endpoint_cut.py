"""Transports that are cut at any byte: with resume every element arrives once and in order.

Client and server are in this process; bytes between them are delivered in pieces, or lost with the transport. Streams go
both ways, with a fixed size or not, split and whole (reactive-streams-io, resume).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.reactive_streams_io.endpoint import EndpointRole, EndpointState
from mappings.reactive_streams_io.events import (
    Closed,
    Completed,
    ElementsReceived,
    EndpointEvent,
    NotResumed,
    Resumed,
    StreamFailed,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.clock import Clock
from tests.support.dice import dice, examples
from tests.support.reactive_streams_io.conversation import EndpointClient

LIMITS = EndpointLimits(split_above=300, part=100, batch=500)
STREAMS = {
    "tck/range?n=60": [str(number).encode() for number in range(1, 61)],
    "tck/fixed?n=90&size=3": [number.to_bytes(3, "big") for number in range(1, 91)],
    "tck/big?bytes=2500": [b"x" * 2500],
    "tck/range?n=0": [],
}
PAGE = 7
"""The demand of one request."""


class Side:
    """One of the two, over all its transports: its streams, and what became of them."""

    def __init__(self) -> None:
        self.wanted: dict[int, str] = {}
        self.got: dict[int, list[bytes]] = {}
        self.over: set[int] = set()
        self.faults: list[object] = []
        self.peer: EndpointClient | None = None

    def ask(self) -> None:
        assert self.peer is not None
        for name in STREAMS:
            stream = self.peer.endpoint.subscribe(name, PAGE)
            self.wanted[stream], self.got[stream] = name, []

    def receive(self, sent: bytes) -> None:
        peer = self.peer
        assert peer is not None
        events = peer.endpoint.receive(sent, peer.clock.now())
        peer.react(events)
        self.reported(events)

    def reported(self, events: Sequence[EndpointEvent]) -> None:
        assert self.peer is not None
        for event in events:
            if isinstance(event, ElementsReceived):
                before = len(self.got[event.stream])
                self.got[event.stream] += event.elements
                if before // PAGE != len(self.got[event.stream]) // PAGE:
                    self.peer.endpoint.session.request(event.stream, PAGE)
            elif isinstance(event, Completed):
                self.over.add(event.stream)
            elif isinstance(event, StreamFailed | NotResumed):
                self.faults.append(event)

    @property
    def is_done(self) -> bool:
        return len(self.over) == len(STREAMS)


class Link:
    """Both sides, and the bytes between them."""

    def __init__(self, choose: random.Random, *, has_messages: bool) -> None:
        self.choose = choose
        self.has_messages = has_messages
        self.clock = Clock()
        self.resumables = Resumables(LIMITS)
        self.client, self.server = Side(), Side()
        self.cuts = self.cuts_in_between = 0
        """Of these the latter while a session was going over to a new transport."""
        self.connect()

    def connect(self) -> None:
        """Return a new transport, over which the client resumes its session or begins another one."""
        old = self.client.peer
        options: dict[str, Any] = {"clock": self.clock, "has_messages": self.has_messages, "limits": LIMITS}
        ticket = None if old is None else old.endpoint.ticket()
        assert old is None or ticket is not None
        self.client.peer = EndpointClient(EndpointRole.CLIENT, ticket=ticket, **options)
        self.client.peer.feeds = {} if old is None else old.feeds
        feeds = {} if self.server.peer is None else self.server.peer.feeds
        self.server.peer = EndpointClient(resumables=self.resumables, **options)
        # Its streams move with the session, which a new connection has from its resume on.
        self.server.peer.feeds = feeds
        self.forth: list[bytes] = []
        self.back: list[bytes] = []

    def step(self) -> bool:
        """Carry a piece one way. False where nothing is on its way."""
        assert self.client.peer is not None
        assert self.server.peer is not None
        self.forth += self.client.peer.messages()
        self.back += self.server.peer.messages()
        ways = [pair for pair in ((self.forth, self.server), (self.back, self.client)) if pair[0]]
        if not ways:
            return False
        way, receiver = self.choose.choice(ways)
        sent = way.pop(0)
        if not self.has_messages:
            cut = self.choose.randint(1, len(sent))
            sent, rest = sent[:cut], sent[cut:]
            if rest:
                way.insert(0, rest)
        receiver.receive(sent)
        return True

    def cut(self) -> None:
        """Lose the transport, with all bytes on their way; sometimes only the client notices."""
        client, server = self.client.peer, self.server.peer
        assert client is not None
        assert server is not None
        if client.endpoint.ticket() is None:
            return
        self.cuts += 1
        self.cuts_in_between += bool(server.reported(Resumed)) and client.endpoint.state is not EndpointState.OPEN
        self.client.reported(client.endpoint.lose(self.clock.now()))
        if self.choose.random() < 0.7:
            self.server.reported(server.endpoint.lose(self.clock.now()))
        self.connect()


def carried(choose: random.Random, *, has_messages: bool, cuts: int) -> Link:
    link = Link(choose, has_messages=has_messages)
    link.client.ask()
    asked = False
    steps = 0
    while link.step() or not asked:
        steps += 1
        assert steps < 100_000
        assert link.server.peer is not None
        if not asked and link.server.peer.endpoint.state is EndpointState.OPEN:
            link.server.ask()
            asked = True
        if asked and link.cuts < cuts and link.choose.random() < (0.2 if has_messages else 0.05):
            link.cut()
    return link


def whole(link: Link) -> None:
    for side in (link.client, link.server):
        assert side.faults == []
        assert {side.wanted[stream]: elements for stream, elements in side.got.items()} == STREAMS
        assert side.is_done
        assert side.peer is not None
        assert side.peer.reported(Closed) == []
        assert side.peer.endpoint.session.subscribing.open_bytes == 0


@pytest.mark.parametrize("has_messages", [False, True])
def test_every_element_arrives_once_and_in_order_despite_any_number_of_cuts(has_messages: bool) -> None:
    links: list[Link] = []
    while sum(link.cuts for link in links) < 500 or sum(link.cuts_in_between for link in links) < 50:
        assert len(links) < 100, "too few cuts"
        links.append(carried(dice("cut", len(links)), has_messages=has_messages, cuts=40))
        whole(links[-1])


@pytest.mark.soak(shard="properties")
@given(st.integers(0, 1 << 32), st.booleans())
@hypothesis.settings(max_examples=examples(2000))
def test_every_element_arrives_once_and_in_order_over_thousands_of_cuts(seed: int, has_messages: bool) -> None:
    whole(carried(random.Random(seed), has_messages=has_messages, cuts=20))

"""A broker loses messages of reactive-streams-io and delivers others twice: every loss is noticed.

With sequence numbers both sides notice it; with resume the client continues the session, at another address. If the service
misses a message, it sends a goodbye, and the client subscribes again after the last revision received. Each revision is
passed on once and in order (reactive-streams-io, sequence).
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import Closed, Completed, ElementsReceived, EndpointEvent, Interrupted, Resumed
from tests.support.dice import dice
from tests.support.in_process.reactive_streams_io import HISTORY, RsioHarness, revisions
from tests.support.in_process.service import pause

pytestmark = pytest.mark.usefixtures("harnesses")

REVISIONS = 60
PAGE = 3
STEPS = 5000
SILENCE = 31.0
"""In seconds: longer than the silence before a ping."""


class LossyReader:
    """Reads the history of the lamp over a broker that loses one message in ten, and repeats one in ten."""

    def __init__(self, rsio_harness: RsioHarness, dice: Random, name: int) -> None:
        self.rsio_harness, self.dice, self.name = rsio_harness, dice, name
        self.number = 0
        self.seen = 0
        self.revisions: list[int] = []
        self.is_over = False
        self.became: Counter[str] = Counter()
        self.begin()

    @property
    def address(self) -> str:
        return f"r/{self.name}/{self.number}"

    def begin(self, endpoint: Endpoint | None = None) -> None:
        """Connect at another address: resume a session, or start one."""
        ticket = endpoint.ticket() if endpoint is not None else None
        self.number, self.seen = self.number + 1, 0
        self.endpoint = Endpoint(EndpointRole.CLIENT, self.rsio_harness.clock.now(), has_messages=True, ticket=ticket)
        if ticket is None:
            start = self.revisions[-1] + 1 if self.revisions else 1
            self.endpoint.subscribe(f"{HISTORY}?from={start}", PAGE)

    def times(self) -> int:
        """Return how often a message arrives."""
        return self.dice.choices((0, 1, 2), (1, 8, 1))[0]

    async def step(self) -> None:
        """Send and receive all that is due; where nothing is due, time passes."""
        has_sent = False
        while raw := self.endpoint.take():
            has_sent = True
            for _ in range(self.times()):
                self.rsio_harness.send(self.address, raw)
        await pause()
        messages = self.rsio_harness.messages(self.address)[self.seen :]
        self.seen += len(messages)
        endpoint = self.endpoint
        for message in messages:
            for _ in range(self.times()):
                self.react(endpoint.receive(message, self.rsio_harness.clock.now()))
            if endpoint is not self.endpoint:
                return
        if not messages and not has_sent:
            self.rsio_harness.clock.advance(SILENCE)
            self.rsio_harness.sweep_sessions()
            self.react(endpoint.tick(self.rsio_harness.clock.now()))

    def react(self, events: list[EndpointEvent]) -> None:
        for event in events:
            match event:
                case ElementsReceived(stream, elements):
                    self.revisions += revisions([bytes(element) for element in elements])
                    self.endpoint.session.request(stream, len(elements))
                case Completed():
                    self.is_over = True
                case Resumed():
                    self.became["resumed"] += 1
                case Interrupted() | Closed():
                    self.became[type(event).__name__] += 1
                    self.begin(self.endpoint if isinstance(event, Interrupted) else None)
                case _:
                    pass


async def test_nothing_is_missing_unnoticed_where_messages_are_lost_and_repeated() -> None:
    rsio_harness = await RsioHarness.filled(revisions=REVISIONS)
    became: Counter[str] = Counter()
    for name in range(12):
        reader = LossyReader(rsio_harness, dice("lossy", name), name)
        for _ in range(STEPS):
            if reader.is_over:
                break
            await reader.step()
        assert reader.revisions == list(range(1, REVISIONS + 1))
        assert reader.is_over
        became += reader.became
    assert became["resumed"] > 0, became
    assert became["Closed"] > 0, became

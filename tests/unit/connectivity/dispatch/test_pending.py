"""The heap of those that wait: one timer, many ends. The rest of it is told in the tests of the exchange."""

from __future__ import annotations

import pytest
import uvloop
from structlog.testing import capture_logs

from connectivity.dispatch.pending import PendingRequest, PendingRequests
from connectivity.sources.acknowledgements import RequestedAcks
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import DecodedDelivery
from connectivity.transports.base import Delivery
from mappings.model.envelope import Envelope
from mappings.model.signals import Message
from tests.support.clock import Clock
from tests.support.in_process.service import LAMP, ConnectionHarness, until

pytestmark = pytest.mark.usefixtures("sites")


class Waiting:
    """Collecting with a clock that is moved."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.finished: list[str | None] = []
        self.collecting = PendingRequests(self.clock.now, lambda pending: self.finished.append(pending.correlation_id))
        route = ConnectionHarness().readers[0].route
        self.arrival = InboundDelivery(
            Delivery(Envelope(b""), "in", None, False, lambda *_: None), DecodedDelivery(()), route
        )

    def begin(self, correlation_id: str, seconds: float, *, is_held: bool = True) -> PendingRequest:
        signal = Message(LAMP, "to", "x", "/inbox/messages/x", None, {"correlation-id": correlation_id})
        ended = self.arrival.ended if is_held else None
        return self.collecting.begin(
            signal, RequestedAcks(("live-response",), True, seconds), "live", self.arrival, self.arrival.route, ended
        )


async def test_those_whose_time_is_over_end_in_the_order_of_their_times() -> None:
    waiting = Waiting()
    for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 9.0)):
        waiting.begin(name, seconds)
    waiting.clock.advance(3)
    waiting.collecting.expire()
    assert waiting.finished == ["a", "b", "c"]
    assert (len(waiting.collecting), waiting.collecting.held("site")) == (1, 1)
    assert waiting.collecting._ended_in_heap == 0, "none of them is in the heap any more"


async def test_an_error_at_one_end_stops_no_other_and_the_timer_goes_on() -> None:
    waiting = Waiting()
    finish = waiting.collecting._finish

    def fail_once(pending: PendingRequest) -> None:
        waiting.collecting._finish = finish
        raise ZeroDivisionError(pending.correlation_id)

    waiting.collecting._finish = fail_once
    for name, seconds in (("a", 0.01), ("b", 0.01), ("c", 0.02)):
        waiting.begin(name, seconds)
    with capture_logs() as lines:
        waiting.clock.advance(0.01)
        await until(lambda: waiting.finished == ["b"])
        waiting.clock.advance(0.01)
        await until(lambda: waiting.finished == ["b", "c"])
    assert [(line["event"], line["correlation_id"]) for line in lines] == [
        ("finishing a pending request failed", "a")
    ]


async def test_a_shorter_time_than_that_of_the_timer_is_not_missed() -> None:
    waiting = Waiting()
    waiting.begin("long", 60.0)
    waiting.begin("short", 0.01)
    waiting.clock.advance(0.01)
    await until(lambda: waiting.finished == ["short"])


async def test_what_was_dropped_does_not_end_any_more_and_leaves_the_heap() -> None:
    waiting = Waiting()
    for number in range(3000):
        waiting.collecting.drop(waiting.begin(str(number), 60.0, is_held=number % 2 == 0))
    assert len(waiting.collecting._heap) <= 1001
    waiting.clock.advance(61)
    waiting.collecting.expire()
    assert (waiting.finished, waiting.collecting._heap, waiting.collecting.held("site")) == ([], [], 0)


async def test_dropping_twice_counts_once() -> None:
    waiting = Waiting()
    pending = waiting.begin("a", 1.0)
    for _ in range(2):
        waiting.collecting.drop(pending)
    assert waiting.collecting.held("site") == 0
    assert "over" in repr(pending)


async def test_a_closed_connection_lets_go_of_its_own_alone() -> None:
    waiting = Waiting()
    waiting.begin("a", 1.0)
    waiting.collecting.close_connection("another")
    assert len(waiting.collecting) == 1
    waiting.collecting.close_connection("site")
    assert (len(waiting.collecting), waiting.collecting.held("site")) == (0, 0)


def test_a_timer_that_is_due_at_once_is_no_obstacle_on_the_services_own_loop() -> None:
    """That loop has other timers than asyncio's for what is due at once: they do not say when they are."""

    async def wait() -> list[str | None]:
        waiting = Waiting()
        waiting.begin("a", 9.0)
        waiting.clock.advance(10)
        waiting.begin("b", -5.0)
        waiting.begin("c", 0.0)
        await until(lambda: len(waiting.finished) == 3)
        for made in ConnectionHarness.made:
            await made.close()
        ConnectionHarness.made.clear()
        return waiting.finished

    assert uvloop.run(wait()) == ["b", "a", "c"]

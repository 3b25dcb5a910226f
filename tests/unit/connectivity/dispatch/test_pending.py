"""The heap and the timer of pending requests; `test_request_reply.py` tests the rest."""

from __future__ import annotations

import pytest
import uvloop
from structlog.testing import capture_logs

from connectivity.dispatch.pending import PendingRequest, PendingRequests
from connectivity.sources.acknowledgements import RequestedAcks
from connectivity.sources.delivery import DeliveryLedger, InboundDelivery
from connectivity.sources.reader import DecodedDelivery
from connectivity.transports.base import Delivery
from mappings.model.envelope import Envelope
from mappings.model.signals import Message
from tests.support.clock import Clock
from tests.support.in_process.service import LAMP, ConnectionHarness, until

pytestmark = pytest.mark.usefixtures("harnesses")


class RequestsWithClock:
    """Pending requests with a clock that tests set."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.finished: list[str | None] = []
        self.collecting = PendingRequests(self.clock.now, lambda pending: self.finished.append(pending.correlation_id))
        route = ConnectionHarness().readers[0].route
        self.arrival = InboundDelivery(
            Delivery(Envelope(b""), "in", None, False, lambda *_: None), DecodedDelivery(()), route, DeliveryLedger()
        )

    def begin(self, correlation_id: str, seconds: float, *, is_held: bool = True) -> PendingRequest:
        signal = Message(LAMP, "to", "x", "/inbox/messages/x", None, {"correlation-id": correlation_id})
        ended = self.arrival.finish if is_held else None
        return self.collecting.begin(
            signal, RequestedAcks(("live-response",), True, seconds), "live", self.arrival, self.arrival.route, ended
        )


async def test_expired_requests_end_in_the_order_of_their_deadlines() -> None:
    requests = RequestsWithClock()
    for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 9.0)):
        requests.begin(name, seconds)
    requests.clock.advance(3)
    requests.collecting.expire()
    assert requests.finished == ["a", "b", "c"]
    assert (len(requests.collecting), requests.collecting.waiting_deliveries("site")) == (1, 1)
    assert requests.collecting._ended_in_heap == 0, "none of them is in the heap any more"


async def test_an_error_in_finishing_one_request_does_not_stop_others() -> None:
    requests = RequestsWithClock()
    finish = requests.collecting._finish

    def fail_once(pending: PendingRequest) -> None:
        requests.collecting._finish = finish
        raise ZeroDivisionError(pending.correlation_id)

    requests.collecting._finish = fail_once
    for name, seconds in (("a", 0.01), ("b", 0.01), ("c", 0.02)):
        requests.begin(name, seconds)
    with capture_logs() as lines:
        requests.clock.advance(0.01)
        await until(lambda: requests.finished == ["b"])
        requests.clock.advance(0.01)
        await until(lambda: requests.finished == ["b", "c"])
    assert [(line["event"], line["correlation_id"]) for line in lines] == [("finishing a pending request failed", "a")]


async def test_a_deadline_before_that_of_the_timer_is_met() -> None:
    requests = RequestsWithClock()
    requests.begin("long", 60.0)
    requests.begin("short", 0.01)
    requests.clock.advance(0.01)
    await until(lambda: requests.finished == ["short"])


async def test_a_dropped_request_never_ends_and_is_removed_from_the_heap() -> None:
    requests = RequestsWithClock()
    for number in range(3000):
        requests.collecting.drop(requests.begin(str(number), 60.0, is_held=number % 2 == 0))
    assert len(requests.collecting._heap) <= 1001
    requests.clock.advance(61)
    requests.collecting.expire()
    assert (requests.finished, requests.collecting._heap, requests.collecting.waiting_deliveries("site")) == ([], [], 0)


async def test_a_pending_request_can_be_dropped_twice_without_effect() -> None:
    requests = RequestsWithClock()
    pending = requests.begin("a", 1.0)
    for _ in range(2):
        requests.collecting.drop(pending)
    assert requests.collecting.waiting_deliveries("site") == 0
    assert "over" in repr(pending)


async def test_closing_a_connection_removes_only_its_own_requests() -> None:
    requests = RequestsWithClock()
    requests.begin("a", 1.0)
    requests.collecting.closed("another")
    assert len(requests.collecting) == 1
    requests.collecting.closed("site")
    assert (len(requests.collecting), requests.collecting.waiting_deliveries("site")) == (0, 0)


def test_a_timer_that_is_due_at_once_works_on_uvloop() -> None:
    """Timers that are due at once are of another class there and do not report their time."""

    async def wait() -> list[str | None]:
        requests = RequestsWithClock()
        requests.begin("a", 9.0)
        requests.clock.advance(10)
        requests.begin("b", -5.0)
        requests.begin("c", 0.0)
        await until(lambda: len(requests.finished) == 3)
        for made in ConnectionHarness.made:
            await made.close()
        ConnectionHarness.made.clear()
        return requests.finished

    assert uvloop.run(wait()) == ["b", "a", "c"]

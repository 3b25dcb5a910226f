"""The reactive-streams rules for a publisher, by number: on the engine, and over each wire protocol.

If a protocol cannot express a rule, `VOID` has the reason; every other rule is a test on every protocol. The rules for a
subscriber are tested where this service is one (`tests/unit/mappings/reactive_streams_io`).
"""

from __future__ import annotations

import gc
import re
import sys
from typing import Any

import pytest

from connectivity.subscriptions.manager import ActiveSubscription
from tests.support.dice import dice
from tests.support.in_process.all_protocols import STRANGER, AllProtocolsSetup
from tests.support.in_process.service import pause, until
from tests.support.in_process.subscribers import (
    BEGUN,
    COMPLETE,
    PROTOCOLS,
    UNBOUNDED,
    SignalKind,
    SubscriberSignal,
    elements,
    new_subscriber,
)

pytestmark = pytest.mark.usefixtures("harnesses")

RULES = {
    "1.01": "no more elements than were requested",
    "1.02": "fewer than were requested, and the end",
    "1.03": "signals one after the other",
    "1.04": "a failure is reported as a failure",
    "1.05": "the end of a finite stream is reported",
    "1.06": "an end cancels the subscription",
    "1.07": "nothing behind the end",
    "1.08": "a cancel stops the signals",
    "1.09": "the beginning comes first, and to everybody",
    "1.10": "a publisher has any number of subscriptions",
    "1.11": "each subscriber has all elements",
    "2.03": "the end needs no answer, and one does no harm",
    "2.09": "completion with a request before it and without",
    "2.10": "failure with a request before it and without",
    "3.01": "a subscription is its subscriber's alone",
    "3.02": "a request from within a signal",
    "3.03": "no recursion without bound",
    "3.04": "a request does not block",
    "3.05": "a cancel is quick and may be repeated",
    "3.06": "a request behind a cancel brings nothing",
    "3.07": "a cancel behind a cancel does nothing",
    "3.08": "requests add up",
    "3.09": "a request for nothing or less is a failure",
    "3.12": "a cancel stops what is endless",
    "3.13": "after a cancel no object refers to the subscriber",
    "3.17": "demand up to 2^63-1, and no failure above",
}

_NO_DEMAND = "its clients send no demand: the service requests again what the broker has confirmed"
_FOUND = "what is found is finite"
VOID = {
    ("3.08", "Streamr"): _NO_DEMAND,
    ("3.09", "Streamr"): _NO_DEMAND,
    ("3.17", "Streamr"): _NO_DEMAND,
    ("2.09", "Streamr"): "a resend always has its window",
    ("2.10", "Streamr"): "a resend always has its window",
    ("3.12", "Ditto"): "what it streams is finite",
    ("3.12", "Ditto search"): _FOUND,
    ("3.12", "ReactiveStreamsIO search"): _FOUND,
}

ALL = list(PROTOCOLS)
ASKING = [name for name, protocol in PROTOCOLS.items() if protocol.says_demand]
ENDLESS = ["engine", "Streamr", "ReactiveStreamsIO"]

NOTHING_OR_LESS = [
    *((protocol, demand) for protocol in ("engine", "Ditto", "Ditto search") for demand in (0, -1, -(2**63))),
    # A number below zero has no bytes there.
    ("ReactiveStreamsIO", 0),
    ("ReactiveStreamsIO search", 0),
]

over_all = pytest.mark.parametrize("protocol", ALL)
with_explicit_demand = pytest.mark.parametrize("protocol", ASKING)
where_it_is_endless = pytest.mark.parametrize("protocol", ENDLESS)


@pytest.fixture
async def setup(harnesses: list[Any], monkeypatch: pytest.MonkeyPatch, protocol: str) -> AllProtocolsSetup:
    """A setup with a lamp of ten revisions, or with ten lamps where the protocol searches."""
    return await AllProtocolsSetup.filled(monkeypatch, 10, is_searched=protocol.endswith("search"))


# Rules for a publisher.


@over_all
async def test_spec_1_01_no_more_elements_come_than_were_requested(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=3)
    for last in (3, 6, 9):
        await subscriber.received(BEGUN, *elements(*range(1, last + 1)))
        setup.pass_time(5)
        await subscriber.received(BEGUN, *elements(*range(1, last + 1)))
        await subscriber.request(3)
    await subscriber.ended()
    await subscriber.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


@over_all
async def test_spec_1_02_fewer_elements_than_were_requested_and_the_end(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=100)
    await subscriber.has(10)
    await subscriber.ended()
    await subscriber.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


@over_all
async def test_spec_1_03_a_subscriber_gets_its_signals_in_order_while_others_request(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    """Three in one session and one in another; the next to request is drawn at random."""
    first = new_subscriber(setup, protocol)
    await first.subscribe(demand=2)
    subscribers = [first, *(new_subscriber(setup, protocol, beside) for beside in (first, first, None))]
    for each in subscribers[1:]:
        await each.subscribe(demand=2)
    random_source = dice("turns", protocol)
    waiting = list(subscribers)
    while waiting:
        asking = random_source.choice(waiting)
        asking.ask(2)
        if random_source.random() < 0.5:
            await pause(random_source.randrange(60))
        waiting = [each for each in waiting if not each.is_over]
    for each in subscribers:
        await each.received(BEGUN, *elements(*range(1, 11)), COMPLETE)
        assert len(each.orders) <= 1, "what keeps its order on the way is one"


@over_all
async def test_spec_1_04_a_failure_is_reported_once_after_the_elements_before_it(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    setup.fail_behind(4)
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=100)
    await subscriber.ended()
    *before, failure = subscriber.reported
    assert before == [BEGUN, *elements(1, 2, 3, 4)]
    assert failure.kind is SignalKind.FAILED
    assert failure.number >= 500


@over_all
async def test_spec_1_05_the_end_is_reported_with_the_last_element(setup: AllProtocolsSetup, protocol: str) -> None:
    """No request is needed after the last element."""
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=10)
    await subscriber.has(10)
    await subscriber.ended()
    await subscriber.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


@over_all
async def test_spec_1_05_an_empty_stream_completes(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=5, first=11)
    await subscriber.ended()
    await subscriber.received(*[BEGUN] * subscriber.begins_refused, COMPLETE)


@over_all
@pytest.mark.parametrize("ends", [SignalKind.COMPLETE, SignalKind.FAILED])
async def test_spec_1_06_an_end_is_the_end_of_the_subscription(
    setup: AllProtocolsSetup, protocol: str, ends: SignalKind
) -> None:
    if ends is SignalKind.FAILED:
        setup.fail_behind(9)
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=100)
    await subscriber.ended()
    assert subscriber.reported[-1].kind is ends
    await until(lambda: list(setup.streams) == [])


@over_all
@pytest.mark.parametrize("ends", [SignalKind.COMPLETE, SignalKind.FAILED])
async def test_spec_1_07_nothing_comes_after_the_end(setup: AllProtocolsSetup, protocol: str, ends: SignalKind) -> None:
    if ends is SignalKind.FAILED:
        setup.fail_behind(9)
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=100)
    await subscriber.ended()
    before = subscriber.reported
    await setup.grow(3)
    setup.pass_time(5)
    await subscriber.confirmed()
    assert subscriber.reported == before


@over_all
async def test_spec_1_08_a_cancel_stops_the_elements(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=3)
    await subscriber.received(BEGUN, *elements(1, 2, 3))
    subscriber.ask(3)
    await subscriber.cancel()
    before = subscriber.reported
    await pause()
    await subscriber.confirmed()
    assert subscriber.reported == before
    assert subscriber.kinds == [SignalKind.BEGUN, SignalKind.ELEMENT]
    await until(lambda: list(setup.streams) == [])


@over_all
@pytest.mark.parametrize("demand", [0, 5])
async def test_spec_1_09_a_refused_subscriber_gets_the_subscription_and_then_the_error(
    setup: AllProtocolsSetup, protocol: str, demand: int
) -> None:
    stranger = new_subscriber(setup, protocol, subject=STRANGER)
    await stranger.refused(demand)
    if stranger.needs_request and not demand:
        await stranger.received(BEGUN)
        await stranger.request(1)
    await stranger.ended()
    assert stranger.kinds == [SignalKind.BEGUN] * stranger.begins_refused + [SignalKind.FAILED]
    assert len(stranger.reported) == len(stranger.kinds)


@over_all
async def test_spec_1_09_the_beginning_is_reported_first_and_once(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=UNBOUNDED)
    await subscriber.has(10)
    await subscriber.ended()
    assert subscriber.reported[0] == BEGUN
    assert subscriber.reported.count(BEGUN) == 1


@over_all
async def test_spec_1_10_a_second_subscribe_creates_a_second_subscription(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    first = await new_subscriber(setup, protocol).subscribe(demand=3)
    second = await new_subscriber(setup, protocol, first).subscribe(demand=3)
    for each in (first, second):
        await each.received(BEGUN, *elements(1, 2, 3))
    assert len(list(setup.streams)) == 2
    await second.exhausted()
    await second.ended()
    await second.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


@over_all
async def test_spec_1_11_every_subscriber_has_every_element(setup: AllProtocolsSetup, protocol: str) -> None:
    subscribers = [new_subscriber(setup, protocol) for _ in range(4)]
    for pace, each in enumerate(subscribers, 1):
        await each.subscribe(demand=pace)
    for each in subscribers:
        await each.exhausted()
        await each.ended()
        await each.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


# Calls of a subscriber that a publisher must accept.


@over_all
async def test_spec_2_03_a_request_and_a_cancel_after_the_end_do_no_harm(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=100)
    await subscriber.ended()
    before = subscriber.reported
    await subscriber.cancel()
    assert subscriber.reported == before
    await subscriber.request(5)
    late = [SubscriberSignal(SignalKind.FAILED, 400)] if subscriber.answers_late else []
    await subscriber.received(*before, *late)
    other = await new_subscriber(setup, protocol).subscribe(demand=2)
    await other.received(BEGUN, *elements(1, 2))


@with_explicit_demand
async def test_spec_2_09_completion_comes_with_and_without_a_request(setup: AllProtocolsSetup, protocol: str) -> None:
    with_one = await new_subscriber(setup, protocol).subscribe(demand=1, first=11)
    await with_one.received(BEGUN, COMPLETE)
    without = await new_subscriber(setup, protocol).subscribe(first=11)
    if without.needs_request or not without.knows_empty:
        await without.received(BEGUN)
        await without.request(1)
    await without.received(BEGUN, COMPLETE)


@with_explicit_demand
async def test_spec_2_10_failure_comes_with_and_without_a_request(setup: AllProtocolsSetup, protocol: str) -> None:
    with_one = await new_subscriber(setup, protocol).subscribe(demand=1, thing="nothing")
    await with_one.ended()
    assert with_one.kinds == [SignalKind.BEGUN, SignalKind.FAILED]
    without = await new_subscriber(setup, protocol).subscribe(thing="nothing")
    if without.needs_request:
        await without.received(BEGUN)
        await without.request(1)
    await without.ended()
    assert without.kinds == [SignalKind.BEGUN, SignalKind.FAILED]
    assert 400 <= without.reported[-1].number < 500


# Rules for a subscription.


@over_all
async def test_spec_3_01_other_clients_cannot_request_or_cancel_a_subscription(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=3)
    await subscriber.received(BEGUN, *elements(1, 2, 3))
    stranger = new_subscriber(setup, protocol, subject=STRANGER)
    stranger.use_subscription_of(subscriber)
    await pause()
    await stranger.confirmed()
    assert stranger.elements == []
    await subscriber.request(3)
    await subscriber.received(BEGUN, *elements(*range(1, 7)))


@over_all
async def test_spec_3_02_one_request_upon_each_signal_brings_everything(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    """Each request is sent within the call that delivers the element before it."""
    subscriber = new_subscriber(setup, protocol)
    subscriber.request_one_upon_each()
    await subscriber.subscribe(demand=1)
    await subscriber.ended()
    await subscriber.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


@over_all
async def test_spec_3_03_the_stack_does_not_grow_with_the_elements(setup: AllProtocolsSetup, protocol: str) -> None:
    """Requests from within signals, over a history that is deeper than the stack may be."""
    await setup.grow(80)
    subscriber = new_subscriber(setup, protocol)
    subscriber.request_one_upon_each()
    depths: list[int] = []
    subscriber.upon_each(lambda: depths.append(_depth()))
    await subscriber.subscribe(demand=1)
    await subscriber.ended()
    assert subscriber.elements == list(range(1, 91))
    assert len(depths) > 90
    assert max(depths) - min(depths) < 60


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


@over_all
async def test_spec_3_04_a_slow_request_does_not_delay_other_subscribers(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    slow, quick = new_subscriber(setup, protocol), new_subscriber(setup, protocol)
    gate = setup.hold_next_page()
    await slow.subscribe(demand=3)
    await until(lambda: gate.is_reached)
    await quick.subscribe(demand=3)
    await quick.received(BEGUN, *elements(1, 2, 3))
    assert slow.elements == []
    gate.opened.set()
    await slow.received(BEGUN, *elements(1, 2, 3))


@over_all
async def test_spec_3_05_and_3_07_a_cancel_may_be_repeated(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=3)
    await subscriber.received(BEGUN, *elements(1, 2, 3))
    before = subscriber.reported
    for _ in range(3):
        await subscriber.cancel()
        await until(lambda: list(setup.streams) == [])
    await subscriber.confirmed()
    assert subscriber.reported == before


@over_all
async def test_spec_3_06_a_request_after_a_cancel_brings_no_element(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=3)
    await subscriber.received(BEGUN, *elements(1, 2, 3))
    await subscriber.cancel()
    before = subscriber.reported
    await subscriber.request(3)
    late = [SubscriberSignal(SignalKind.FAILED, 400)] if subscriber.answers_late else []
    await subscriber.received(*before, *late)


@with_explicit_demand
async def test_spec_3_08_requests_add_up(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe()
    for demand in (2, 1, 3):
        subscriber.ask(demand)
    await subscriber.received(BEGUN, *elements(*range(1, 7)))


@pytest.mark.parametrize("demanded", [0, 3], ids=["at first", "later"])
@pytest.mark.parametrize(("protocol", "demand"), NOTHING_OR_LESS)
async def test_spec_3_09_a_request_for_nothing_or_less_is_a_failure(
    setup: AllProtocolsSetup, protocol: str, demanded: int, demand: int
) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=demanded)
    await subscriber.has(demanded)
    await subscriber.request(demand)
    failed = SubscriberSignal(SignalKind.FAILED, 400)
    await subscriber.received(BEGUN, *elements(*range(1, demanded + 1)), failed)
    await subscriber.request(3)
    await subscriber.received(BEGUN, *elements(*range(1, demanded + 1)), failed, *[failed] * subscriber.answers_late)
    await until(lambda: list(setup.streams) == [])


@where_it_is_endless
async def test_spec_3_12_a_cancel_stops_an_endless_stream(setup: AllProtocolsSetup, protocol: str) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe(demand=100, follow=True)
    await subscriber.received(BEGUN)
    await subscriber.confirmed()
    await setup.grow(3)
    await subscriber.has(3)
    await subscriber.confirmed()
    await subscriber.received(BEGUN, *elements(11, 12, 13))
    await subscriber.cancel()
    await until(lambda: list(setup.streams) == [])
    await setup.grow(3)
    await subscriber.confirmed()
    await subscriber.received(BEGUN, *elements(11, 12, 13))


@over_all
@pytest.mark.usefixtures("small_heap")
async def test_spec_3_13_the_references_to_a_canceled_subscriber_are_released(
    setup: AllProtocolsSetup, protocol: str
) -> None:
    for _ in range(20):
        subscriber = await new_subscriber(setup, protocol).subscribe(demand=3)
        await subscriber.has(3)
        await subscriber.cancel()
        await subscriber.confirmed()
    assert {live.feed for live in _lives(setup)} <= {None}
    # Late commands are answered for a minute; after that the feed becomes idle at the next second.
    setup.pass_time(65)
    assert _lives(setup) == []


@pytest.fixture
def small_heap() -> None:
    """Freeze objects of earlier tests, so that the garbage collector skips them."""
    gc.freeze()


def _lives(setup: AllProtocolsSetup) -> list[ActiveSubscription]:
    """Return the subscriptions of the connection that are in memory."""
    gc.collect()
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, ActiveSubscription) and each.connection_id == setup.connection.id
    ]


@with_explicit_demand
@pytest.mark.parametrize(
    "demands",
    [(UNBOUNDED,), (UNBOUNDED - 1, 1), (UNBOUNDED, 5), (UNBOUNDED, UNBOUNDED, UNBOUNDED), (2, UNBOUNDED, 1)],
    ids=["at once", "together", "more", "much more", "in between"],
)
async def test_spec_3_17_demand_is_capped_and_no_amount_is_refused(
    setup: AllProtocolsSetup, protocol: str, demands: tuple[int, ...]
) -> None:
    subscriber = await new_subscriber(setup, protocol).subscribe()
    for demand in demands:
        subscriber.ask(demand)
    await subscriber.received(BEGUN, *elements(*range(1, 11)), COMPLETE)


# Whether that is all.


def _covered() -> set[tuple[str, str]]:
    """Return the rules with the protocols they are tested over, by names and marks of the tests above."""
    covered = set()
    for name, test in globals().items():
        if name.startswith("test_spec_"):
            rules = re.findall(r"(\d)_(\d\d)(?=_)", name)
            covered |= {(f"{part}.{rule}", each) for part, rule in rules for each in _protocols(test)}
    return covered


def _protocols(test: Any) -> set[str]:
    """Return the protocols of a test, by its marks."""
    marks = [mark for mark in test.pytestmark if "protocol" in mark.args[0]]
    return {value if mark.args[0] == "protocol" else value[0] for mark in marks for value in mark.args[1]}


def test_every_rule_is_a_test_over_every_protocol_that_can_express_it() -> None:
    wanted = {(rule, protocol) for rule in RULES for protocol in ALL}
    assert _covered() == wanted - VOID.keys()

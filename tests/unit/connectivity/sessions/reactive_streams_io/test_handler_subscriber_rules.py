"""The reactive-streams rules for a subscriber, by number, for ingest streams of the service.

`tests/unit/mappings/reactive_streams_io` tests the protocol machine; these tests go from the bytes of a client to the events
of a thing.
"""

from __future__ import annotations

import re

import pytest

from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Frame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnSubscribe,
    RequestFrame,
    ServerHello,
    SubscribeFrame,
)
from tests.support.in_process.reactive_streams_io import H, RsioHarness, raw
from tests.support.in_process.service import pause, turn, until

pytestmark = pytest.mark.usefixtures("harnesses")

WANTED = SubscribeFrame("ingest/telemetry", 1, 256)
GONE = OnError(1, "404 things:thing.notfound It is gone.")

RULES = {
    "2.01": "elements are sent only on request",
    "2.03": "nothing is sent to a client that has ended",
    "2.04": "an end is treated as a cancel",
    "2.05": "a second start of a stream is rejected",
    "2.06": "an unusable stream is cancelled",
    "2.08": "elements after a cancel are ignored",
    "2.09": "completion with a request before it and without",
    "2.10": "failure with a request before it and without",
    "2.11": "elements are carried out in the order of arrival",
    "2.12": "a stream starts once",
    "2.13": "no input of a client raises an exception",
}

VOID = {
    "2.02": "whether a subscriber works synchronously cannot be observed",
    "2.07": "the service requests and cancels from one task",
}


async def taking(*begun: Frame) -> RsioHarness:
    """A quay with a lamp that ingests, and a client at `a` that was asked and has answered this."""
    rsio_harness = await RsioHarness.filled(revisions=1, options={"ingest": ["telemetry"]})
    rsio_harness.send("a", H)
    hello, asked = await rsio_harness.framed("a", 2)
    assert isinstance(hello, ServerHello)
    assert asked == WANTED
    if begun:
        rsio_harness.send("a", *begun)
    await rsio_harness.settled(1 + bool(begun))
    rsio_harness.forget()
    return rsio_harness


def turns(*numbers: int) -> bytes:
    """Return frames that set the lamp to these numbers."""
    return raw(*(OnNext(1, turn(number)) for number in numbers))


async def holds(rsio_harness: RsioHarness, messages: int, *values: int) -> None:
    """Wait until the messages are settled; check the values of the lamp."""
    await rsio_harness.settled(messages)
    await pause()
    assert rsio_harness.values() == list(values)


async def test_spec_2_01_elements_that_were_not_requested_are_not_accepted() -> None:
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.disk.hold()
    rsio_harness.send("a", turns(*range(256)))
    rsio_harness.send("a", turns(256, 257))
    await until(lambda: rsio_harness.frames("a"))
    rsio_harness.disk.release()
    await holds(rsio_harness, 2, *range(256))
    assert rsio_harness.frames("a") == [CancelFrame(1)]


async def test_spec_2_01_more_is_requested_when_it_can_be_used() -> None:
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.send("a", turns(*range(127)))
    await holds(rsio_harness, 1, *range(127))
    assert rsio_harness.frames("a") == []
    rsio_harness.send("a", turns(127))
    await until(lambda: rsio_harness.frames("a"))
    assert rsio_harness.frames("a") == [RequestFrame(1, 128)]


@pytest.mark.parametrize("end", [OnComplete(1), GONE])
async def test_spec_2_03_and_2_04_nothing_is_sent_to_a_client_that_has_ended(end: Frame) -> None:
    """Nothing of it is accepted either, except the frames before the end."""
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.disk.hold()
    rsio_harness.send("a", turns(*range(200)), end)
    rsio_harness.send("a", turns(200, 201))
    await pause()
    rsio_harness.disk.release()
    await holds(rsio_harness, 2, *range(200))
    rsio_harness.clock.advance(400)
    rsio_harness.sweep_sessions()
    await pause()
    assert rsio_harness.frames("a") == []


async def test_spec_2_05_a_second_start_of_a_stream_is_rejected() -> None:
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.send("a", turns(1), OnSubscribe(1, 0), turns(2))
    await until(lambda: rsio_harness.frames("a"))
    (goodbye,) = rsio_harness.frames("a")
    assert isinstance(goodbye, Goodbye)
    assert goodbye.reason.startswith("protocol error: ")
    await holds(rsio_harness, 1, 1)


async def test_spec_2_06_a_stream_of_unusable_elements_is_cancelled() -> None:
    """Parts of more elements than may be open at a time."""
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.send("a", turns(1), *(f"84 01 {element:02x} 01 7b" for element in range(17)), turns(2))
    await until(lambda: rsio_harness.frames("a"))
    await holds(rsio_harness, 1, 1)
    assert rsio_harness.frames("a") == [CancelFrame(1)]


async def test_spec_2_08_elements_after_a_cancel_are_ignored() -> None:
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.send("a", *(f"84 01 {element:02x} 01 7b" for element in range(17)))
    await until(lambda: CancelFrame(1) in rsio_harness.frames("a"))
    rsio_harness.send("a", turns(1), "84 01 11 01 61 85 01 11 01 62", turns(2), OnComplete(1))
    rsio_harness.send("a", "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d 31 01 01")
    await until(lambda: OnComplete(1) in rsio_harness.frames("a"))
    await holds(rsio_harness, 3)
    assert rsio_harness.frames("a") == [CancelFrame(1), OnSubscribe(1, 0), OnNext(1, b"1"), OnComplete(1)]


@pytest.mark.parametrize("end", [OnComplete(1), GONE])
@pytest.mark.parametrize("elements", [0, 128], ids=["without a request", "with one"])
async def test_spec_2_09_and_2_10_an_end_comes_with_and_without_a_request(end: Frame, elements: int) -> None:
    """The demand of the subscribe is there in any case."""
    rsio_harness = await taking(OnSubscribe(1, 0))
    if elements:
        rsio_harness.send("a", turns(*range(elements)))
        await until(lambda: RequestFrame(1, 128) in rsio_harness.frames("a"))
    rsio_harness.send("a", end)
    await holds(rsio_harness, 1 + bool(elements), *range(elements))
    assert len(rsio_harness.frames("a")) == bool(elements)
    rsio_harness.send("a", "12 09 01")
    await holds(rsio_harness, 2 + bool(elements), *range(elements))
    assert len(rsio_harness.frames("a")) == bool(elements), "the session is there"


async def test_spec_2_11_elements_are_carried_out_in_the_order_in_which_they_came() -> None:
    rsio_harness = await taking(OnSubscribe(1, 0))
    for first in range(0, 120, 7):
        rsio_harness.send("a", turns(*range(first, first + 7)))
    await holds(rsio_harness, 18, *range(126))


async def test_spec_2_12_on_subscribe_is_accepted_once_for_each_subscribe() -> None:
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.send("a", turns(1), OnError(1, "500 gone"))
    rsio_harness.clock.advance(1.1)
    rsio_harness.sweep_sessions()
    await until(lambda: SubscribeFrame("ingest/telemetry", 2, 256) in rsio_harness.frames("a"))
    rsio_harness.send("a", OnSubscribe(2, 0), raw(OnNext(2, turn(2))))
    await holds(rsio_harness, 2, 1, 2)


@pytest.mark.parametrize(
    "element",
    [b"", b"\x00", b"null", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"topic":1}', b'{"topic":"a/b/c"}', b"[" * 300],
)
async def test_spec_2_13_no_input_of_a_client_raises_an_exception(element: bytes) -> None:
    """An element that means nothing takes its place among the others, which count."""
    rsio_harness = await taking(OnSubscribe(1, 0))
    rsio_harness.send("a", turns(1), OnNext(1, element), turns(2))
    await holds(rsio_harness, 1, 1, 2)
    rsio_harness.send("a", turns(3))
    await holds(rsio_harness, 2, 1, 2, 3)
    assert rsio_harness.frames("a") == []


def test_every_rule_is_a_test() -> None:
    tested = {f"{part}.{rule}" for name in globals() for part, rule in re.findall(r"(\d)_(\d\d)(?=_)", name)}
    assert tested == RULES.keys()
    assert sorted([*RULES, *VOID]) == [f"2.{number:02}" for number in range(1, 14)]

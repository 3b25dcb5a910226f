"""Elements of reactive-streams-io in CBOR, for `enc=cbor`, compared with the same elements in JSON."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectivity.sessions.reactive_streams_io.publishers import cbor
from mappings.reactive_streams_io.frames import Frame, OnComplete, OnError, OnNext
from tests.support.in_process.reactive_streams_io import HISTORY, H, RsioHarness, subscribe
from tests.support.in_process.service import LAMP, command, turn, until
from tests.support.in_process.streamr import StreamrHarness
from tests.support.in_process.two_protocols import add_rsio_connection
from tests.support.table import each_row

EVENTS = f"things/{LAMP}/events"

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def elements(frames: list[Frame], stream: int) -> list[bytes]:
    return [frame.element for frame in frames if isinstance(frame, OnNext) and frame.subscriber == stream]


@each_row(
    ("text", "raw"),
    [
        (b"0", "00"),
        (b"-1", "20"),
        (b"1000000", "1a000f4240"),
        (b"18446744073709551615", "1bffffffffffffffff"),
        (b"1.1", "fb3ff199999999999a"),
        (b"100000.0", "fb40f86a0000000000"),
        (b"true", "f5"),
        (b"null", "f6"),
        ('"ü"'.encode(), "62c3bc"),
        (b"[1,[2,3]]", "8201820203"),
        (b'{"b":[],"a":1}', "a2616280616101"),
    ],
)
def test_a_value_has_the_bytes_of_the_standard(text: bytes, raw: str) -> None:
    assert cbor(text).hex() == raw


@given(VALUES)
def test_a_value_in_cbor_is_the_value_in_json(value: Any) -> None:
    text = json.dumps(value).encode()
    found = cbor2.loads(cbor(text))
    assert json.dumps(found) == json.dumps(json.loads(text))


@pytest.mark.usefixtures("harnesses")
async def test_every_publisher_of_json_brings_the_same_in_cbor() -> None:
    rsio_harness = await RsioHarness.filled(revisions=2)
    changed = await rsio_harness.dispatch(
        command("modify", "/attributes", {"on": 1.5, "x": ["ä", None, True, 2**63 - 1]})
    )
    assert changed["status"] == 204
    policies = HISTORY.replace("things", "policies")
    publishers = (HISTORY, policies, "things/search", "things/search?unit=thing", "tck/range?n=3", EVENTS)
    both = [each for name in publishers for each in (name, f"{name}{'&' if '?' in name else '?'}enc=cbor")]
    rsio_harness.send("a", H, *(subscribe(each, at, 100) for at, each in enumerate(both, 1)))
    await until(lambda: sum(isinstance(frame, OnComplete) for frame in rsio_harness.frames("a")) == 10)
    await rsio_harness.dispatch(turn(7))
    await until(lambda: elements(rsio_harness.frames("a"), 11) and elements(rsio_harness.frames("a"), 12))
    frames = rsio_harness.frames("a")
    assert not any(isinstance(frame, OnError) for frame in frames)
    for stream in range(1, 13, 2):
        expected = [json.loads(each) for each in elements(frames, stream)]
        assert expected
        assert [cbor2.loads(each) for each in elements(frames, stream + 1)] == expected, both[stream]


@pytest.mark.usefixtures("harnesses")
async def test_messages_of_streams_are_the_same_arrays_in_cbor() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3)
    rsio_harness = await add_rsio_connection(streamr_harness)
    names = ("streams/tank/0?resend_all=true", "streams/tank/0?resend_all=true&enc=cbor")
    rsio_harness.send("a", H, *(subscribe(each, at, 100) for at, each in enumerate(names, 1)))
    await until(lambda: len(elements(rsio_harness.frames("a"), 2)) == 3)
    await streamr_harness.publish(1)
    await until(lambda: len(elements(rsio_harness.frames("a"), 1)) == 4 == len(elements(rsio_harness.frames("a"), 2)))
    frames = rsio_harness.frames("a")
    assert [cbor2.loads(each) for each in elements(frames, 2)] == [json.loads(each) for each in elements(frames, 1)]


@pytest.mark.usefixtures("harnesses")
@pytest.mark.parametrize(
    "publisher",
    [
        f"{HISTORY}?project=/attributes/on&pack=f64&enc=cbor",
        "tck/fixed?n=2&size=4&enc=cbor",
        "tck/big?bytes=9&enc=cbor",
    ],
)
async def test_a_publisher_of_bytes_refuses_another_encoding(publisher: str) -> None:
    rsio_harness = await RsioHarness.filled(revisions=1)
    rsio_harness.send("a", H, subscribe(publisher, 1, 9))
    *_, error = await rsio_harness.framed("a", 3)
    assert isinstance(error, OnError)
    assert error.error == (
        "400 rsio:publisher.invalid Found enc=cbor, expected no enc, because this publisher sends bytes instead of JSON."
    )

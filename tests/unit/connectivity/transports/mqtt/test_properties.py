"""Packing properties agrees with the client library's, and malformed bytes are refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connectivity.transports.mqtt import properties as packed
from connectivity.transports.mqtt.topics import text_fault
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row

TEXTS = st.text(max_size=50).filter(lambda text: text_fault(text) is None)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), TEXTS, TEXTS, st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_the_library_reads_the_properties_that_we_pack(
    users: list[tuple[str, str]], kind: str, topic: str, correlation: bytes, expiry: int
) -> None:
    content = b"".join(
        (
            *(packed.pack_user(*user) for user in users),
            packed.pack_text(packed.CONTENT_TYPE, kind),
            packed.pack_text(packed.RESPONSE_TOPIC, topic),
            packed.pack_binary(packed.CORRELATION_DATA, correlation),
            packed.pack_expiry(expiry),
        )
    )
    theirs: Any = Properties(PacketTypes.PUBLISH)
    theirs.unpack(packed.pack_varint(len(content)) + content)
    assert getattr(theirs, "UserProperty", []) == users
    assert (theirs.ContentType, theirs.ResponseTopic) == (kind, topic)
    assert (theirs.CorrelationData, theirs.MessageExpiryInterval) == (correlation, expiry)
    assert packed.unpack(content) == packed.PublishProperties(expiry, kind, topic, correlation, (), tuple(users))


def test_we_read_the_properties_that_the_library_packs() -> None:
    theirs: Any = Properties(PacketTypes.PUBLISH)
    theirs.PayloadFormatIndicator = 1
    theirs.TopicAlias = 3
    theirs.SubscriptionIdentifier = [1, 200, 20_000]
    theirs.UserProperty = [("a", "b"), ("a", "c")]
    content = theirs.pack()
    length, start = packed.unpack_varint(content, 0)
    assert length == len(content) - start
    found = packed.unpack(content[start:])
    assert (found.subscriptions, found.users) == ((1, 200, 20_000), (("a", "b"), ("a", "c")))


@each_row("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_variable_byte_integers_are_decoded_as_encoded(value: int) -> None:
    content = packed.pack_varint(value)
    assert packed.unpack_varint(b"\xff" + content, 1) == (value, 1 + len(content))


USERS = st.builds(packed.pack_user, TEXTS, TEXTS)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=60) | st.builds(bytes.__add__, USERS, USERS | st.binary(max_size=3)))
def test_no_bytes_do_worse_than_be_malformed(content: bytes) -> None:
    try:
        found = packed.unpack(content)
    except packed.MalformedProperty:
        return
    accepted()
    assert isinstance(found, packed.PublishProperties)


@pytest.mark.parametrize(
    "content", [b"\x03\x00\x05json", b"\x02\x00\x00", b"\x0b\xff\xff\xff\xff\x01", b"\x11\x00", b"\x26\x00\x01a"]
)
def test_cut_off_or_foreign_properties_are_malformed(content: bytes) -> None:
    with pytest.raises(packed.MalformedProperty):
        packed.unpack(content)


@pytest.mark.parametrize("text", ["\n", "\x00", "\x85", "\ud800", "\ufdd0", "\U0001ffff"])
def test_a_character_that_a_broker_may_refuse_is_replaced(text: str) -> None:
    assert packed.unpack(packed.pack_user(text, f"x{text}")).users == (("\ufffd", "x\ufffd"),)


def test_a_text_that_is_too_long_is_not_packed() -> None:
    with pytest.raises(packed.MalformedProperty):
        packed.pack_user("x", "x" * 65536)


def test_long_texts_of_clients_do_not_stay_in_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(50):
            packed.pack_user("x", f"{number}".ljust(60_000))
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_000_000

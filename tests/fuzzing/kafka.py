"""The parsers of Kafka: headers of records, publish addresses, and the broker's login response.

The library parses the packets; a record is drawn from the bytes as the library passes it on.
"""

from __future__ import annotations

from typing import Any, cast

from confluent_kafka import Message

from connectivity.errors import ConnectionRefused, PublishFailed
from connectivity.transports.kafka.handshake import _check_login, read_login
from connectivity.transports.kafka.records import (
    CORRELATION_ID,
    KEY,
    TOPIC,
    TOPIC_NAME,
    envelope_of,
    is_expired,
    parse_client_address,
    record_headers,
    split_address,
)
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import target
from tests.support.kafka_record import Record

_NAMES = ("correlation-id", "creation-time", "ttl", "kafka.topic", "kafka.key", "content-type", "a", "", "ä")


def _record(reader: ByteReader) -> Record:
    time = reader.byte()
    key = reader.take() if reader.flag() else None
    headers = [(reader.text(_NAMES), reader.take() if reader.byte() < 240 else None) for _ in range(reader.below(8))]
    is_invalid = any("\ufffd" in name for name, _ in headers)
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    return Record(error if is_invalid else headers, value=reader.rest() or None, key=key, time=time)


def read_record(data: bytes) -> None:
    record: Any = _record(ByteReader(data))
    envelope = envelope_of(cast(Message, record), "in")
    assert envelope.headers[TOPIC] == "in"
    assert envelope.headers[CORRELATION_ID] is not None
    assert (KEY in envelope.headers) >= (record.key() is not None)
    is_expired(envelope, 2e9)
    published = dict(record_headers(envelope.headers, ()))
    assert {name: value.decode() for name, value in published.items() if isinstance(value, bytes)} == envelope.headers
    _read_answer(data)
    _read_address(data.decode("utf-8", "replace"))


def _read_answer(data: bytes) -> None:
    login = read_login(data)
    assert sum(map(len, login.mechanisms)) + 2 * len(login.mechanisms) <= len(data)
    for has_login in (True, False):
        try:
            _check_login(login, "PLAIN", has_login=has_login)
        except ConnectionRefused:
            assert login.mechanisms or login.code


def _read_address(text: str) -> None:
    parts = split_address(text)
    try:
        address = parse_client_address(text)
    except PublishFailed:
        return
    assert TOPIC_NAME.fullmatch(address.topic)
    assert address.topic == parts.topic
    assert address.partition == -1 or address.key is None


TARGETS = {
    "kafka": target(
        read_record,
        [
            b"\x07\x01\x01k\x03\x00\x03c-1\x00\x01\x041000\x00\x02\x02500\x00{}",
            b"\x00\x00\x00",
            b"\x00\x00\x00\x00\x00\x01\x00\x05PLAIN",
            b"\x00\x21\x00\x00\x00\x02\x00\x05PLAIN\x00\x0dSCRAM-SHA-256",
            b"topic/key",
            b"topic#2147483647",
            b"..",
        ],
        (b"#", b"/", b"\x00\x00\x00\x01", b"\xff\xff", b"PLAIN", b"-1", b"9999999999999"),
    ),
}

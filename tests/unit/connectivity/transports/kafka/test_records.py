"""Headers, times and texts of Kafka records, valid and invalid."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.transports.kafka.records import UnreadableRecord, envelope_of, is_expired, size_of
from mappings.model.envelope import Envelope
from tests.support.kafka_record import Record
from tests.support.table import each_row


def read(headers: Any, **more: Any) -> Envelope:
    return envelope_of(Record(headers, **more), "in")  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [SystemError("returned a result with an exception set"), ValueError()])
def test_headers_that_the_library_cannot_decode_are_omitted_and_logged(failure: Exception) -> None:
    """A name that is no UTF-8 is an exception there."""
    if isinstance(failure, ValueError):
        failure = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    with capture_logs() as logs:
        envelope = read(failure)
    assert set(envelope.headers) == {"correlation-id", "kafka.topic", "kafka.timestamp"}
    [line] = logs
    assert (line["log_level"], line["address"], line["partition"], line["offset"]) == ("warning", "in", 3, 12)


def test_headers_that_the_library_cannot_decode_are_asked_for_once() -> None:
    """It keeps the half of them, and reading that ends the process."""
    record: Any = Record(SystemError("returned a result with an exception set"))
    with capture_logs() as logs:
        assert size_of(record) == 2
        assert set(envelope_of(record, "in").headers) == {"correlation-id", "kafka.topic", "kafka.timestamp"}
    assert len(logs) == 1


def test_the_size_of_a_record_is_that_of_value_key_and_headers() -> None:
    record: Any = Record([("a", b"123"), ("none", None)], value=b"12345", key=b"lamp-7")
    assert size_of(record) == 5 + 6 + 4 + 4
    assert size_of(Record(None, value=None)) == 0  # type: ignore[arg-type]
    assert size_of(UnreadableRecord(7)) == 0


def test_a_tombstone_without_headers_key_and_time_is_an_empty_envelope() -> None:
    envelope = read(None, value=None, time=0)
    assert envelope.payload == b""
    assert set(envelope.headers) == {"correlation-id", "kafka.topic"}


def test_texts_that_are_no_utf_8_are_replaced() -> None:
    envelope = read([("a", b"\xff"), ("b", None), ("a", b"x\xfe")], key=b"\x00\xff")
    assert (envelope.headers["a"], envelope.headers["kafka.key"]) == ("x\ufffd", "\x00\ufffd")
    assert "b" not in envelope.headers


def test_a_correlation_id_in_upper_case_is_not_replaced_by_a_generated_one() -> None:
    envelope = read([("Correlation-Id", b"c-1")])
    assert (envelope.header("correlation-id"), len(envelope.headers)) == ("c-1", 3)
    assert envelope.has_own_id
    assert not read([]).has_own_id


def test_headers_of_a_record_are_not_read_as_its_key_topic_and_time() -> None:
    envelope = read(
        [("kafka.key", b"k"), ("Kafka.Key", b"k"), ("kafka.topic", b"t"), ("kafka.timestamp", b"1")], time=0
    )
    assert set(envelope.headers) == {"correlation-id", "kafka.topic"}
    assert envelope.headers["kafka.topic"] == "in"


@each_row(
    ("created", "ttl", "expected"),
    [
        ("1000", "500", True),
        ("1000", "501", False),
        ("soon", "1", False),
        ("1000", "", False),
        ("9" * 400, "1", False),
        ("-" + "9" * 400, "1", True),
        ("1000", "9" * 400, False),
        ("9" * 5000, "1", False),
        ("nan", "inf", False),
        ("1_0", "5_0", False),
        ("\u0661", "\u0661", False),
    ],
)
def test_a_message_expires_only_if_its_time_to_live_is_a_whole_number(created: str, ttl: str, expected: bool) -> None:
    assert is_expired(Envelope(b"", {"creation-time": created, "ttl": ttl}), now=1.5) is expected


def test_a_message_expires_with_any_spelling_of_the_header_names() -> None:
    assert is_expired(Envelope(b"", {"Creation-Time": "1000", "TTL": "1"}), now=1.5)

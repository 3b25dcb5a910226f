"""Errors of reading that last, with a fake clock."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from connectivity.transports.kafka.read_errors import MEMORY, PATIENCE, ReadErrors
from tests.support.clock import Clock

DAMAGED = KafkaError(KafkaError._BAD_MSG, "offset 7 failed its check")
TEXT = "alarms: offset 7 failed its check"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(6_000)
    monkeypatch.setattr("connectivity.transports.kafka.read_errors.time.monotonic", clock.now)
    return clock


def test_a_repeated_error_is_a_condition_and_logged_once(clock: Clock) -> None:
    errors = ReadErrors()
    with capture_logs() as logs:
        for _ in range(30):
            errors.note(DAMAGED, "alarms")
            clock.advance(0.5)
    assert errors.lasting == f"connected: records cannot be read: {TEXT}"
    assert [(entry["event"], entry["error"]) for entry in logs] == [("records cannot be read", TEXT)]
    clock.advance(MEMORY)
    assert errors.lasting is None


def test_a_short_error_and_one_that_occurs_again_much_later_are_no_conditions(clock: Clock) -> None:
    errors = ReadErrors()
    errors.note(DAMAGED, "alarms")
    clock.advance(PATIENCE / 2)
    errors.note(DAMAGED, "alarms")
    assert errors.lasting is None
    clock.advance(MEMORY + 1)
    errors.note(DAMAGED, "alarms")
    assert errors.lasting is None

"""The ends of newly assigned Kafka partitions."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from connectivity.transports.kafka import group as module

LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class End(NamedTuple):
    offset: int


class Admin:
    """Answers each request with the next error, and at last with the offset 7."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.requests = 0

    def list_offsets(self, wanted: dict[TopicPartition, object]) -> dict[TopicPartition, Future[End]]:
        self.requests += 1
        answer: Future[End] = Future()
        if self.errors:
            answer.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            answer.set_result(End(7))
        return dict.fromkeys(wanted, answer)


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_DELAY", 0.0)


def ends(admin: Any) -> dict[tuple[str, int], int]:
    return module.list_offsets(admin, [TopicPartition("alarms", 1)], LATEST)


def test_the_ends_are_asked_for_again_while_a_leader_changes() -> None:
    """The broker refuses the epoch of a former leader, as after it was restarted."""
    admin = Admin(KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
    assert ends(admin) == {("alarms", 1): 7}
    assert admin.requests == 3


def test_other_errors_are_raised_at_once() -> None:
    admin = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        ends(admin)
    assert admin.requests == 1


def test_a_leader_that_changes_for_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESPONSE_TIMEOUT", 0.0)
    with pytest.raises(KafkaException):
        ends(Admin(*[KafkaError.LEADER_NOT_AVAILABLE] * 9))

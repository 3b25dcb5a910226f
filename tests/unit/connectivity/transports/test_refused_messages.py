"""The failures of a message that are refusals by the broker, so that messages to other addresses pass."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from connectivity.errors import MessageRefused, PublishFailed
from connectivity.transports.amqp.errors import refusal_error, unroutable_error
from connectivity.transports.amqp.frames import Reason
from connectivity.transports.kafka.errors import message_error
from connectivity.transports.mqtt.errors import refused_message

TOPIC = "topic alarms: no"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (unroutable_error(Reason(312, "NO_ROUTE"), "", "q"), "missing address: queue 'q' does not exist: NO_ROUTE"),
        (refusal_error(Reason(403, "ACCESS_REFUSED")), "not authorized: ACCESS_REFUSED"),
        (refused_message(135), "not authorized: the broker refused the message: Not authorized"),
        (message_error(KafkaError(KafkaError._UNKNOWN_TOPIC, "no"), "alarms"), f"missing address: {TOPIC}"),
        (message_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no"), "alarms"), f"missing address: {TOPIC}"),
        (message_error(KafkaError(KafkaError._UNKNOWN_PARTITION, "no"), "alarms"), f"missing address: {TOPIC}"),
        (
            message_error(KafkaError(KafkaError._DESTROY, "no"), "alarms"),
            "missing address: topic alarms: the partition no longer exists",
        ),
        (message_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"), "alarms"), f"not authorized: {TOPIC}"),
        (message_error(KafkaError(KafkaError.UNKNOWN, "no"), "alarms"), f"refused by broker: {TOPIC}"),
        (message_error(KafkaError(KafkaError.INVALID_TIMESTAMP, "no"), "alarms"), f"refused by broker: {TOPIC}"),
    ],
)
def test_a_refusal_that_may_concern_the_address_alone_is_temporary(error: PublishFailed, text: str) -> None:
    assert isinstance(error, MessageRefused)
    assert (str(error), error.fault.status) == (text, 503)


@pytest.mark.parametrize(
    ("code", "status"),
    [(KafkaError.MSG_SIZE_TOO_LARGE, 413), (KafkaError._UNKNOWN_PARTITION, 400), (KafkaError._MSG_TIMED_OUT, 400)],
)
def test_other_failures_of_a_record_are_no_refusals_of_its_address(code: int, status: int) -> None:
    error = message_error(KafkaError(code, "no"), "alarms", has_partition=True)
    assert (type(error), error.fault.status) == (PublishFailed, status)

"""Converts the client library's errors into errors of links and messages."""

from __future__ import annotations

from confluent_kafka import KafkaError

from connectivity.errors import ConnectionRefused, Detail, LinkError, MessageRefused, NotConnected, PublishFailed

ALL_DOWN = KafkaError._ALL_BROKERS_DOWN

REFUSALS = {
    KafkaError._AUTHENTICATION: Detail.BAD_CREDENTIALS,
    KafkaError.SASL_AUTHENTICATION_FAILED: Detail.BAD_CREDENTIALS,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: Detail.BAD_CREDENTIALS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Detail.NOT_AUTHORIZED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Detail.NOT_AUTHORIZED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Detail.NOT_AUTHORIZED,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Detail.MISSING_ADDRESS,
    KafkaError._UNKNOWN_TOPIC: Detail.MISSING_ADDRESS,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: Detail.REFUSED_BY_BROKER,
    KafkaError.INVALID_GROUP_ID: Detail.REFUSED_BY_BROKER,
    KafkaError.UNSUPPORTED_VERSION: Detail.REFUSED_BY_BROKER,
    KafkaError._UNSUPPORTED_FEATURE: Detail.REFUSED_BY_BROKER,
}
"""Errors that an operator has to fix."""

PRODUCER_LOST = {
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError._FENCED,
}
"""The broker has lost the state of an idempotent producer, as after data loss; a new one may continue."""

ENDS = {KafkaError._FATAL, KafkaError._MAX_POLL_EXCEEDED, KafkaError.FENCED_INSTANCE_ID, *PRODUCER_LOST, *REFUSALS}
"""Errors that the library does not recover from, with a specific reason.

For all others a probe finds more (`connectivity.transports.kafka.handshake`).
"""

VAGUE = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
"""Errors that follow from others, such as a refused login or certificate."""

_LOST_WORDS = tuple(KafkaError(code).str() for code in VAGUE)

LINK_CAUSED_ERRORS = {KafkaError._FATAL, *PRODUCER_LOST}
"""Errors of messages that are caused by the link and not by the message."""

TEMPORARY_ERRORS = {
    KafkaError.UNKNOWN,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.INVALID_TIMESTAMP,
}
"""Errors of messages that may not occur again, but that the library does not retry.

A timestamp is invalid if the clocks of the service and of the broker differ; a message that is sent again has a new one.
"""

SIZE_ERRORS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}

_CERTIFICATE_WORDS = ("certificate", "unknown ca", "unknown_ca", "verify", "hostname mismatch")


def code_of(error: KafkaError) -> int:
    """Return the code of an error; of a connection that was lost during a login, that of a lost one.

    The library reports that as a refused login.
    """
    code = error.code()
    if code == KafkaError._AUTHENTICATION and any(words in error.str() for words in _LOST_WORDS):
        return KafkaError._TRANSPORT
    return code


def link_error(error: KafkaError, subject: str = "") -> LinkError:
    """Return the error of a failed or lost link. `subject` is the topic that it is about."""
    words = f"{subject}: {error.str()}" if subject else error.str()
    code = code_of(error)
    if code == KafkaError._SSL:
        if any(word in words.lower() for word in _CERTIFICATE_WORDS):
            return ConnectionRefused(Detail.CERTIFICATE, words)
        return NotConnected(Detail.REFUSED_BY_BROKER, words)
    if code in REFUSALS:
        return ConnectionRefused(REFUSALS[code], words)
    if code == KafkaError._RESOLVE:
        return NotConnected(Detail.UNKNOWN_HOST, words)
    if code in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT):
        return NotConnected(Detail.TIMEOUT, words)
    if code == KafkaError._TRANSPORT and "refused" in words.lower():
        return NotConnected(Detail.REFUSED, words)
    if code == KafkaError._TRANSPORT and "timed out" in words.lower():
        return NotConnected(Detail.TIMEOUT, words)
    return NotConnected(Detail.CONNECTING, words)


def telling(error: KafkaError) -> int:
    """Return how specific an error is; of two the more specific, or else the later, is kept.

    A lost link first shows as "disconnected" and then with the broker's state; a refused login or certificate first
    shows as itself and then as disconnects.
    """
    if code_of(error) not in VAGUE:
        return 2
    return 0 if link_error(error).detail is Detail.CONNECTING else 1


def message_error(error: KafkaError, topic: str, *, has_partition: bool = False) -> PublishFailed:
    """Return the error for a message that the broker refused.

    `has_partition`: its address names a partition.
    """
    words = f"topic {topic}: {error.str()}"
    if error.code() == KafkaError._DESTROY:
        # The library's text is about a broker, but it means the queue of a partition.
        return MessageRefused(f"{Detail.MISSING_ADDRESS.value}: topic {topic}: the partition no longer exists")
    if error.code() == KafkaError._UNKNOWN_PARTITION and not has_partition:
        # The topic was deleted, or created again with fewer partitions.
        return MessageRefused(f"{Detail.MISSING_ADDRESS.value}: {words}")
    if error.code() in SIZE_ERRORS:
        return PublishFailed(words, status=413)
    if error.code() in REFUSALS:
        return MessageRefused(f"{REFUSALS[error.code()].value}: {words}")
    if error.code() in TEMPORARY_ERRORS:
        return MessageRefused(f"{Detail.REFUSED_BY_BROKER.value}: {words}")
    return PublishFailed(words, status=400)

"""What the client library's errors mean for a link and for a message."""

from __future__ import annotations

from confluent_kafka import KafkaError

from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, PublishFailed

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
"""Errors that an operator has to see to."""

PRODUCER_LOST = {
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError._FENCED,
}
"""The broker has lost count of an idempotent producer, as after a restart that cost it records. A new one may go on."""

ENDS = {
    KafkaError._FATAL,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.FENCED_INSTANCE_ID,
    *PRODUCER_LOST,
    *REFUSALS,
}
"""Errors that the library does not get over by itself. These say what is the matter; of all others a greeting tells more
(`connectivity.transports.kafka.handshake`)."""

VAGUE = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
"""Errors that follow from others: a refused login or certificate ends in one of these too."""

WITHDRAWN = {
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._FATAL,
    KafkaError._DESTROY,
    *PRODUCER_LOST,
}
"""Outcomes of messages that say something about the link and nothing about the message."""

SIZES = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}

_CERTIFICATE_WORDS = ("certificate", "unknown ca", "unknown_ca", "verify", "hostname mismatch")


def link_error(error: KafkaError, subject: str = "") -> LinkError:
    """Why a link could not be made, or has ended. `subject` is the topic that it is about."""
    words = f"{subject}: {error.str()}" if subject else error.str()
    code = error.code()
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
    """How much an error says of why no broker is reached; of two the one that says more, or else the later, is kept.

    A cut shows as "disconnected" first and as what became of the broker after that; a refused login or certificate
    shows as itself first and as mere disconnects after that.
    """
    if error.code() not in VAGUE:
        return 2
    return 0 if link_error(error).detail is Detail.CONNECTING else 1


def message_error(error: KafkaError, topic: str) -> PublishFailed:
    """Why the broker did not take a message."""
    words = f"topic {topic}: {error.str()}"
    if error.code() in SIZES:
        return PublishFailed(words, status=413)
    return PublishFailed(words, status=503 if error.retriable() else 400)

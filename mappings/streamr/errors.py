"""The errors of requests, with the protocol's texts (Streamr protocol, errors).

A fault's message is the text of the error frame. Long quotations are cut, so that a response never grows with the request; a
valid stream ID is quoted whole. Clients of the protocol show the texts, which are older than this service; programs branch
on `status`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from mappings.errors import DecodeError, Fault
from mappings.streams.stream_id import LONGEST_STREAM_ID
from mappings.texts import shorten

Sub = str | int | float
"""A client's own id of a resend: a text as a rule, a number where the client likes numbers."""

_encode = msgspec.json.Encoder().encode


class ErrorSubject(NamedTuple):
    """The readable parts of the request that an error frame repeats."""

    stream: str | None = None
    partition: int | None = None
    sub: Sub | None = None


NOTHING = ErrorSubject()


class RequestRejected(DecodeError):
    """A request that cannot be carried out, or not for this client."""

    def __init__(self, fault: Fault, about: ErrorSubject = NOTHING) -> None:
        super().__init__(fault)
        self.about = about


class UnknownVersion(DecodeError):
    """A version of the control layer or of messages that is not spoken here."""


def quote(value: Any) -> str:
    """A parsed value in a text: texts as they are, all others as JSON, cut where it is long."""
    return shorten(value if isinstance(value, str) else _encode(value).decode(), LONGEST_STREAM_ID)


def not_an_object() -> Fault:
    """E-JSON."""
    return Fault(400, "streamr:json.invalid", "Request is not a JSON object")


def too_large() -> Fault:
    """E-SIZE."""
    return Fault(413, "streamr:request.toolarge", "Request too large")


def unknown_type(type: Any) -> Fault:
    """E-TYPE."""
    return Fault(400, "streamr:type.unknown", f"Unknown request type: {quote(type)}")


def unknown_version(version: Any) -> Fault:
    """E-VERSION."""
    return Fault(400, "streamr:version.unsupported", f"Unsupported version: {quote(version)}")


def limit_exceeded(what: str) -> Fault:
    """E-LIMIT."""
    return Fault(429, "streamr:limit.exceeded", f"Limit exceeded: {what}")


def publish_without_stream() -> Fault:
    """E-PUB-NOSTREAM."""
    return Fault(400, "streamr:publish.stream.missing", "Publish request is missing the stream id!")


def invalid_timestamp(timestamp: Any) -> Fault:
    """E-PUB-TS."""
    return Fault(400, "streamr:publish.timestamp.invalid", f"Invalid timestamp: {quote(timestamp)}")


def message_not_a_string() -> Fault:
    """E-PUB-NOTSTRING."""
    return Fault(400, "streamr:publish.message.notstring", "Message must be stringified JSON!")


def message_empty() -> Fault:
    """E-PUB-EMPTY."""
    return Fault(400, "streamr:publish.message.empty", "Publish request failed: empty content")


def message_not_json() -> Fault:
    """E-PUB-JSON."""
    return Fault(400, "streamr:publish.message.notjson", "Publish request failed: content is not JSON")


def key_not_a_string() -> Fault:
    """E-PUB-PKEY."""
    return Fault(400, "streamr:publish.key.invalid", "Publish request failed: pkey must be a string")


def message_not_ditto(stream: str, why: str | None = None) -> Fault:
    """E-PUB-MSG: a message to a twin must be a command on it. `why` becomes the description."""
    message = f"Publish request failed: content is not a Ditto command for {quote(stream)}"
    return Fault(400, "streamr:publish.message.notditto", message, why)


def publish_unauthenticated(stream: str) -> Fault:
    """E-PUB-401."""
    message = f"Authentication failed while trying to publish to stream {quote(stream)}"
    return Fault(401, "streamr:publish.unauthenticated", message)


def publish_forbidden(stream: str) -> Fault:
    """E-PUB-403."""
    return Fault(403, "streamr:publish.forbidden", f"You are not allowed to write to stream {quote(stream)}")


def stream_not_found(stream: str) -> Fault:
    """E-PUB-404."""
    return Fault(404, "streamr:publish.stream.notfound", f"Stream {quote(stream)} not found.")


def publish_failed(reason: str) -> Fault:
    """E-PUB-503."""
    return Fault(503, "streamr:publish.unavailable", f"Publish request failed: {reason}")


def without_stream() -> Fault:
    """E-SUB-NOSTREAM."""
    message = "Error: stream id not defined. Are you using an outdated client?"
    return Fault(400, "streamr:stream.missing", message)


def not_authorized(stream: str, partition: int) -> Fault:
    """E-SUB-AUTH: no permission, or no such stream; the client does not learn which."""
    message = f"Not authorized to subscribe to stream {quote(stream)} and partition {partition}"
    return Fault(403, "streamr:stream.forbidden", message)


def invalid_partition(stream: str, partition: Any) -> Fault:
    """E-SUB-PARTITION. Quotes distinguish a text from a number."""
    found = shorten(_encode(partition).decode(), LONGEST_STREAM_ID)
    message = f"Invalid partition {found} for stream {quote(stream)}"
    return Fault(400, "streamr:partition.invalid", message)


def not_subscribed(stream: str, partition: int) -> Fault:
    """E-UNSUB."""
    message = f"Not subscribed to stream {quote(stream)} partition {partition}!"
    return Fault(404, "streamr:subscription.notfound", message)


def resend_failed(stream: str, partition: int, reason: str, status: int = 503) -> Fault:
    """E-RESEND; `status` is 503, or that of the reason."""
    message = f"Failed to request resend from stream {quote(stream)} and partition {partition}: {reason}"
    return Fault(status, "streamr:resend.failed", message)


def resend_forbidden(stream: str, partition: int) -> Fault:
    """E-RESEND: no permission, or no such stream; the client does not learn which."""
    return resend_failed(stream, partition, "not authorized", 403)


def unknown_resend_options(options: Any) -> Fault:
    """E-RESEND-OPT."""
    return Fault(400, "streamr:resend.options.unknown", f"Unknown resend options: {quote(options)}")


def resend_without_sub() -> Fault:
    """E-RESEND-SUB."""
    return Fault(400, "streamr:resend.sub.missing", "Subscription ID not given!")

"""Encodes signals as messages of the Ditto protocol.

`WRITERS` has one function for each kind of signal; `messages` encodes the elements of histories and searches.
`mappings.model.headers` selects headers: responses and events say that they require no response, signals of a subscription
repeat the headers of the client's command. A live signal keeps its own: they say whether its receiver must respond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mappings.ditto.messages import (
    CONTENT_TYPES,
    JSON,
    MERGE_PATCH,
    WrittenMessage,
    json_bytes,
    next_envelopes,
    transport_headers,
)
from mappings.errors import Fault
from mappings.ids import BUILT_IN_LABELS
from mappings.model.envelope import Envelope
from mappings.model.headers import repeated_headers, subscription_headers, without_reply_address
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Announcement,
    Answer,
    Complete,
    ConnectionAnnouncement,
    Created,
    EndReason,
    ErrorResponse,
    Failed,
    Headers,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
    Next,
    Outbound,
    PolicyAnnouncement,
    Response,
    SubscriptionKind,
    TwinEvent,
)
from mappings.model.topic_path import topic_of

VERSION = 2
"""The only version of the protocol's schema, as answers and events name it."""

_FINAL = {"response-required": False, "version": VERSION}
"""Headers of responses and events, which never ask for a response themselves."""

_RESPONSE_HEADERS = ("etag", "entity-revision")
"""Headers of answers that no event has."""

_FAILURE_TEXTS: dict[EndReason, tuple[int, str, str | None]] = {
    EndReason.NOT_FOUND: (404, "No subscription with ID '{key}' exists.", None),
    EndReason.INVALID_DEMAND: (
        400,
        "The number of requested elements must be > 0 (see reactive-streams specification, rule 3.9)",
        None,
    ),
    EndReason.CANCELLED: (400, "This subscription is considered cancelled. No more messages are processed.", None),
    EndReason.IDLE: (408, "The subscription '{key}' stopped due to a lack of interaction.", None),
    EndReason.ABORTED: (500, "The subscription is aborted due to a service restart.", "Please try again later."),
}
"""Why a subscription ends → status, message and description."""

_CODES: dict[SubscriptionKind, dict[EndReason, str]] = {
    SubscriptionKind.HISTORY: {
        EndReason.NOT_FOUND: "streaming.subscription.not.found",
        EndReason.INVALID_DEMAND: "streaming.subscription.protocol.error",
        EndReason.CANCELLED: "streaming.subscription.protocol.error",
        EndReason.IDLE: "streaming.subscription.timeout",
    },
    SubscriptionKind.SEARCH: {
        EndReason.NOT_FOUND: "thing-search:subscription.not.found",
        EndReason.INVALID_DEMAND: "thing-search:subscription.protocol.error",
        EndReason.CANCELLED: "thing-search:subscription.protocol.error",
        EndReason.IDLE: "thing-search:subscription.timeout",
        EndReason.ABORTED: "thing-search:subscription.aborted",
    },
}
"""The error code of each reason.

A restart aborts no history: its client continues after its last revision.
"""


def _envelope(
    signal: Outbound, headers: Headers, path: str, value: object = None, extra: bytes | None = None, **more: Any
) -> list[Envelope]:
    """Return the message of a signal. Raises EncodeError.

    Bytes are JSON already; `more` are other members.
    """
    written = WrittenMessage(
        topic_of(signal).full,
        headers,
        path,
        msgspec.Raw(value) if isinstance(value, bytes) else value,
        None if extra is None else msgspec.Raw(extra),
        **more,
    )
    return [Envelope(json_bytes(written), transport_headers(signal.headers))]


def content_type_of(answer: Answer) -> str | None:
    """Return the content type of a response's value; None if the header of the command stays."""
    if isinstance(answer, Response):
        return MERGE_PATCH if answer.action == "merge" else JSON if answer.value is not None else None
    if isinstance(answer, LiveResponse):
        return None if answer.value is None else MERGE_PATCH if answer.action == "merge" else JSON
    # That of a message response is its sender's: the value may be any text in quotes.
    return JSON if isinstance(answer, ErrorResponse | Acknowledgements) else None


def _answer_headers(answer: Answer) -> dict[str, Any]:
    headers = {**repeated_headers(answer.headers), **_FINAL}
    if (content_type := content_type_of(answer)) is not None:
        headers["content-type"] = content_type
    return headers


def _response(signal: Response | LiveResponse | MessageResponse) -> list[Envelope]:
    return _envelope(signal, _answer_headers(signal), signal.path, signal.value, status=signal.status)


def _error_response(signal: ErrorResponse) -> list[Envelope]:
    return _envelope(signal, _answer_headers(signal), "/", _fault_object(signal.fault), status=signal.fault.status)


def _event(signal: TwinEvent) -> list[Envelope]:
    """Return a change as an event for targets, with the headers of the causing command."""
    headers = {**repeated_headers(signal.headers), **_FINAL}
    for name in _RESPONSE_HEADERS:
        headers.pop(name, None)
    headers["requested-acks"] = _foreign_labels(headers.get("requested-acks"))
    declared = CONTENT_TYPES.get(signal.action, JSON)
    value = signal.value if declared is not None else None
    if value is not None:
        headers["content-type"] = declared
    return _envelope(
        signal, headers, signal.path, value, signal.extra, revision=signal.revision, timestamp=signal.timestamp
    )


def _foreign_labels(labels: object) -> list[object]:
    """Return the requested acknowledgements of a command that the receiver of its event may issue."""
    return [label for label in labels if label not in BUILT_IN_LABELS] if isinstance(labels, list | tuple) else []


def _live(signal: Message | LiveCommand | LiveEvent) -> list[Envelope]:
    headers = {**repeated_headers(signal.headers), "version": VERSION}
    if isinstance(signal, LiveCommand | LiveEvent) and signal.value is not None:
        headers["content-type"] = MERGE_PATCH if signal.action in ("merge", "merged") else JSON
    fields = signal.fields if isinstance(signal, LiveCommand) else None
    return _envelope(signal, headers, signal.path, signal.value, signal.extra, fields=fields)


def _announcement(signal: Announcement) -> list[Envelope]:
    headers = {**repeated_headers(signal.headers), "version": VERSION, "content-type": JSON}
    return _envelope(signal, headers, signal.path, signal.value)


def _acknowledgement(signal: Acknowledgement) -> list[Envelope]:
    headers = {**repeated_headers(signal.headers), "response-required": False, "content-type": JSON}
    return _envelope(signal, headers, "/", signal.value, status=signal.status)


def _acknowledgements(signal: Acknowledgements) -> list[Envelope]:
    """Return one member for each label; a list for a label with several acknowledgements."""
    labels: dict[str, list[dict[str, Any]]] = {}
    for ack in signal.acks:
        member: dict[str, Any] = {"status": ack.status}
        if ack.value is not None:
            member["payload"] = msgspec.Raw(ack.value)
        ack_headers = without_reply_address(repeated_headers(ack.headers))
        labels.setdefault(ack.label, []).append({**member, "headers": ack_headers})
    value = {label: found[0] if len(found) == 1 else found for label, found in labels.items()}
    return _envelope(signal, _answer_headers(signal), "/", value, status=signal.status)


def _subscription_event(signal: Created | Complete | Failed) -> list[Envelope]:
    value: dict[str, Any] = {"subscriptionId": signal.key}
    if isinstance(signal, Failed):
        reason = signal.reason
        value["error"] = _ending_object(reason, signal) if isinstance(reason, EndReason) else _fault_object(reason)
    headers = {**subscription_headers(signal.headers), "content-type": JSON}
    return _envelope(signal, headers, "/", value)


def _ending_object(reason: EndReason, signal: Failed) -> dict[str, Any]:
    status, text, description = _FAILURE_TEXTS[reason]
    return _fault_object(Fault(status, _CODES[signal.kind][reason], text.format(key=signal.key), description))


def _fault_object(fault: Fault) -> dict[str, Any]:
    found: dict[str, Any] = {"status": fault.status, "error": fault.error, "message": fault.message}
    if fault.description is not None:
        found["description"] = fault.description
    return {**found, **fault.extra}


WRITERS: dict[type, Callable[[Any], Sequence[Envelope]]] = {
    Response: _response,
    ErrorResponse: _error_response,
    TwinEvent: _event,
    Message: _live,
    MessageResponse: _response,
    LiveCommand: _live,
    LiveResponse: _response,
    LiveEvent: _live,
    ConnectionAnnouncement: _announcement,
    PolicyAnnouncement: _announcement,
    Acknowledgement: _acknowledgement,
    Acknowledgements: _acknowledgements,
    Created: _subscription_event,
    Next: next_envelopes,
    Complete: _subscription_event,
    Failed: _subscription_event,
}

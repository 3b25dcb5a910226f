"""The live channel: sends signals to other connections, and their responses back.

A live signal goes to every target of the other open connections whose topics and filter match it
(`connectivity.targets.topic_filter`), with the extra fields of the target. It is never stored: it is not sent while a
broker is unavailable, since a late command may do harm, and it is withdrawn at its timeout. Labels that a target issues
report this. A weak acknowledgement is given only for a label that no recipient can give (Ditto connections, live channel;
weak acknowledgements).

A response names its request by the correlation ID, and comes from a connection that was sent the request. It is sent with
the headers of the request, which lead to the requester, and with its other own headers. The receivers do not learn the
reply address of a listener's peer: they could send it other responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from connectivity.connections.templates import DIVERT_TO, DIVERTED_TYPES
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.sources.acknowledgements import RequestedAcks, weak
from connectivity.targets.directory import DIVERTED_FROM
from connectivity.targets.open_connection import OpenConnection
from connectivity.targets.outbox import PendingPublish
from connectivity.targets.signal_context import SignalContext, SuppressionReason
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Done, ignore_outcome
from connectivity.twins.context import StateLookup
from mappings.errors import Fault
from mappings.ids import LIVE_RESPONSE
from mappings.model.headers import without_reply_address
from mappings.model.signals import (
    Acknowledgement,
    Live,
    LiveAnswer,
    LiveCommand,
    LiveResponse,
    Message,
    MessageResponse,
)
from mappings.placeholders.values import utc_now

Acknowledge = Callable[[Acknowledgement], object]
"""Takes an acknowledgement of a connection, or of the service in its place."""

_REQUEST_HEADERS = frozenset(
    {"response-required", "requested-acks", "timeout", "reply-to", DIVERT_TO, DIVERTED_TYPES, DIVERTED_FROM}
)
"""Headers that a response takes from its request only, because they control where it is sent."""

_BROKER_UNAVAILABLE = PublishFailed("the broker is unavailable")
_NOT_SENT = PendingPublish(0, None)


class SentSignal(NamedTuple):
    """A live signal on its way: its messages, and the number of them for each connection.

    A connection whose mapping scripts drop the signal later is no longer counted.
    """

    postings: Sequence[PendingPublish]
    recipients: Mapping[str, int]


def publish(
    signal: Live,
    members: Iterable[OpenConnection],
    world: StateLookup,
    origin: str,
    labels: Sequence[str],
    acknowledge: Acknowledge,
) -> SentSignal:
    """Send a signal of the connection `origin` to the targets of the other connections.

    `acknowledge` gets the acknowledgements for those of the `labels` that a target issues, or that a connection without
    recipients declares; during this call or later.
    """
    others = [member for member in members if member.connection_id != origin]
    recipients = _Recipients(signal, labels, others, acknowledge)
    context = SignalContext(signal, world, utc_now)
    postings = []
    for member in others:
        for target in member.targets:
            label = target.label if target.label in labels else None
            on_published = _on_published(signal, target, label, acknowledge) if label is not None else ignore_outcome
            matched = target.filter(context)
            if isinstance(matched, SuppressionReason):
                posting = None
            elif target.outbox.is_attached:
                posting = target.post(matched, on_published, partial(recipients.remove, member, label))
            else:
                posting = _NOT_SENT
                target.counters.not_published.note(signal, words=str(_BROKER_UNAVAILABLE))
                on_published(_BROKER_UNAVAILABLE)
            if posting is not None:
                recipients.add(member, label, is_sent=posting.count > 0)
                postings.append(posting)
            elif label is not None:
                recipients.suppressed.append(label)
    recipients.acknowledge_weakly()
    return SentSignal(postings, recipients.sent)


class _Recipients:
    """The recipients of a signal; gives weak acknowledgements for labels that no recipient can give.

    `suppressed`: the labels of targets that the signal was not sent to.
    """

    def __init__(
        self, signal: Live, labels: Sequence[str], members: Sequence[OpenConnection], acknowledge: Acknowledge
    ) -> None:
        self.suppressed: list[str] = []
        self._signal, self._labels, self._members, self._acknowledge = signal, labels, members, acknowledge
        self._expected: Counter[str | None] = Counter()
        """Number of recipients that may give each label; any recipient may give `live-response`."""
        self._reached: Counter[str] = Counter()
        """Number of recipients of each connection."""
        self.sent: Counter[str] = Counter()
        """The same without those that could not be sent the signal."""

    def add(self, member: OpenConnection, label: str | None, *, is_sent: bool) -> None:
        """Add a target that was sent the signal, or failed to be. `label`: the requested one that it issues."""
        self._expected.update((LIVE_RESPONSE, label))
        self._reached[member.connection_id] += 1
        self.sent[member.connection_id] += is_sent

    def remove(self, member: OpenConnection, label: str | None) -> None:
        """Remove a recipient whose mapping scripts have dropped the signal."""
        self._expected.subtract((LIVE_RESPONSE, label))
        self._reached[member.connection_id] -= 1
        self.sent[member.connection_id] -= 1
        if label is not None:
            self.suppressed.append(label)
        self.acknowledge_weakly()

    def acknowledge_weakly(self) -> None:
        """Give the weak acknowledgements for labels that no recipient can give."""
        not_reached = [member for member in self._members if not self._reached[member.connection_id]]
        declared = [label for label in self._labels if any(label in member.declared for member in not_reached)]
        for label in dict.fromkeys((*self.suppressed, *declared)):
            if not self._expected[label]:
                correlation_id = self._signal.headers.get("correlation-id")
                self._acknowledge(weak(self._signal.entity, label, "live", correlation_id))


def outgoing(signal: Live, wish: RequestedAcks, *, is_of_peer: bool) -> Live:
    """Return the signal to be sent, with explicit headers about its response and acknowledgements.

    `is_of_peer`: its sender is a peer of a listener, whose reply address others do not learn.
    """
    own = without_reply_address(signal.headers) if is_of_peer else signal.headers
    headers = {**own, "response-required": wish.is_answered, "requested-acks": list(wish.labels)}
    return replace(signal, headers=headers)


def fits(answer: LiveAnswer, request: object) -> bool:
    """Return whether a response with the request's correlation ID and entity is of its kind."""
    if isinstance(answer, MessageResponse):
        return isinstance(request, Message) and (answer.subject, answer.path) == (request.subject, request.path)
    return isinstance(request, LiveCommand) and answer.action == request.action


def unexpected_response(answer: LiveAnswer) -> Fault:
    """Return why a live response is not delivered."""
    return Fault(
        400,
        "signal.unsupported",
        f"No request is waiting for this response of '{answer.entity}'.",
        "Use the correlation id, topic and path of the request, and respond before its timeout.",
    )


def forwarded_response(answer: LiveAnswer, request: Message | LiveCommand, addressing: frozenset[str]) -> LiveAnswer:
    """Return the response for the requester; the request's headers override all but the content type.

    `addressing`: further headers that control where it is sent, in lower case.
    """
    taken = _REQUEST_HEADERS.union(addressing, (name.lower() for name in request.headers))
    own_headers = {name: value for name, value in answer.headers.items() if name.lower() not in taken}
    headers: dict[str, Any] = {**own_headers, **request.headers}
    headers.pop("content-type", None)
    if (content_type := answer.headers.get("content-type")) is not None:
        headers["content-type"] = content_type
    return replace(answer, headers=headers)


def issued_response(request: Message | LiveCommand, status: int) -> LiveAnswer:
    """Return the response of a target that issues `live-response`."""
    if isinstance(request, Message):
        return MessageResponse(
            request.entity, request.direction, request.subject, request.path, status, None, request.headers
        )
    return LiveResponse(request.entity, request.action, request.path, status, None, request.headers)


def _on_published(signal: Live, target: TargetPublisher, label: str, acknowledge: Acknowledge) -> Done:
    """Return a callback that acknowledges a target's label after publishing."""
    entity, correlation_id = signal.entity, signal.headers.get("correlation-id")

    def on_published(error: ConnectivityError | None) -> None:
        acknowledge(target.issued_acknowledgement(label, entity, error, correlation_id, "live"))

    return on_published

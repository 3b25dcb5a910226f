"""Requested acknowledgements: what a command requests, what came, and how its delivery ends.

Pure functions and state, by the tables of the Ditto connection model (requested acknowledgements; settlement of the consumed
message):

    requested_acks     the labels that a signal requests, whether it requires a response, and its timeout
    SourceAckRequests  the requests that a source adds
    AckAggregator      the acknowledgements of one command; missing ones become 408 at its timeout
    outcome_of_…       whether a delivery is acknowledged, requeued or rejected
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.transports.base import Outcome
from mappings.ditto.errors import invalid_label
from mappings.errors import Fault
from mappings.ids import LIVE_RESPONSE, EntityId, EntityType, is_label
from mappings.model.headers import MAX_SIZE, response_required, timeout_seconds
from mappings.model.signals import (
    MAX_TIMEOUT,
    Acknowledgement,
    Command,
    Headers,
    Inbound,
    LiveAnswer,
    LiveCommand,
    Message,
    Response,
    is_success,
)
from mappings.placeholders.template import PlaceholderContext, Scope, Template, parse

TWIN_PERSISTED: Final = "twin-persisted"
SEARCH_PERSISTED: Final = "search-persisted"

SERVICE_LABELS: Final = {"twin": frozenset({TWIN_PERSISTED, SEARCH_PERSISTED}), "live": frozenset({LIVE_RESPONSE})}
"""The labels that the service answers itself, by channel; ignored on the other channel."""

BUILT_IN: Final = frozenset().union(*SERVICE_LABELS.values())

_DEFAULT: Final = {"twin": TWIN_PERSISTED, "live": LIVE_RESPONSE}
_LABEL_LIST: Final = re.compile(r"[a-zA-Z0-9\-_:,]*")
_MAX_PER_LABEL: Final = 10
"""The most acknowledgements with the same label that one command keeps."""

_FIRST_FAILURE: Final = 400
_PRECONDITION_FAILED: Final = 412
_TIMED_OUT: Final = 408
_DEPENDENCY_FAILED: Final = 424
_FIRST_SERVER_ERROR: Final = 500


class RequestedAcks(NamedTuple):
    """The requested labels without repeats, whether a response is required, and the timeout in seconds."""

    labels: tuple[str, ...]
    is_answered: bool
    timeout: float

    def is_plain(self, channel: str) -> bool:
        """Return whether the command's own response is the only acknowledgement."""
        return not self.labels or self.labels == (_DEFAULT[channel],)


_DEFAULT_REQUESTS: Final = {channel: RequestedAcks((label,), True, MAX_TIMEOUT) for channel, label in _DEFAULT.items()}
_LABELS_OF_OTHERS: Final = {channel: BUILT_IN - own for channel, own in SERVICE_LABELS.items()}


ACK_HEADERS: Final = frozenset({"requested-acks", "response-required", "timeout"})


def has_no_ack_headers(headers: Headers) -> bool:
    """Return whether a signal has none of the headers about acknowledgements, as most do."""
    return ACK_HEADERS.isdisjoint(headers)


def requested_acks(headers: Headers, channel: str) -> RequestedAcks | Fault:
    """Return the requests in normalized headers on the channel `twin` or `live`, or a fault."""
    if has_no_ack_headers(headers):
        return _DEFAULT_REQUESTS[channel]
    is_answered = response_required(headers)
    timeout = timeout_seconds(headers)
    requested = headers.get("requested-acks")
    if requested is None:
        labels: tuple[str, ...] = (_DEFAULT[channel],) if is_answered and timeout != 0 else ()
    else:
        for label in requested:
            if not is_label(label):
                return invalid_label(label)
        labels = tuple(dict.fromkeys(label for label in requested if label not in _LABELS_OF_OTHERS[channel]))
    if timeout == 0 and (labels or is_answered):
        return ZERO_TIMEOUT
    return RequestedAcks(labels, is_answered, min(timeout or MAX_TIMEOUT, MAX_TIMEOUT))


def default_labels(headers: Headers, channel: str) -> tuple[str, ...]:
    """Return the labels that a signal requests before its source adds any."""
    requested = headers.get("requested-acks")
    if requested is not None:
        return tuple(requested)
    return (_DEFAULT[channel],) if response_required(headers) else ()


ZERO_TIMEOUT: Final = Fault(
    400,
    "header.invalid",
    "The header 'timeout' is 0, but the command requests acknowledgements or a response.",
    "Set a timeout above 0, or set 'response-required' to false and 'requested-acks' to an empty list.",
    {"invalidHeaderKey": "timeout"},
)
"""Returned also if no response is required, because the request cannot be fulfilled."""


NOTHING: Final = RequestedAcks((), True, MAX_TIMEOUT)
"""The requests of signals that cannot request acknowledgements."""


def channel_of(signal: Inbound) -> str | None:
    """Return the acknowledgement channel of a signal; None for queries, policy commands, responses."""
    if isinstance(signal, Command):
        return "twin" if signal.action != "retrieve" and signal.entity.type is EntityType.THING else None
    return "live" if isinstance(signal, Message | LiveCommand) else None


class SourceAckRequests:
    """The `acknowledgementRequests` of a source: labels that it adds to its signals, and a filter on them.

    A signal with an empty list of labels is not changed. Raises PlaceholderError for an invalid filter.
    """

    def __init__(self, includes: Sequence[str], functions: str | None) -> None:
        self._includes = tuple(includes)
        self._functions = functions
        self.names = _filter_template("none", functions).names if functions is not None else frozenset[str]()
        """The placeholders in the filter."""

    def apply(self, headers: dict[str, Any], channel: str, context: PlaceholderContext) -> None:
        """Update `requested-acks` in the headers of a signal."""
        requested = headers.get("requested-acks")
        if requested == []:
            return
        if self._includes:
            requested = list(dict.fromkeys([*(requested or ()), *self._includes]))
            headers["requested-acks"] = requested
        if self._functions is None:
            return
        text = ",".join(requested if requested is not None else default_labels(headers, channel))
        if len(text) > MAX_SIZE or not _LABEL_LIST.fullmatch(text):
            return  # headers that are too large, or an invalid label, which are refused later
        if not _filter_template(text, self._functions).resolve(context).is_resolved:
            headers["requested-acks"] = []


@lru_cache(maxsize=256)
def _filter_template(text: str, functions: str) -> Template:
    """Return a template that sends the list of labels through the functions of a filter."""
    return parse(f"{{{{ fn:default('{text}') | {functions} }}}}", Scope.REQUEST_FILTER)


def refusal(ack: Acknowledgement, declared: frozenset[str]) -> Fault | None:
    """Return why a source with these declared labels cannot send an acknowledgement, else None."""
    if ack.label in BUILT_IN:
        return Fault(
            400,
            "acknowledgement:ditto.acklabel.forbidden",
            f"The acknowledgement label '{ack.label}' is reserved for the service.",
            "Use a label that your connection declares.",
        )
    if ack.label not in declared:
        return Fault(
            400,
            "acknowledgement:label.not.declared",
            f"The acknowledgement label '{ack.label}' is not declared by this source.",
            "Add this label to the 'declaredAcks' of the source.",
        )
    return None


def weak(entity: EntityId, label: str, channel: str, correlation_id: str | None) -> Acknowledgement:
    """Return the weak acknowledgement for a subscriber that the signal is not for (Ditto)."""
    headers = {**_correlation_headers(correlation_id), "ditto-weak-ack": True}
    return Acknowledgement(entity, label, 200, _WEAK_ACK_TEXT, headers, channel)


def timed_out(
    entity: EntityId, label: str, channel: str, correlation_id: str | None, seconds: float
) -> Acknowledgement:
    """Return the acknowledgement that replaces a missing one at the timeout."""
    error = {
        "status": _TIMED_OUT,
        "error": "acknowledgement:request.timeout",
        "message": f"No acknowledgement with the label '{label}' arrived within {seconds:g} s.",
    }
    value = msgspec.json.encode(error)
    return Acknowledgement(entity, label, _TIMED_OUT, value, _correlation_headers(correlation_id), channel)


def command_timeout(seconds: float) -> Fault:
    """Return the error response to a signal without a response at its timeout."""
    message = f"No response arrived within {seconds:g} s."
    return Fault(_TIMED_OUT, "command.timeout", message, "Try again, or set a longer 'timeout'.")


def acknowledgement_of(label: str, response: Response | LiveAnswer, channel: str, asked: Headers) -> Acknowledgement:
    """Return a response as an acknowledgement, without the headers that it has from the request."""
    new = {name: value for name, value in response.headers.items() if asked.get(name) != value}
    headers = {**_correlation_headers(asked.get("correlation-id")), **new}
    return Acknowledgement(response.entity, label, response.status, response.value, headers, channel)


def _correlation_headers(correlation_id: str | None) -> dict[str, Any]:
    return {} if correlation_id is None else {"correlation-id": correlation_id}


_WEAK_ACK_TEXT: Final = msgspec.json.encode(
    "Acknowledgement was issued automatically, because the subscriber is not authorized to receive the signal, "
    "or its filter excludes it."
)


class AckAggregator:
    """The acknowledgements of one command: `take` adds one, `expire` those that are missing."""

    __slots__ = ("_missing", "_received", "channel", "entity")

    def __init__(self, entity: EntityId, labels: Sequence[str], channel: str) -> None:
        self.entity, self.channel = entity, channel
        self._received: dict[str, list[Acknowledgement]] = {label: [] for label in labels}
        self._missing = len(self._received)

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    @property
    def missing(self) -> tuple[str, ...]:
        """The labels without an acknowledgement, in the order of the request."""
        return tuple(label for label, received in self._received.items() if not received)

    @property
    def acks(self) -> tuple[Acknowledgement, ...]:
        """All acknowledgements, in the order of the requested labels."""
        return tuple(ack for received in self._received.values() for ack in received)

    def wants(self, label: str) -> bool:
        """Return whether the label was requested, acknowledged or not."""
        return label in self._received

    def take(self, ack: Acknowledgement) -> bool:
        """Add an acknowledgement; False if its label was not requested, or has too many already."""
        received = self._received.get(ack.label)
        if received is None:
            return False
        if not received:
            self._missing -= 1
        elif received[0].headers.get("ditto-weak-ack"):
            # A real acknowledgement replaces the weak one.
            received.clear()
        elif ack.headers.get("ditto-weak-ack"):
            return True
        elif len(received) >= _MAX_PER_LABEL:
            return False
        received.append(ack)
        return True

    def expire(self, correlation_id: str | None, seconds: float) -> None:
        """Add a 408 acknowledgement for each missing label."""
        for label in self.missing:
            self.take(timed_out(self.entity, label, self.channel, correlation_id, seconds))

    @property
    def outcome(self) -> Outcome:
        """How the delivery of the command ends."""
        return outcome_of_acks((ack.label, ack.status) for ack in self.acks)


def aggregate_status(acks: Sequence[Acknowledgement]) -> int:
    """Return the status of several acknowledgements: the only one, 200 for all successful, or 424."""
    if len(acks) == 1:
        return acks[0].status
    return 200 if all(is_success(ack.status) for ack in acks) else _DEPENDENCY_FAILED


_UNREADABLE: Final = ("json.", "headers.", "protocoladapter:", "mediatype.")
"""Prefixes of error codes about the form of a message."""

_SEVERITY: Final[Mapping[Outcome, int]] = {Outcome.SETTLED: 0, Outcome.DROPPED: 1, Outcome.REDELIVER: 2}


def worse(one: Outcome, other: Outcome) -> Outcome:
    """Return the graver of two outcomes of one delivery; to requeue is the gravest."""
    return one if _SEVERITY[one] >= _SEVERITY[other] else other


def outcome_of_failure(status: int) -> Outcome:
    """Return the outcome for an acknowledgement or response with this status."""
    if status < _FIRST_FAILURE:
        return Outcome.SETTLED
    may_succeed_later = status in (_TIMED_OUT, _DEPENDENCY_FAILED) or status >= _FIRST_SERVER_ERROR
    return Outcome.REDELIVER if may_succeed_later else Outcome.DROPPED


def outcome_of_error(fault: Fault) -> Outcome:
    """Return the outcome for a refused command that requested acknowledgements.

    A condition that does not hold is not a failure, and an unreadable message is acknowledged.
    """
    is_unreadable = fault.error.startswith(_UNREADABLE)
    return (
        Outcome.SETTLED if is_unreadable or fault.status == _PRECONDITION_FAILED else outcome_of_failure(fault.status)
    )


def outcome_of_live_response(status: int) -> Outcome:
    """Return the outcome for a live signal with a response; any but a timeout shows its receipt."""
    return Outcome.REDELIVER if status == _TIMED_OUT else Outcome.SETTLED


def outcome_of_acks(acks: Iterable[tuple[str, int]]) -> Outcome:
    """Return the gravest outcome of labels with their statuses."""
    outcome = Outcome.SETTLED
    for label, status in acks:
        outcome_of = outcome_of_live_response if label == LIVE_RESPONSE else outcome_of_failure
        outcome = worse(outcome, outcome_of(status))
    return outcome

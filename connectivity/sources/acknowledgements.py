"""Requested acknowledgements: what a command asks for, what has come, and what that means for its answer and its delivery.

Everything here decides and nothing acts: no clock, no task, no broker. The rules are tables of the Ditto connection model
(requested acknowledgements; settlement of the consumed message):

    wish           which labels a command wants to hear of, whether it wants an answer, and how long it waits
    SourceRequests what a source adds to that
    Collector      what has come for one command; what is missing when its time is over counts as 408
    outcome_of …   whether a delivery is settled, or rejected, to come again or not

A *weak* acknowledgement is given for a party that would have answered and was not asked, since its filter or its permissions
kept the signal from it. It counts as success.
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
from mappings.model.headers import response_required, timeout_seconds
from mappings.model.signals import (
    LONGEST_TIMEOUT,
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

OWN_LABELS: Final = {"twin": frozenset({TWIN_PERSISTED, SEARCH_PERSISTED}), "live": frozenset({LIVE_RESPONSE})}
"""The labels that the service itself answers on each channel. On the other one nobody does, so they are not waited for."""

BUILT_IN: Final = frozenset().union(*OWN_LABELS.values())

_DEFAULT: Final = {"twin": TWIN_PERSISTED, "live": LIVE_RESPONSE}
_LISTED: Final = re.compile(r"[a-zA-Z0-9\-_:,]*")
_MOST_OF_ONE: Final = 10
"""Acknowledgements with the same label that are kept for one command."""

_FIRST_FAILURE: Final = 400
_PRECONDITION_FAILED: Final = 412
_TIMED_OUT: Final = 408
_DEPENDENCY_FAILED: Final = 424
_FIRST_SERVER_FAULT: Final = 500


# --- what a command asks for --------------------------------------------------------------------------------------------


class RequestedAcks(NamedTuple):
    """What a command asks for: labels, without repeats; whether it wants an answer; seconds that it waits."""

    labels: tuple[str, ...]
    is_answered: bool
    timeout: float

    def is_plain(self, channel: str) -> bool:
        """Whether the command's own answer says everything."""
        return not self.labels or self.labels == (_DEFAULT[channel],)


_USUAL: Final = {channel: RequestedAcks((label,), True, LONGEST_TIMEOUT) for channel, label in _DEFAULT.items()}
_LABELS_OF_OTHERS: Final = {channel: BUILT_IN - own for channel, own in OWN_LABELS.items()}


def says_nothing(headers: Headers) -> bool:
    """Whether a signal leaves to the defaults what it asks for, as most do."""
    return "requested-acks" not in headers and "response-required" not in headers and "timeout" not in headers


def wish(headers: Headers, channel: str) -> RequestedAcks | Fault:
    """What a signal with these normalised headers asks for on the `twin` or `live` channel, or why it cannot be had."""
    if says_nothing(headers):
        return _USUAL[channel]
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
        return NO_TIME
    return RequestedAcks(labels, is_answered, min(timeout or LONGEST_TIMEOUT, LONGEST_TIMEOUT))


def default_labels(headers: Headers, channel: str) -> tuple[str, ...]:
    """The labels that a signal asks for as it came, before its source has a word in it."""
    requested = headers.get("requested-acks")
    if requested is not None:
        return tuple(requested)
    return (_DEFAULT[channel],) if response_required(headers) else ()


NO_TIME: Final = Fault(
    400,
    "header.invalid",
    "The header 'timeout' is 0, though acknowledgements or a response are asked for.",
    "Give a timeout above zero, or set 'response-required' to false and 'requested-acks' to an empty list.",
    {"invalidHeaderKey": "timeout"},
)
"""Told also to who wants no response: it cannot be had as it was asked for."""


NOTHING: Final = RequestedAcks((), True, LONGEST_TIMEOUT)
"""What is asked for by signals that no acknowledgement can be asked for."""


def channel_of(signal: Inbound) -> str | None:
    """The channel that a signal asks for acknowledgements on; None for one that cannot: queries, policies, answers."""
    if isinstance(signal, Command):
        return "twin" if signal.action != "retrieve" and signal.entity.type is EntityType.THING else None
    return "live" if isinstance(signal, Message | LiveCommand) else None


class SourceAckRequests:
    """What a source adds to the requests of its signals (`acknowledgementRequests`), and what it keeps of them.

    A signal that asks for none, with an empty list, is left alone. Raises PlaceholderError for a filter that is not
    understood.
    """

    def __init__(self, includes: Sequence[str], functions: str | None) -> None:
        self._includes = tuple(includes)
        self._functions = functions
        if functions is not None:
            _filtered("none", functions)

    def apply(self, headers: dict[str, Any], channel: str, context: PlaceholderContext) -> None:
        """Change `requested-acks` among the headers of a signal."""
        requested = headers.get("requested-acks")
        if requested == []:
            return
        if self._includes:
            requested = list(dict.fromkeys([*(requested or ()), *self._includes]))
            headers["requested-acks"] = requested
        if self._functions is None:
            return
        text = ",".join(requested if requested is not None else default_labels(headers, channel))
        if not _LISTED.fullmatch(text):
            return  # a label among them is no label, which is answered later
        if not _filtered(text, self._functions).resolve(context).is_resolved:
            headers["requested-acks"] = []


@lru_cache(maxsize=256)
def _filtered(text: str, functions: str) -> Template:
    """The list of labels, sent through the functions of a filter."""
    return parse(f"{{{{ fn:default('{text}') | {functions} }}}}", Scope.COMMON)


# --- acknowledgements that come in --------------------------------------------------------------------------------------


def refusal(ack: Acknowledgement, declared: frozenset[str]) -> Fault | None:
    """Why an acknowledgement is not forwarded that came by a source with these declared labels; None if it is."""
    if ack.label in BUILT_IN:
        return Fault(
            400,
            "acknowledgement:ditto.acklabel.forbidden",
            f"The acknowledgement label '{ack.label}' is the service's own.",
            "Send acknowledgements with a label that your connection declares.",
        )
    if ack.label not in declared:
        return Fault(
            400,
            "acknowledgement:label.not.declared",
            f"The acknowledgement label '{ack.label}' is not declared by this source.",
            "Add it to the 'declaredAcks' of the source.",
        )
    return None


def weak(entity: EntityId, label: str, channel: str, correlation_id: str | None) -> Acknowledgement:
    """The acknowledgement for a party that was not asked."""
    headers = {**_about(correlation_id), "ditto-weak-ack": True}
    return Acknowledgement(entity, label, 200, _NOT_ASKED, headers, channel)


def timed_out(
    entity: EntityId, label: str, channel: str, correlation_id: str | None, seconds: float
) -> Acknowledgement:
    """The acknowledgement in place of one that never came."""
    error = {
        "status": _TIMED_OUT,
        "error": "acknowledgement:request.timeout",
        "message": f"No acknowledgement with the label '{label}' came within {seconds:g} s.",
    }
    value = msgspec.json.encode(error)
    return Acknowledgement(entity, label, _TIMED_OUT, value, _about(correlation_id), channel)


def command_timed_out(seconds: float) -> Fault:
    """The answer to a signal whose own answer never came."""
    message = f"No answer came within {seconds:g} s."
    return Fault(_TIMED_OUT, "command.timeout", message, "Try again, or give it a longer 'timeout'.")


def own(label: str, response: Response | LiveAnswer, channel: str, asked: Headers) -> Acknowledgement:
    """A response as an acknowledgement; of its headers those that the request did not bring along."""
    new = {name: value for name, value in response.headers.items() if asked.get(name) != value}
    headers = {**_about(asked.get("correlation-id")), **new}
    return Acknowledgement(response.entity, label, response.status, response.value, headers, channel)


def _about(correlation_id: str | None) -> dict[str, Any]:
    return {} if correlation_id is None else {"correlation-id": correlation_id}


_NOT_ASKED: Final = msgspec.json.encode(
    "Acknowledgement was issued automatically, because the subscriber is not authorized to receive the signal, "
    "or its filter excludes it."
)


class AckAggregator:
    """What has come for one command. `take` and `expire` are told the events, `acks` is what there is."""

    __slots__ = ("_come", "_missing", "channel", "entity")

    def __init__(self, entity: EntityId, labels: Sequence[str], channel: str) -> None:
        self.entity, self.channel = entity, channel
        self._come: dict[str, list[Acknowledgement]] = {label: [] for label in labels}
        self._missing = len(self._come)

    def __repr__(self) -> str:
        return f"<Collector for {self.entity}, waits for {', '.join(self.missing) or 'nothing'}>"

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    @property
    def missing(self) -> tuple[str, ...]:
        """The labels that nothing has come for, in the order in which they were asked for."""
        return tuple(label for label, come in self._come.items() if not come)

    @property
    def acks(self) -> tuple[Acknowledgement, ...]:
        """Everything that has come, in the order of the labels."""
        return tuple(ack for come in self._come.values() for ack in come)

    def wants(self, label: str) -> bool:
        """Whether the label was asked for, answered or not."""
        return label in self._come

    def take(self, ack: Acknowledgement) -> bool:
        """Note an acknowledgement; False for one that nobody asked for, or that is one too many with its label."""
        come = self._come.get(ack.label)
        if come is None:
            return False
        if not come:
            self._missing -= 1
        elif come[0].headers.get("ditto-weak-ack"):
            # Whoever was not asked has answered all the same.
            come.clear()
        elif ack.headers.get("ditto-weak-ack"):
            return True
        elif len(come) >= _MOST_OF_ONE:
            return False
        come.append(ack)
        return True

    def expire(self, correlation_id: str | None, seconds: float) -> None:
        """The time is over: what is missing has failed."""
        for label in self.missing:
            self.take(timed_out(self.entity, label, self.channel, correlation_id, seconds))

    @property
    def status(self) -> int:
        return aggregate_status(self.acks)

    @property
    def outcome(self) -> Outcome:
        """What becomes of the delivery of the command."""
        return outcome_of_acks((ack.label, ack.status) for ack in self.acks)


def aggregate_status(acks: Sequence[Acknowledgement]) -> int:
    """The status of several acknowledgements: that of the only one; 200 if all are successes; else 424."""
    if len(acks) == 1:
        return acks[0].status
    return 200 if all(is_success(ack.status) for ack in acks) else _DEPENDENCY_FAILED


# --- what becomes of a delivery -----------------------------------------------------------------------------------------

_UNREADABLE: Final = ("json.", "headers.", "protocoladapter:", "mediatype.")
"""How the codes begin of what is wrong with a message and not with what it wants."""

_GRAVITY: Final[Mapping[Outcome, int]] = {Outcome.SETTLED: 0, Outcome.DROPPED: 1, Outcome.REDELIVER: 2}


def worse(one: Outcome, other: Outcome) -> Outcome:
    """The outcome of a delivery with two signals that ended so: one that wants to come again takes the others along."""
    return one if _GRAVITY[one] >= _GRAVITY[other] else other


def outcome_of_failure(status: int) -> Outcome:
    """The outcome of an acknowledgement or response with this status."""
    if status < _FIRST_FAILURE:
        return Outcome.SETTLED
    may_go_well_later = status in (_TIMED_OUT, _DEPENDENCY_FAILED) or status >= _FIRST_SERVER_FAULT
    return Outcome.REDELIVER if may_go_well_later else Outcome.DROPPED


def outcome_of_error(fault: Fault) -> Outcome:
    """The outcome of a command that asked for acknowledgements and was refused.

    A condition that does not hold is no failure: the command has done what it should. And what cannot be read is settled,
    wherever that is found out.
    """
    is_unreadable = fault.error.startswith(_UNREADABLE)
    return (
        Outcome.SETTLED if is_unreadable or fault.status == _PRECONDITION_FAILED else outcome_of_failure(fault.status)
    )


def outcome_of_live_response(status: int) -> Outcome:
    """The outcome of a live signal that was answered: whatever a device says, it has got the signal."""
    return Outcome.REDELIVER if status == _TIMED_OUT else Outcome.SETTLED


def outcome_of_acks(acks: Iterable[tuple[str, int]]) -> Outcome:
    """The outcome of labels with their statuses, each of which counts for itself."""
    outcome = Outcome.SETTLED
    for label, status in acks:
        judge = outcome_of_live_response if label == LIVE_RESPONSE else outcome_of_failure
        outcome = worse(outcome, judge(status))
    return outcome

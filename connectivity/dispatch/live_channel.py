"""The live channel between connections: who is sent a signal, and how its answer finds back.

A live signal goes to every target of the other open connections whose interest lets it through
(`connectivity.targets.topic_filter`), each with the extra fields that it wants. It rests nowhere: where a broker is away
nothing is sent, since a command that arrives minutes later does harm; what no link has taken in its time stays; where too
many wait for a broker, the next ones are lost. Whoever asked for an acknowledgement is told all of this, by the labels that
a target issues. A weak one is given only in the place of one that nobody who was reached can give (Ditto connections, live
channel; weak acknowledgements).

An answer says by its correlation id what it answers. It leaves with the headers of the request, since these lead to the
requester, and with those that it alone has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from connectivity.connections.templates import DIVERT_TO, DIVERTED_TYPES
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.sources.acknowledgements import RequestedAcks, weak
from connectivity.targets.directory import ConnectionDirectory, OpenConnection
from connectivity.targets.outbox import PendingPublish
from connectivity.targets.signal_context import CurrentState, SignalContext, SuppressionReason
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Done, unobserved
from mappings.errors import Fault
from mappings.ids import LIVE_RESPONSE
from mappings.model.signals import (
    Acknowledgement,
    Live,
    LiveAnswer,
    LiveCommand,
    LiveResponse,
    Message,
    MessageResponse,
)

Acknowledge = Callable[[Acknowledgement], object]
"""Takes what a connection says about a signal, or the service in its place."""

_OF_REQUESTS = frozenset({"response-required", "requested-acks", "timeout", "reply-to", DIVERT_TO, DIVERTED_TYPES})
"""What only the request may say about the way of its answer."""

_AWAY = PublishFailed("the broker is away")
_UNSENT = PendingPublish(0, None)


class LiveChannel:
    """Sends live signals to the members. Keeps nothing."""

    def __init__(self, members: ConnectionDirectory, present: CurrentState) -> None:
        self._members = members
        self._present = present

    def publish(
        self, signal: Live, origin: str, labels: Sequence[str], acknowledge: Acknowledge
    ) -> list[PendingPublish]:
        """Send a signal that came from the connection `origin`, which itself is sent nothing.

        `acknowledge` is told what comes of those of the `labels` that a target issues or a connection declares that is not
        reached; it may be called during this call or later.
        """
        others = [member for member in self._members if member.connection_id != origin]
        asked = _Recipients(signal, labels, others, acknowledge)
        happening = SignalContext(signal, self._present)
        postings = []
        for member in others:
            for target in member.targets:
                label = target.label if target.label in labels else None
                tell = _teller(signal, target, label, acknowledge) if label is not None else unobserved
                seen = target.judge(happening)
                if isinstance(seen, SuppressionReason):
                    posting = None
                elif target.outbox.is_attached:
                    posting = target.post(seen, tell, partial(asked.drop, member, label))
                else:
                    posting = _UNSENT
                    target.facts.not_published.note(signal, words=str(_AWAY))
                    tell(_AWAY)
                if posting is not None:
                    asked.reach(member, label)
                    postings.append(posting)
                elif label is not None:
                    asked.kept.append(label)
        asked.excuse()
        return postings


class _Recipients:
    """Who was reached by a signal and may still answer it; the labels that nobody can give are given weakly.

    `kept`: the labels of targets that the signal was kept from.
    """

    def __init__(
        self, signal: Live, labels: Sequence[str], members: Sequence[OpenConnection], acknowledge: Acknowledge
    ) -> None:
        self.kept: list[str] = []
        self._signal, self._labels, self._members, self._acknowledge = signal, labels, members, acknowledge
        self._promised: Counter[str | None] = Counter()
        """Label → how many may still give it: whoever is reached may be the device."""
        self._reached: Counter[str] = Counter()
        """Connection → how many of its targets were reached."""

    def reach(self, member: OpenConnection, label: str | None) -> None:
        """A target was sent the signal, or is to blame for not being so. `label`: the one that it is asked for."""
        self._promised.update((LIVE_RESPONSE, label))
        self._reached[member.connection_id] += 1

    def drop(self, member: OpenConnection, label: str | None) -> None:
        """The scripts of a target that seemed to be reached have dropped the signal."""
        self._promised.subtract((LIVE_RESPONSE, label))
        self._reached[member.connection_id] -= 1
        if label is not None:
            self.kept.append(label)
        self.excuse()

    def excuse(self) -> None:
        """Acknowledge in the place of those who were not asked."""
        silent = [member for member in self._members if not self._reached[member.connection_id]]
        declared = [label for label in self._labels if any(label in member.declared for member in silent)]
        for label in dict.fromkeys((*self.kept, *declared)):
            if not self._promised[label]:
                self._acknowledge(_weak(self._signal, label))


def outgoing(signal: Live, wish: RequestedAcks) -> Live:
    """The signal as it leaves: it says what its requester waits for, also where that was left to the defaults."""
    headers = {**signal.headers, "response-required": wish.is_answered, "requested-acks": list(wish.labels)}
    return replace(signal, headers=headers)


def fits(answer: LiveAnswer, request: object) -> bool:
    """Whether an answer with the request's correlation id and entity is of the kind that the request wants."""
    if isinstance(answer, MessageResponse):
        return isinstance(request, Message) and (answer.subject, answer.path) == (request.subject, request.path)
    return isinstance(request, LiveCommand) and answer.action == request.action


def unexpected(answer: LiveAnswer) -> Fault:
    """Why an answer is not delivered."""
    return Fault(
        400,
        "signal.unsupported",
        f"Nobody waits for this answer of '{answer.entity}'.",
        "Check the correlation id, the topic and the path, and whether the answer came in time.",
    )


def forwarded(answer: LiveAnswer, request: Message | LiveCommand) -> LiveAnswer:
    """The answer as its requester gets it. What the two have in common is the request's, apart from the content type."""
    theirs = {name: value for name, value in answer.headers.items() if name not in _OF_REQUESTS}
    headers: dict[str, Any] = {**theirs, **request.headers}
    headers.pop("content-type", None)
    if (content_type := answer.headers.get("content-type")) is not None:
        headers["content-type"] = content_type
    return replace(answer, headers=headers)


def issued_answer(request: Message | LiveCommand, status: int) -> LiveAnswer:
    """The answer that a target gives which issues `live-response`."""
    if isinstance(request, Message):
        return MessageResponse(
            request.entity, request.direction, request.subject, request.path, status, None, request.headers
        )
    return LiveResponse(request.entity, request.action, request.path, status, None, request.headers)


def _weak(signal: Live, label: str) -> Acknowledgement:
    return weak(signal.entity, label, "live", signal.headers.get("correlation-id"))


def _teller(signal: Live, target: TargetPublisher, label: str, acknowledge: Acknowledge) -> Done:
    """What a target that issues a label says when its broker has confirmed, or has not."""
    entity, correlation_id = signal.entity, signal.headers.get("correlation-id")

    def tell(error: ConnectivityError | None) -> None:
        acknowledge(target.issued(label, entity, error, correlation_id, "live"))

    return tell

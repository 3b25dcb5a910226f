"""Decides which targets acknowledge an event, and gives weak acknowledgements for the others.

When an event is durable whose command requests acknowledgements, the targets of all other connections are checked against
the current state. A target that issues a label and matches the event gives it when its broker has confirmed. One that does
not match is replaced by a weak acknowledgement, unless another target may give the label. A label that a connection declares
is waited for if one of its targets matches, or if none subscribes to events, since then it reads them in another way. For
the connection that caused the event there are none (Ditto connections, weak acknowledgements).

A target that has passed the event is sent it again, so a redelivered command collects acknowledgements without a new event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from connectivity.errors import PublishFailed
from connectivity.sources.acknowledgements import weak
from connectivity.targets.event_cursor import EventCursor, Result
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.open_connection import OpenConnection
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext, SuppressionReason
from mappings.model.signals import Acknowledgement, TwinEvent
from spark_store.records import PublishedEvent

_FAILURES = {
    reason: PublishFailed(reason.value, status=status)
    for reason, status in ((SuppressionReason.ENRICHMENT, 500), (SuppressionReason.EXPENSIVE, 400))
}
"""The failures of targets that the event may be for, but is not sent to."""

Acknowledge = Callable[[Acknowledgement], object]


class WeakAcknowledgements:
    """The labels of one event and the targets that may give them. `is_vain`: the request has ended."""

    def __init__(
        self,
        published: PublishedEvent,
        labels: Sequence[str],
        correlation_id: str | None,
        acknowledge: Acknowledge,
        is_vain: Callable[[], bool],
    ) -> None:
        self._published = published
        self._labels = labels
        self._correlation_id = correlation_id
        self._acknowledge = acknowledge
        self.is_vain = is_vain
        self._expected: Counter[str] = Counter()
        """Number of targets that may give each label."""
        self._suppressed: list[str] = []
        """Labels of targets that the event is not sent to."""

    def collect(self, members: Iterable[OpenConnection], cursors: EventPublisher, origin: str) -> None:
        """Check the targets of all connections but `origin`; may acknowledge during this call.

        Raises StoreUnavailable.
        """
        context = cursors.signal_context(self._published)
        reached = [
            each
            for member in members
            if member.connection_id != origin
            for each in self._matching_cursors(member, cursors.of(member.connection_id), context)
        ]
        for cursor, labels, event in reached:
            on_result = _ResultCallback(self, cursor, labels)
            if cursor.is_passed(self._published.seq):
                cursor.again(event, on_result)
            else:
                cursor.listen(self._published.seq, on_result)
        self._acknowledge_weakly()

    def _matching_cursors(
        self, member: OpenConnection, cursors: Sequence[EventCursor], context: SignalContext[TwinEvent]
    ) -> list[tuple[EventCursor, Sequence[str], TwinEvent]]:
        """Return the cursors whose targets match, with the labels that depend on each, and their event."""
        declared = [label for label in self._labels if label in member.declared]
        # A target that does not subscribe to events is treated like one whose filter does not match.
        self._suppressed += [
            label
            for target in member.targets
            if TWIN_EVENTS not in target.interest and (label := target.label) is not None and label in self._labels
        ]
        if declared and not cursors:
            # Without event targets it reads events in another way.
            self._expected.update(declared)
            return []
        reached: list[tuple[EventCursor, Sequence[str], TwinEvent]] = []
        for cursor in cursors:
            issued = [label for label in self._labels if label == cursor.route.label]
            if not issued and not declared:
                continue
            matched = cursor.route.interest.filter(context)
            if not isinstance(matched, SuppressionReason):
                reached.append((cursor, [*issued, *declared], matched))
            elif (failure := _FAILURES.get(matched)) is not None:
                self._expected.update([*issued, *declared])
                self.note_result(cursor, issued, failure)
            else:
                self._suppressed += issued
        self._expected.update(label for _, labels, _ in reached for label in labels)
        if not reached:
            self._suppressed += declared
        return reached

    def note_result(self, cursor: EventCursor, labels: Sequence[str], result: Result) -> None:
        """Process the result of publishing the event to a target that gives these labels."""
        if self.is_vain():
            return
        route = cursor.route
        if isinstance(result, SuppressionReason):
            # The target matched before, but no longer does.
            self._expected.subtract(labels)
            self._suppressed += labels
            self._acknowledge_weakly()
            return
        if route.label is None or route.label not in labels:
            # The broker has the event; the subscriber sends the declared label.
            return
        self._acknowledge(
            route.issued_acknowledgement(
                route.label, self._published.event.entity, result, self._correlation_id, "twin"
            )
        )

    def _acknowledge_weakly(self) -> None:
        for label in dict.fromkeys(self._suppressed):
            if self._expected[label] <= 0:
                self._acknowledge(weak(self._published.event.entity, label, "twin", self._correlation_id))


class _ResultCallback:
    """Callback of a cursor for the result of an event; some reasons not to send it are failures."""

    __slots__ = ("_cursor", "_labels", "_weak_acks")

    def __init__(self, weak_acks: WeakAcknowledgements, cursor: EventCursor, labels: Sequence[str]) -> None:
        self._weak_acks, self._cursor, self._labels = weak_acks, cursor, labels

    def __call__(self, result: Result) -> None:
        failure = _FAILURES.get(result) if isinstance(result, SuppressionReason) else None
        self._weak_acks.note_result(self._cursor, self._labels, failure or result)

    @property
    def is_vain(self) -> bool:
        return self._weak_acks.is_vain()

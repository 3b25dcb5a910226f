"""Who may acknowledge an event of a twin, and who is acknowledged for in its place.

When an event is durable whose command asks for acknowledgements, the targets of all other connections are looked at, as
things are now: a target that issues a label and is meant to have the event will give it when its broker has confirmed; one
that the event is kept from is excused at once, by a weak acknowledgement, unless another one may give the same label. The
same goes for a label that a connection declares: it is waited for if any of the connection's targets is meant to have the
event, or if none of them is for events at all, since then it hears of them in another way. For the connection that caused
the event nobody is excused (Ditto connections, weak acknowledgements).

A target that has passed the event already is sent it again: so a redelivered command, whose acknowledgements failed,
collects anew without a new event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from connectivity.errors import PublishFailed
from connectivity.sources.acknowledgements import weak
from connectivity.targets.directory import OpenConnection
from connectivity.targets.event_cursor import EventCursor, Result
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext, SuppressionReason
from mappings.model.signals import Acknowledgement, TwinEvent
from spark_store.records import PublishedEvent

_NOT_ENRICHED = PublishFailed(SuppressionReason.ENRICHMENT.value, status=500)

Acknowledge = Callable[[Acknowledgement], object]


class WeakAcknowledgements:
    """The labels of one event, and who has promised them. `is_vain` is asked whether anybody still wants to know."""

    def __init__(
        self,
        found: PublishedEvent,
        labels: Sequence[str],
        correlation_id: str | None,
        acknowledge: Acknowledge,
        is_vain: Callable[[], bool],
    ) -> None:
        self._found = found
        self._labels = labels
        self._correlation_id = correlation_id
        self._acknowledge = acknowledge
        self.is_vain = is_vain
        self._promised: Counter[str] = Counter()
        """Label → how many may still give it."""
        self._kept: list[str] = []
        """Labels of those that the event was kept from."""

    def collect(self, members: Iterable[OpenConnection], cursors: EventPublisher, origin: str) -> None:
        """Look at everybody but the connection `origin`. What can be said at once is said during this call.

        Raises StoreUnavailable.
        """
        happening = cursors.happening(self._found)
        reached = [
            each
            for member in members
            if member.connection_id != origin
            for each in self._look_at(member, cursors.of(member.connection_id), happening)
        ]
        for cursor, labels, event in reached:
            told = _Told(self, cursor, labels)
            if cursor.is_passed(self._found.seq):
                cursor.again(event, told)
            else:
                cursor.listen(self._found.seq, told)
        self._excuse()

    def _look_at(
        self, member: OpenConnection, cursors: Sequence[EventCursor], happening: SignalContext[TwinEvent]
    ) -> list[tuple[EventCursor, Sequence[str], TwinEvent]]:
        """The cursors of a connection that the event is for, with the labels that depend on each, and what it is sent."""
        declared = [label for label in self._labels if label in member.declared]
        # A target without a topic of events is kept from this one, like one whose filter does not let it through.
        self._kept += [
            label
            for target in member.targets
            if TWIN_EVENTS not in target.interest and (label := target.label) is not None and label in self._labels
        ]
        if declared and not cursors:
            # It hears of events in another way than by its targets.
            self._promised.update(declared)
            return []
        reached: list[tuple[EventCursor, Sequence[str], TwinEvent]] = []
        for cursor in cursors:
            issued = [label for label in self._labels if label == cursor.route.label]
            if not issued and not declared:
                continue
            judged = cursor.route.interest.judge_shared(happening)
            if judged is SuppressionReason.ENRICHMENT:
                # It is meant to have the event, and cannot: that is no success.
                self._promised.update([*issued, *declared])
                self.tell(cursor, issued, _NOT_ENRICHED)
            elif isinstance(judged, SuppressionReason):
                self._kept += issued
            else:
                reached.append((cursor, [*issued, *declared], judged))
        self._promised.update(label for _, labels, _ in reached for label in labels)
        if not reached:
            self._kept += declared
        return reached

    def tell(self, cursor: EventCursor, labels: Sequence[str], result: Result) -> None:
        """What has become of the event at a target on which these labels depend."""
        if self.is_vain():
            return
        route = cursor.route
        if isinstance(result, SuppressionReason):
            # It was to have the event, and something has come between.
            self._promised.subtract(labels)
            self._kept += labels
            self._excuse()
            return
        if route.label is None or route.label not in labels:
            # The broker has the event; the rest is the subscriber's to say.
            return
        self._acknowledge(route.issued(route.label, self._found.event.entity, result, self._correlation_id, "twin"))

    def _excuse(self) -> None:
        for label in dict.fromkeys(self._kept):
            if self._promised[label] <= 0:
                self._acknowledge(weak(self._found.event.entity, label, "twin", self._correlation_id))


class _Told:
    """What a cursor tells about the event. A target that could not complete it has failed."""

    __slots__ = ("_cursor", "_labels", "_promises")

    def __init__(self, promises: WeakAcknowledgements, cursor: EventCursor, labels: Sequence[str]) -> None:
        self._promises, self._cursor, self._labels = promises, cursor, labels

    def __call__(self, result: Result) -> None:
        if result is SuppressionReason.ENRICHMENT:
            result = _NOT_ENRICHED
        self._promises.tell(self._cursor, self._labels, result)

    @property
    def is_vain(self) -> bool:
        return self._promises.is_vain()

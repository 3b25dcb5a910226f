"""Things that change, and targets with filters for their events.

harness = TopicFilterHarness()
event = harness.apply(action, path, value)
harness.received(interest(filter), [event])    # the events that pass this filter
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from connectivity.authorization.enforcer import Enforcer
from connectivity.targets.signal_context import TWIN_EVENTS, S, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.twins.incarnations import EntityLives
from mappings.ids import EntityId
from mappings.model.signals import Event, TwinEvent
from spark_store.records import Snapshot
from tests.support.twin_harness import OWNER, THING, TwinHarness, twin_harness

CLOCK = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def topic(filter: str | None = None, extra: str | None = None, namespaces: str | None = None) -> str:
    """Return a topic of twin events with these parameters."""
    parameters = {"namespaces": namespaces, "filter": filter, "extraFields": extra}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items() if value is not None)
    return f"{TWIN_EVENTS}?{query}" if query else TWIN_EVENTS


def interest(
    filter: str | None = None,
    extra: str | None = None,
    namespaces: str | None = None,
    subjects: Sequence[str] = (OWNER,),
) -> TopicFilter:
    return TopicFilter([topic(filter, extra, namespaces)], subjects)


@dataclass
class TopicFilterHarness:
    """A harness of decisions as the current state for topic filters."""

    harness: TwinHarness = field(default_factory=twin_harness)
    clock: datetime = CLOCK

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return self.harness.lookup.snapshot(entity)

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:
        return self.harness.lookup.enforcer(policy_id)

    @property
    def lives(self) -> EntityLives:
        return self.harness.lookup.lives

    def permissions(self, policy_id: str) -> bytes | None:
        return self.harness.lookup.permissions(policy_id)

    def past_enforcer(self, permissions: bytes | None, namespace: str) -> Enforcer | None:
        return self.harness.lookup.past_enforcer(permissions, namespace)

    def now(self) -> datetime:
        return self.clock

    def apply(self, action: str, path: str = "/", value: Any = ..., *, to: str = THING, **headers: Any) -> TwinEvent:
        """Carry out a command and return its event."""
        self.harness.send(action, path, value, to=to, **headers)
        return on_its_way(self.harness.events[-1], {name.replace("_", "-"): header for name, header in headers.items()})

    def judge(self, who: TopicFilter, signal: S) -> S | SuppressionReason:
        """Return the signal as a target with this filter receives it, or why it does not."""
        return who.filter(SignalContext(signal, self, self.now))

    def received(self, who: TopicFilter, events: Sequence[TwinEvent]) -> list[TwinEvent]:
        """Return the events that a target with this filter receives."""
        answers = [who.filter(SignalContext(event, self, self.now)) for event in events]
        return [answer for answer in answers if not isinstance(answer, SuppressionReason)]


def on_its_way(event: Event, headers: dict[str, Any] | None = None) -> TwinEvent:
    """Return a journal entry as a twin event with these headers."""
    return TwinEvent(*event[:6], headers or {})


def value_of(event: TwinEvent | SuppressionReason) -> Any:
    assert isinstance(event, TwinEvent), event
    return None if event.value is None else json.loads(event.value)


def extra_of(event: TwinEvent | SuppressionReason) -> Any:
    assert isinstance(event, TwinEvent), event
    return None if event.extra is None else json.loads(event.extra)

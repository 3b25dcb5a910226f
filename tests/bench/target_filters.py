"""Measures the decision which of twenty targets receive an event: permissions, filters, extra fields."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from connectivity.authorization.enforcer import Enforcer
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.twins.incarnations import WithoutPast
from mappings.ids import EntityId, EntityType
from mappings.model.signals import TwinEvent
from spark_store.records import Snapshot
from tests.bench.harness import FULL, Scale
from tests.bench.report import Figure

EVENTS, ROUNDS, GOAL = 2_000, 5, 3_000
DESK, VIEWER = "bench:desk", "bench:viewer"

POLICY = {
    "entries": {
        "DESK": {"subjects": {DESK: {}}, "resources": {"thing:/": {"grant": ["READ"], "revoke": []}}},
        "VIEWER": {
            "subjects": {VIEWER: {}},
            "resources": {
                "thing:/": {"grant": ["READ"], "revoke": []},
                "thing:/attributes/contract": {"grant": [], "revoke": ["READ"]},
            },
        },
    }
}

FILTERS: tuple[tuple[str | None, str | None, str | None], ...] = (
    (None, None, None),
    (None, None, "acme.bench"),
    (None, None, "acme.other"),
    ("gt(attributes/power,50)", None, None),
    ("le(attributes/power,50)", None, None),
    ("and(gt(attributes/power,10),lt(attributes/power,20))", None, None),
    ("exists(features/burner)", None, None),
    ("eq(features/burner/properties/on,true)", None, None),
    ("in(topic:action,'created','deleted')", None, None),
    ("and(eq(topic:action,'modified'),like(resource:path,'/attributes*'))", None, None),
    ("eq(attributes/site/hall,'N')", "attributes/site", None),
    ("and(eq(attributes/site/hall,'S'),gt(attributes/power,50))", "attributes/site", None),
    (None, "attributes(serial,site/hall)", None),
    (None, "features/*/properties/on", None),
    ("eq(header:x-shift,'night')", None, None),
    ("like(thing:name,'device-1*')", None, None),
    ("or(exists(attributes/alarm),gt(attributes/power,90))", None, None),
    ("gt(_revision,1000)", None, None),
    ("ne(attributes/serial,'L-7')", None, None),
    ("ge(_modified,time:now-1h)", None, None),
)
"""Filter, extra fields and namespaces of each target."""


class Plant(WithoutPast):
    """A state in which all things have the same value and policy."""

    def __init__(self) -> None:
        self._enforcer = Enforcer(POLICY)
        self._state = {
            "attributes": {"serial": "L-7", "site": {"hall": "N", "row": 4}, "power": 11, "contract": "C-9"},
            "features": {f"feature-{n}": {"properties": {"on": True, "level": n}} for n in range(5)},
        }

    def snapshot(self, entity: EntityId) -> Snapshot:
        return Snapshot(entity, 2_000_000, "", "", self._state, "acme.bench:policy")

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer:
        return self._enforcer

    def now(self) -> datetime:
        return datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def targets(subjects: tuple[str, ...] = (DESK, VIEWER)) -> list[TopicFilter]:
    """Return a target for each filter, with the subjects in turn."""
    made = []
    for number, (filter, extra, namespaces) in enumerate(FILTERS):
        parameters = {"filter": filter, "extraFields": extra, "namespaces": namespaces}
        query = "&".join(f"{name}={quote(text, safe='')}" for name, text in parameters.items() if text is not None)
        made.append(TopicFilter([f"{TWIN_EVENTS}?{query}"], [subjects[number % len(subjects)]]))
    return made


def event(number: int) -> TwinEvent:
    """Return an event; every fourth one changes a whole branch, of which the viewer cannot read a part."""
    entity = EntityId(EntityType.THING, "acme.bench", f"device-{number % 100}")
    place, value = ("/attributes/power", b"%d.5" % (number % 100))
    if number % 4 == 0:
        place, value = "/attributes", b'{"power":%d.5,"serial":"L-7","contract":"C-%d"}' % (number % 100, number)
    return TwinEvent(entity, number, "2030-01-15T07:29:00.000000Z", "modified", place, value, {"x-shift": "night"})


def judged(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Measure the events per second for which twenty targets are decided, each event once for all."""
    audience, plant = targets(), Plant()
    events = [event(number) for number in range(1, scale.of(EVENTS, 100) + 1)]
    rates, spent, published = [], 0.0, 0
    for _ in range(scale.of(ROUNDS, 1)):
        begun, processor = time.perf_counter(), time.process_time()
        published = 0
        for each in events:
            signal_context = SignalContext(each, plant, plant.now)
            published += sum(not isinstance(target.filter(signal_context), SuppressionReason) for target in audience)
        rates.append(len(events) / (time.perf_counter() - begun))
        spent = (time.process_time() - processor) / len(events) * 1e6
    rate = statistics.median(rates)
    return [
        Figure(
            f"one event judged for {len(audience)} targets with different filters, in process",
            f"{rate:,.0f} events/s",
            "–",
            f"≥ {GOAL:,}/s end to end",
            rate >= GOAL,
            f"{spent:.0f} µs of processor per event; {published / len(events):.1f} targets receive each event",
        )
    ]

"""The remaining lifetime of an event, by the retention rules of operators."""

from __future__ import annotations

from typing import Any

from connectivity.config.settings import Settings, SparkMode
from connectivity.sessions.base import RetentionTimes
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.timestamps import milliseconds
from tests.support.table import each_row

STORED = "2030-01-15T07:30:00.250000Z"
AT = milliseconds(STORED)
DAY = 86_400


def left(retention: Any, seconds: float, namespace: str = "acme.plant", mode: SparkMode = SparkMode.EMBEDDED) -> int:
    """Return the remaining seconds of an event, so long after it was stored."""
    kept = Settings.model_validate({"lake": {"retention": retention}}).lake.retention
    event = Event(EntityId(EntityType.THING, namespace, "x"), 7, STORED, "modified", "/", b"{}", b"{}")
    return RetentionTimes(kept, mode).remaining_seconds(event, AT + round(1000 * seconds))


@each_row(
    ("retention", "seconds", "expected"),
    [
        ("forever", 0, 0),
        ("30d", 0, 30 * DAY),
        ("1d", 0.5, DAY - 1),
        ("1d", DAY - 0.5, 1),
        ("1d", 2 * DAY, 1),
        ({"revisions": 10}, 2 * DAY, 0),
        ({"days": 1, "revisions": 10}, 0, DAY),
        ({"days": 1, "revisions": 10}, DAY, 0),
        ({"default": "1d", "acme.plant": "2d"}, 0, 2 * DAY),
        ({"default": "1d", "acme.plant": "forever"}, 0, 0),
        ({"default": "1d", "acme.other": "forever"}, 0, DAY),
    ],
)
def test_the_remaining_lifetime_of_an_event_follows_from_the_retention_rules(
    retention: Any, seconds: float, expected: int
) -> None:
    assert left(retention, seconds) == expected


def test_an_event_of_no_namespace_is_kept_by_default() -> None:
    assert left({"default": "1d", "acme.plant": "2d"}, 0, namespace="") == DAY


def test_without_a_lake_everything_is_kept() -> None:
    assert left("1d", 0, mode=SparkMode.OFF) == 0

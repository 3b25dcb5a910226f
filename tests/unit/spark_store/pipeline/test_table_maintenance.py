"""When maintenance is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spark_store.journal.reader import JournalEntry
from spark_store.lake.clock import ClockReading, Uptime
from spark_store.lake.watermark import RetentionRun, Watermark
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.table_maintenance import MaintenanceState, due, resume_times
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
KINDS = ("retention", "optimize", "vacuum")
FRESH = MaintenanceState(dict.fromkeys(KINDS, NOW))
LONG_AGO = NOW - timedelta(days=1)
DAY = timedelta(days=1)


@each_row(
    ("done", "expected"),
    [
        (FRESH, []),
        (FRESH._replace(batches=64), ["optimize"]),
        (FRESH._replace(batches=63), []),
        (FRESH._replace(batches=1, files=256), ["optimize"]),
        (FRESH._replace(batches=1, files=255), []),
        (FRESH._replace(batches=1, done={**FRESH.done, "optimize": LONG_AGO}), ["optimize"]),
        # Nothing was written: there is nothing to compact, however long ago the last time was.
        (FRESH._replace(done={**FRESH.done, "optimize": LONG_AGO}), []),
        (FRESH._replace(done={**FRESH.done, "vacuum": LONG_AGO, "retention": LONG_AGO}), ["retention", "vacuum"]),
        (FRESH._replace(events=200_000), ["full_snapshot"]),
        (FRESH._replace(events=199_999), []),
        # A moment has a row for each of them.
        (FRESH._replace(events=599_999, entities=300_000), []),
        (FRESH._replace(events=600_000, entities=300_000), ["full_snapshot"]),
    ],
)
def test_maintenance_is_due_by_number_and_by_time(done: MaintenanceState, expected: list[str]) -> None:
    assert due(done, NOW, PipelineSettings(retention=RetentionRules(RetentionRule(DAY)))) == expected


@each_row(
    ("entity", "age", "newest", "expected"),
    [
        ("a:lamp", 2, 5, True),
        ("a:lamp", 0, 99, False),
        ("b:lamp", 99, 99, False),
        ("c:lamp", 2, 5, False),
        ("c:lamp", 4, 5, True),
        ("d:lamp", 99, 7, False),
        ("d:lamp", 0, 8, True),
        ("e:lamp", 0, 8, False),
        ("e:lamp", 2, 7, False),
        ("e:lamp", 2, 8, True),
        ("f:lamp", 9999, 9999, False),
    ],
)
def test_an_event_expires_by_its_namespace(entity: str, age: int, newest: int, expected: bool) -> None:
    rules = {
        "b": RetentionRule(),
        "c": RetentionRule(3 * DAY),
        "d": RetentionRule(revisions=3),
        "e": RetentionRule(DAY, 3),
        "f": RetentionRule(1_000_000 * DAY),
    }
    retention = RetentionRules(RetentionRule(DAY), rules)
    happened = f"{(NOW - age * DAY).isoformat(timespec='microseconds')[:26]}Z"
    entry = JournalEntry("thing", entity, 5, 5, happened, "modified", "/", b"{}", b"{}")
    assert retention.has_expired(entry, newest, NOW) is expected


def test_a_clock_that_was_set_back_delays_no_maintenance() -> None:
    """Nobody knows how long it is since a time to come."""
    later = NOW + 365 * DAY
    done = MaintenanceState(dict.fromkeys(KINDS, later), 1)
    assert due(done, NOW, PipelineSettings(retention=RetentionRules(RetentionRule(DAY)))) == [
        "retention",
        "optimize",
        "vacuum",
    ]
    assert due(done._replace(batches=0), NOW, PipelineSettings()) == ["vacuum"]


def reading(at: datetime) -> ClockReading:
    return ClockReading(at, LONG_AGO, Uptime("boot", 5.0), 0.0)


def text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("waited", "grace", "left"),
    [(4, 1, 6), (4, 0, 6), (9.5, 1, 1), (60, 1, 1), (60, 0, 0), (-60, 1, 10), (0, 1, 10)],
    ids=["not yet", "nor here", "soon", "overdue", "overdue, and soon over", "a time to come", "just now"],
)
def test_a_start_continues_waiting_where_the_process_before_it_was(waited: float, grace: float, left: float) -> None:
    """In minutes, of ten that each kind of maintenance waits. What is overdue lets new events go first."""
    every, minute = timedelta(minutes=10), timedelta(minutes=1)
    maintenance = PipelineSettings(
        optimize_every=every, vacuum_every=every, retention_every=every, retention=RetentionRules(RetentionRule(DAY))
    )
    at = NOW - waited * minute
    done = Watermark(optimized=text(at), vacuumed=text(at), retention=RetentionRun(reading(at), 0))
    for watermark, made in ((done, LONG_AGO), (Watermark(), at)):
        times = resume_times(watermark, made, NOW, maintenance, grace * minute)
        found = MaintenanceState(times, batches=1)
        begins = NOW + left * minute
        assert due(found, begins, maintenance) == ["retention", "optimize", "vacuum"]
        if left:
            before = begins - timedelta(seconds=1)
            assert due(found, before, maintenance) == []


def test_a_start_continues_waiting_however_long_that_is() -> None:
    maintenance = PipelineSettings(vacuum_every=timedelta.max)
    found = resume_times(Watermark(vacuumed=text(LONG_AGO)), NOW, NOW, maintenance, timedelta(0))
    assert found["vacuum"] == LONG_AGO
    found = resume_times(
        Watermark(retention=RetentionRun(reading(NOW - DAY / 48), 0)), NOW, NOW, maintenance, timedelta(0)
    )
    assert found["retention"] == NOW - DAY / 48
    # By hand, since then.
    done = RetentionRun(reading(LONG_AGO), 0, text(NOW - DAY / 48))
    found = resume_times(Watermark(retention=done), NOW, NOW, maintenance, timedelta(0))
    assert found["retention"] == NOW - DAY / 48


def test_nothing_is_forgotten_where_everything_is_kept() -> None:
    waited = FRESH._replace(done={**FRESH.done, "retention": LONG_AGO})
    for rules in (RetentionRules(), RetentionRules(namespaces={"a": RetentionRule()})):
        assert due(waited, NOW, PipelineSettings(retention=rules)) == []

"""When maintenance is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from spark_store.journal.reader import JournalEntry
from spark_store.lake.clock import ClockReading, Uptime
from spark_store.lake.watermark import RetentionRun, Watermark
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.table_maintenance import MaintenanceState, due, waited
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
KINDS = ("retention", "optimize", "vacuum")
DAY = timedelta(days=1)
FRESH = MaintenanceState(dict.fromkeys(KINDS, timedelta(0)), DAY)
LONG_AGO = NOW - DAY


@each_row(
    ("state", "expected"),
    [
        (FRESH, []),
        (FRESH._replace(batches=64), ["optimize"]),
        (FRESH._replace(batches=63), []),
        (FRESH._replace(batches=1, files=256), ["optimize"]),
        (FRESH._replace(batches=1, files=255), []),
        (FRESH._replace(batches=1, waited={**FRESH.waited, "optimize": DAY}), ["optimize"]),
        # Without a write there is nothing to compact, after any time.
        (FRESH._replace(waited={**FRESH.waited, "optimize": DAY}), []),
        (FRESH._replace(waited={**FRESH.waited, "vacuum": DAY, "retention": DAY}), ["retention", "vacuum"]),
        (FRESH._replace(events=200_000), ["full_snapshot"]),
        (FRESH._replace(events=199_999), []),
        # A full snapshot has a row for each entity.
        (FRESH._replace(events=599_999, entities=300_000), []),
        (FRESH._replace(events=600_000, entities=300_000), ["full_snapshot"]),
    ],
)
def test_maintenance_is_due_by_number_and_by_time(state: MaintenanceState, expected: list[str]) -> None:
    assert due(state, PipelineSettings(retention=RetentionRules(RetentionRule(DAY)))) == expected


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


def reading(at: datetime) -> ClockReading:
    return ClockReading(at, LONG_AGO, Uptime("boot", 5.0), 0.0)


def text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def test_a_kind_of_maintenance_has_waited_since_it_was_done_also_by_an_earlier_process() -> None:
    minute = timedelta(minutes=1)
    run = RetentionRun(reading(LONG_AGO), 0)
    done = Watermark(optimized=text(NOW - minute), vacuumed=text(NOW - 2 * minute), retention=run)
    expected = {"optimize": minute, "vacuum": 2 * minute, "retention": DAY}
    assert waited(done, LONG_AGO, NOW) == expected
    by_hand = Watermark(retention=RetentionRun(reading(LONG_AGO), 0, text(NOW - minute)))
    assert waited(by_hand, LONG_AGO, NOW) == {"optimize": DAY, "vacuum": DAY, "retention": minute}


def test_a_clock_that_was_set_back_delays_no_maintenance() -> None:
    """The time since a future moment is unknown."""
    later = NOW + 365 * DAY
    done = Watermark(optimized=text(later), vacuumed=text(later), retention=RetentionRun(reading(later), 0))
    state = FRESH._replace(waited=waited(done, LONG_AGO, NOW), batches=1)
    assert due(state, PipelineSettings(retention=RetentionRules(RetentionRule(DAY)))) == list(KINDS)
    assert due(state._replace(batches=0), PipelineSettings()) == ["vacuum"]


@each_row(
    ("waited_minutes", "age_minutes", "every_minutes", "is_due"),
    [(9, 60, 10, False), (10, 60, 10, True), (60, 0.9, 10, False), (60, 1, 10, True), (0.5, 0.5, 0.5, True)],
)
def test_overdue_maintenance_lets_new_events_go_first(
    waited_minutes: float, age_minutes: float, every_minutes: float, is_due: bool
) -> None:
    every = timedelta(minutes=every_minutes)
    settings = PipelineSettings(
        optimize_every=every, vacuum_every=every, retention_every=every, retention=RetentionRules(RetentionRule(DAY))
    )
    long = dict.fromkeys(KINDS, timedelta(minutes=waited_minutes))
    state = MaintenanceState(long, timedelta(minutes=age_minutes), batches=1)
    assert due(state, settings) == (list(KINDS) if is_due else [])


def test_nothing_is_forgotten_where_everything_is_kept() -> None:
    long = FRESH._replace(waited={**FRESH.waited, "retention": DAY})
    for rules in (RetentionRules(), RetentionRules(namespaces={"a": RetentionRule()})):
        assert due(long, PipelineSettings(retention=rules)) == []

"""Trimming of the journal: which events are removed, and which never are."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import structlog

from connectivity.maintenance.journal_trimmer import JournalTrimmer, difference
from connectivity.store.store import Store
from mappings.model.signals import Event
from spark_store.journal import erasure
from spark_store.journal.journal import TRIM_EVENTS, Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import EVENTS, Lake
from spark_store.lake.watermark import Watermark, publish_watermark
from spark_store.records import Change, NumberedEvent, OldestEvent
from tests.support.journal_entries import ALL, LAMP, MUCH, POLICY, event, history, snapshot
from tests.support.lake.tables import append_events, append_snapshots, forget
from tests.support.temporary_journal import TemporaryJournal

EVENTS_THERE = 3 * TRIM_EVENTS + 10
HOT = timedelta(minutes=1)


def second(number: float) -> datetime:
    """Return the time of the event with this number."""
    return datetime(2030, 1, 15, tzinfo=UTC) + timedelta(seconds=number, milliseconds=250)


class JournalAndLake(NamedTuple):
    """A journal whose events are one second apart, and a lake that has all of them."""

    journal: TemporaryJournal
    store: Store
    lake: Lake

    def trimmer(self, now: datetime, hot: timedelta = HOT) -> JournalTrimmer:
        return JournalTrimmer(self.store, self.lake, hot, lambda: now)

    def publish(self, seq: int) -> None:
        publish_watermark(self.lake.watermark, Watermark(seq))

    def left(self) -> int:
        """The revision of the oldest event that is still there."""
        oldest = self.journal.oldest()
        return EVENTS_THERE + 1 if oldest is None else oldest.seq


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[JournalAndLake]:
    lake = Lake(tmp_path)
    journal = TemporaryJournal()
    journal.append(history(LAMP, EVENTS_THERE))
    append_events(lake, [(number, event(LAMP, number)) for number in range(1, EVENTS_THERE + 1)])
    lake.pipeline.mkdir(parents=True)
    cold = LakeHistory(lake)
    store = Store(journal, cold=lambda: cold)
    yield JournalAndLake(journal, store, lake)
    await store.close()


async def test_without_a_watermark_everything_stays(both: JournalAndLake) -> None:
    assert await both.trimmer(second(10**6)).round() == 0
    assert both.left() == 1


@pytest.mark.parametrize("seq", [1, TRIM_EVENTS, TRIM_EVENTS + 1, EVENTS_THERE])
async def test_the_trimmer_keeps_events_above_the_watermark(both: JournalAndLake, seq: int) -> None:
    both.publish(seq)
    assert await both.trimmer(second(10**6)).round() == seq
    assert both.left() == seq + 1
    assert both.journal.latest(LAMP) == EVENTS_THERE
    assert both.journal.snapshot(LAMP) is not None


async def test_the_trimmer_keeps_events_within_the_journal_retention(both: JournalAndLake) -> None:
    both.publish(EVENTS_THERE)
    assert await both.trimmer(second(100), timedelta(seconds=30)).round() == 69
    assert both.left() == 70
    assert await both.trimmer(second(100), timedelta(seconds=30)).round() == 0
    assert await both.trimmer(second(101), timedelta(seconds=30)).round() == 1
    assert await both.trimmer(second(10**6), timedelta(days=999_999)).round() == 0


async def test_events_of_a_clock_that_was_ahead_are_trimmed_with_the_first_event_after_them(tmp_path: Path) -> None:
    """Otherwise they would stay, with all later events, until the clock reaches their times."""
    lake, journal, ahead = Lake(tmp_path), TemporaryJournal(), range(5, TRIM_EVENTS + 20)
    events = [event(LAMP, number) for number in range(1, ahead.stop + 10)]
    for number in ahead:
        events[number - 1] = events[number - 1]._replace(timestamp=f"2077-01-01T00:00:00.{number:06}Z")
    journal.append([Change((it,), (snapshot(LAMP, it.revision),)) for it in events])
    append_events(lake, list(enumerate(events, 1)))
    lake.pipeline.mkdir(parents=True)
    publish_watermark(lake.watermark, Watermark(len(events)))
    cold = LakeHistory(lake)
    store = Store(journal, cold=lambda: cold)
    now = [second(ahead.stop) + HOT]
    trimmer = JournalTrimmer(store, lake, HOT, lambda: now[0])
    assert await trimmer.round() == 4
    assert await trimmer.round() == 0
    now[0] += timedelta(seconds=3)
    assert await trimmer.round() == len(ahead) + 3
    assert journal.oldest() == OldestEvent(ahead.stop + 3, event(LAMP, ahead.stop + 3).timestamp)
    await store.close()


async def test_a_journal_whose_events_all_have_future_times_keeps_them(both: JournalAndLake) -> None:
    both.publish(EVENTS_THERE)
    assert await both.trimmer(second(0)).round() == 0
    assert both.left() == 1


async def test_a_watermark_without_its_lake_trims_nothing(both: JournalAndLake) -> None:
    both.publish(EVENTS_THERE)
    shutil.rmtree(both.lake.path(EVENTS))
    trimmer = both.trimmer(second(10**6))
    with structlog.testing.capture_logs() as logs:
        assert await trimmer.round() == 0
        assert await trimmer.round() == 0
    assert [it["event"] for it in logs] == ["journal not trimmed"]
    append_events(both.lake, [(number, event(LAMP, number)) for number in range(1, 6)])
    assert await trimmer.round() == 5
    assert both.journal.events(LAMP, 1, ALL, 1, MUCH)[0].revision == 6


def other(number: int) -> Event:
    """Return an event of a history that differs from the lake's."""
    return event(LAMP, number)._replace(value=b'"other"')


@pytest.mark.parametrize("newest", [6, 8, 10, 14])
async def test_a_journal_restored_from_an_old_backup_keeps_events_missing_in_the_lake(
    tmp_path: Path, newest: int
) -> None:
    """It ends at 6, and gives numbers again that the lake, up to 10, has for other events."""
    lake, journal = Lake(tmp_path), TemporaryJournal()
    append_events(lake, [(number, event(LAMP, number)) for number in range(1, 11)])
    lake.pipeline.mkdir(parents=True)
    publish_watermark(lake.watermark, Watermark(10))
    journal.append(history(LAMP, 6))
    journal.append([Change((other(number),), (snapshot(LAMP, number),)) for number in range(7, newest + 1)])
    cold = LakeHistory(lake)
    store = Store(journal, cold=lambda: cold)
    rounds: list[bool] = []
    trimmer = JournalTrimmer(store, lake, HOT, lambda: second(10**6), on_round=rounds.append)
    with structlog.testing.capture_logs() as logs:
        assert await trimmer.round() == 0
        assert await trimmer.round() == 0
    assert [it["event"] for it in logs] == ["journal not trimmed"]
    assert "do not match" in logs[0]["reason"]
    assert rounds == [False, False]
    assert journal.oldest() == OldestEvent(1, event(LAMP, 1).timestamp)
    await store.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"revision": 8}, "a different revision"),
        ({"timestamp": "2030-01-15T00:00:09.250001Z"}, "a different timestamp"),
        ({"value": b"1"}, "a different value"),
        ({"value": None, "action": "deleted"}, "a different action, value"),
    ],
)
def test_a_comparison_of_two_different_events_names_the_differing_fields(changed: dict[str, Any], message: str) -> None:
    mine = NumberedEvent(9, event(LAMP, 9))
    assert difference(mine, mine, None) is None
    assert message in (difference(mine, NumberedEvent(9, event(LAMP, 9)._replace(**changed)), None) or "")
    assert "with the number 8" in (difference(mine, NumberedEvent(8, event(LAMP, 9)), None) or "")


async def test_a_snapshot_at_the_retention_boundary_confirms_the_events_removed_by_retention(
    both: JournalAndLake,
) -> None:
    """Without one it has been lost."""
    both.publish(20)
    forget(both.lake, "revision <= 30")
    trimmer = both.trimmer(second(10**6))
    append_snapshots(both.lake, [snapshot(LAMP, 19)])
    with structlog.testing.capture_logs() as logs:
        assert await trimmer.round() == 0
    assert "found neither the event nor a snapshot" in logs[0]["reason"]
    append_snapshots(both.lake, [msgspec.structs.replace(snapshot(LAMP, 20), modified=event(LAMP, 20).timestamp)])
    cold = LakeHistory(both.lake)
    store = Store(both.journal, cold=lambda: cold)
    assert await JournalTrimmer(store, both.lake, HOT, lambda: second(10**6)).round() == 20
    await store.close()


async def test_the_trimmer_compares_no_event_of_an_erased_entity(tmp_path: Path) -> None:
    """The journal may still have some of these, which the lake does not show any more."""
    lake, journal = Lake(tmp_path), Journal.open(tmp_path / "journal.db")
    changes = [*history(POLICY, 3), *history(LAMP, 3)]
    journal.append(changes)
    append_events(lake, list(enumerate((it.events[0] for it in changes), 1)))
    lake.pipeline.mkdir(parents=True)
    publish_watermark(lake.watermark, Watermark(6))
    journal.within(lambda it: erasure.begin(it, "thing", LAMP.id, event(LAMP, 3).timestamp, "operator"))
    journal.commit()
    cold = LakeHistory(lake, {LAMP: 6})
    store = Store(journal, cold=lambda: cold)
    assert await JournalTrimmer(store, lake, HOT, lambda: second(10**6)).round() == 6
    assert (journal.oldest(), journal.newest_up_to(6)) == (None, None)
    await store.close()


async def test_trimmed_events_are_counted_and_logged_once_a_minute(both: JournalAndLake) -> None:
    clock = [0.0]
    steps: list[int] = []
    trimmer = JournalTrimmer(
        both.store,
        both.lake,
        HOT,
        lambda: second(10**6),
        on_trim=steps.append,
        clock=lambda: clock[0],
    )
    with structlog.testing.capture_logs() as logs:
        for seq in (TRIM_EVENTS + 1, TRIM_EVENTS + 2):
            both.publish(seq)
            await trimmer.round()
        clock[0] = 61.0
        await trimmer.round()
    assert steps == [TRIM_EVENTS, 1, 1]
    assert [(it["events"], it["oldest"]) for it in logs] == [(TRIM_EVENTS + 1, TRIM_EVENTS + 2), (1, TRIM_EVENTS + 3)]


def parts(lake: Lake) -> dict[str, list[Path]]:
    table = Path(lake.path(EVENTS))
    return {
        "the lake": [lake.folder],
        "a table": [table],
        "its files": [*table.glob("*.parquet")],
        "its log": [table / "_delta_log"],
    }


@pytest.mark.parametrize("missing", ["the lake", "a table", "its files", "its log"])
async def test_trimming_resumes_when_the_lake_is_back(missing: str, both: JournalAndLake, tmp_path: Path) -> None:
    both.publish(EVENTS_THERE)
    moved = parts(both.lake)[missing]
    trimmer = both.trimmer(second(10**6))
    (tmp_path / "elsewhere").mkdir()
    for path in moved:
        path.rename(tmp_path / "elsewhere" / path.name)
    assert await trimmer.round() == 0
    assert both.left() == 1
    for path in moved:
        (tmp_path / "elsewhere" / path.name).rename(path)
    assert await trimmer.round() == EVENTS_THERE

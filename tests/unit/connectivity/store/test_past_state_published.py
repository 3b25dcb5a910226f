"""The first message from an instant on, in the journal or in the lake."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectivity.store import past_state
from connectivity.store.past_state import LEAST, MOST, first_published, next_size
from connectivity.store.store import Store
from mappings.timestamps import milliseconds
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import Lake
from spark_store.records import Change
from tests.support.dice import examples
from tests.support.journal_entries import LATER, MUCH, TANK, timestamp
from tests.support.journal_entries import published as message
from tests.support.lake.tables import append_events, forget
from tests.support.temporary_journal import TemporaryJournal

T = TypeVar("T")


def messages(times: Sequence[int | None]) -> list[Change]:
    """Return a message for each given publisher time; None for no time."""
    headers = [b"{}" if time is None else b'{"ts":%d}' % time for time in times]
    return [message(TANK, offset, headers=each) for offset, each in enumerate(headers, 1)]


async def retrieve_published(
    times: Sequence[int | None], instant: int, trimmed: int = 0, first: int = 1, journal: Journal | None = None
) -> int | None:
    """The answer, where the oldest messages are in the lake alone."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        journal = journal or Journal.open(lake.journal)
        journal.append(messages(times))
        store = Store(journal, cold=lambda: LakeHistory(lake))
        if trimmed:
            append_events(lake, list(enumerate(journal.events(TANK, 1, trimmed, trimmed, MUCH), 1)), rows=3)
            await store.commits.trim(trimmed, LATER)
        found = await first_published(store, TANK, first, len(times), instant)
        await store.close()
        return found


@pytest.mark.parametrize("trimmed", [0, 2, 4])
@pytest.mark.parametrize(
    ("times", "first"),
    [
        pytest.param([4, 5, 6, 7], 2, id="case r11"),
        pytest.param([4, 9, 3, 10], 2, id="case r12"),
        pytest.param([4, 3, 2, 1], None, id="all are earlier"),
        pytest.param([4, None, 9, 3], 2, id="without a time of its own it is the service's"),
    ],
)
async def test_case_r11_and_r12_a_resend_from_a_time_starts_at_the_first_message_that_is_not_earlier(
    times: list[int | None], first: int | None, trimmed: int
) -> None:
    assert await retrieve_published(times, 5, trimmed) == first


NOW = milliseconds(timestamp(3))
TIMES = st.sampled_from([None, -(10**15), -1, 0, 1, NOW - 1, NOW, NOW + 1, 10**15])


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(TIMES, min_size=1, max_size=9),
    st.integers(0, 9),
    st.integers(1, 9),
    st.sampled_from([-(10**16), -1, 0, 1, NOW - 1, NOW, NOW + 1, NOW + 1001, 10**16]),
)
@example([None, None, None], 0, 1, NOW)
@example([None, None, None], 3, 1, NOW)
async def test_the_search_by_time_finds_the_same_message_as_a_full_scan(
    times: list[int | None], trimmed: int, first: int, instant: int
) -> None:
    wanted = [
        offset
        for offset, time in enumerate(times, 1)
        if offset >= first and (milliseconds(timestamp(offset)) if time is None else time) >= instant
    ]
    assert await retrieve_published(times, instant, min(trimmed, len(times)), first) == (wanted[0] if wanted else None)


async def test_long_streams_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_state, "LEAST", 4)
    monkeypatch.setattr(past_state, "COLD", 16)
    assert await retrieve_published([1] * 199 + [5], 5, 90) == 200


def test_portions_grow_while_they_are_quick_and_shrink_while_they_are_not() -> None:
    assert [next_size(1000, seconds) for seconds in (0.001, 0.05, 1.0)] == [2000, 1000, 500]
    assert (next_size(MOST, 0.0), next_size(LEAST, 9.0)) == (MOST, LEAST)


async def test_the_search_by_time_skips_erased_and_expired_messages(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    journal = Journal.open(lake.journal)
    journal.append(messages([9, 9, 9, 9]))
    append_events(lake, list(enumerate(journal.events(TANK, 1, 4, 4, MUCH), 1)))
    store = Store(journal, cold=lambda: LakeHistory(lake))
    await store.commits.trim(3, LATER)
    forget(lake, "revision <= 2")
    assert await first_published(store, TANK, 1, 4, 9) == 3
    await store.commits.execute(
        lambda it: erasure.begin(it, "stream", TANK.id, timestamp(5), "operator"), forgets=store.snapshot(TANK)
    )
    assert await first_published(store, TANK, 1, 4, 9) is None
    # One that is not durable yet is waited for.
    store.commits.submit([message(TANK, 5, headers=b'{"ts":9}')])
    assert await first_published(store, TANK, 1, 5, 9) == 5
    await store.close()


class Trims(Journal):
    """Trims the journal once, immediately before it is read."""

    has_trimmed = False

    def read_in_worker(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if not self.has_trimmed:
            self.has_trimmed = True
            trimmer = Journal.open(self.path)
            trimmer.trim(2, LATER)
            trimmer.commit()
            trimmer.close()
        return super().read_in_worker(query)


async def test_messages_trimmed_during_the_search_are_searched_in_the_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    journal = Trims.open(lake.journal)
    journal.append(messages([1, 9, 1, 9]))
    append_events(lake, list(enumerate(journal.events(TANK, 1, 4, 4, MUCH), 1)))
    store = Store(journal, cold=lambda: LakeHistory(lake))
    assert await first_published(store, TANK, 1, 4, 9) == 2
    await store.close()


async def test_the_search_by_time_skips_trimmed_messages_without_a_lake() -> None:
    journal = TemporaryJournal()
    journal.append(messages([9, 1, 9]))
    store = Store(journal)
    await store.commits.trim(1, LATER)
    assert await first_published(store, TANK, 1, 3, 9) == 3
    await store.close()

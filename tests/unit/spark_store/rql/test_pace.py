"""The turns and pauses of search threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from spark_store.rql.pace import (
    BUSY_SECONDS,
    REST_SECONDS,
    TURN_SECONDS,
    UNPAID_SECONDS,
    SearchPace,
    ThreadPace,
)
from tests.support.clock import Clock

ROW = 0.0001
"""Seconds for a row."""


class Service:
    """A service with a command in each millisecond, and its search threads."""

    def __init__(self, *, is_busy: bool = True) -> None:
        self.clock = Clock()
        self.pace = SearchPace(self.clock.now, self._sleep)
        self.is_busy = is_busy

    def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def rows(self, seconds: float, row: float = ROW) -> Iterator[None]:
        """Yield rows that take so many seconds together."""
        for _ in range(round(seconds / row)):
            if self.is_busy:
                self.pace.busy_at = self.clock.now()
            self.clock.advance(row)
            yield

    def search(self, thread: ThreadPace, seconds: float, row: float = ROW) -> None:
        thread.begin()
        for _ in thread.each(self.rows(seconds, row)):
            pass


def test_a_search_without_concurrent_commands_never_pauses() -> None:
    service = Service(is_busy=False)
    thread = ThreadPace(service.pace)
    service.search(thread, 2.0)
    assert thread.rested == 0.0


def test_a_long_search_beside_commands_has_half_of_the_time() -> None:
    service = Service()
    thread = ThreadPace(service.pace)
    service.search(thread, 1.0)
    assert thread.rested == pytest.approx(1.0 - UNPAID_SECONDS, rel=0.02)


def test_many_short_pages_during_commands_pause_as_long_as_a_long_one() -> None:
    service = Service()
    thread = ThreadPace(service.pace)
    for _ in range(2_000):
        service.search(thread, 0.0005)
    assert thread.rested == pytest.approx(1.0 - UNPAID_SECONDS, rel=0.02)


def test_threads_share_the_turns() -> None:
    service = Service()
    service.pace.busy_at = service.clock.now()
    begun = [service.pace.next_turn(service.clock.now(), 0.0) for _ in range(20)]
    # The first ones are unpaid.
    rested = [begin for begin in begun if begin > service.clock.now()]
    assert len(rested) >= 16
    assert [later - earlier for earlier, later in itertools.pairwise(rested)] == pytest.approx(
        [TURN_SECONDS + REST_SECONDS] * (len(rested) - 1)
    )


def test_a_search_pauses_after_a_row_as_long_as_it_took() -> None:
    service = Service()
    thread = ThreadPace(service.pace)
    service.search(thread, 0.1)
    before = thread.rested
    service.search(thread, 0.5, row=0.05)
    assert thread.rested - before == pytest.approx(0.5, rel=0.15)


def test_occasional_short_searches_do_not_pause() -> None:
    service = Service()
    thread = ThreadPace(service.pace)
    for _ in range(20):
        service.search(thread, 0.004)
        service.clock.advance(0.1)
    assert thread.rested == 0.0


def test_a_search_continues_at_full_speed_when_commands_have_ended() -> None:
    service = Service()
    thread = ThreadPace(service.pace)
    service.search(thread, 0.1)
    service.is_busy = False
    before, at = thread.rested, service.clock.now()
    service.search(thread, 1.0)
    assert thread.rested - before == pytest.approx(BUSY_SECONDS / 2, rel=0.1)
    assert service.clock.now() - at == pytest.approx(1.0 + BUSY_SECONDS / 2, rel=0.01)

"""The limit on records per second, and commits of offsets, with a fake clock."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.transports.kafka import consumer as consumers
from connectivity.transports.kafka.consumer import (
    COMMIT_INTERVAL,
    IN_FLIGHT,
    PAUSE_DELAY,
    POLL,
    KafkaConsumer,
    Throttle,
)
from connectivity.transports.kafka.partition import Partition
from tests.support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(6_000)
    monkeypatch.setattr("connectivity.transports.kafka.consumer.time.monotonic", clock.now)
    return clock


def test_case_51_a_second_has_so_many_records_and_no_more(clock: Clock) -> None:
    throttle = Throttle(10)
    assert (throttle.pause(), throttle.remaining) == (0, 10)
    throttle.took(10)
    clock.advance(0.25)
    assert throttle.pause() == 0.75
    clock.advance(0.75)
    assert (throttle.pause(), throttle.remaining) == (0, 10)


def test_case_51_a_throttle_counts_the_minutes_with_pauses(clock: Clock) -> None:
    throttle = Throttle(10)
    throttle.pause()
    assert throttle.minutes == 0
    for _ in range(90):
        throttle.took(10)
        throttle.pause()
        throttle.pause()
        clock.advance(1)
        throttle.pause()
    assert throttle.minutes == 2


def test_without_a_limit_records_are_not_delayed(clock: Clock) -> None:
    throttle = Throttle(None)
    throttle.took(1_000_000)
    assert (throttle.pause(), throttle.minutes) == (0, 0)


class FakeLibrary:
    """A consumer of the library without records: notes how long polls wait, and counts calls."""

    def __init__(self, _settings: Any) -> None:
        self.waits: list[float] = []
        self.commits = self.pauses = self.resumes = 0

    def poll(self, seconds: float) -> None:
        self.waits.append(seconds)

    def store_offsets(self, offsets: Any) -> None: ...

    def commit(self, **_options: Any) -> None:
        self.commits += 1

    def assignment(self) -> list[Any]:
        return []

    def pause(self, _partitions: Any) -> None:
        self.pauses += 1

    def resume(self, _partitions: Any) -> None:
        self.resumes += 1


@pytest.fixture
async def consumer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A consumer with one partition, whose thread does not run."""
    monkeypatch.setattr(consumers, "Consumer", FakeLibrary)

    def ignore(*_: object) -> None: ...

    hooks = dict.fromkeys(("on_records", "on_committed", "on_dropped", "on_error", "on_ended"), ignore)
    settings, limits = {"group.id": "g"}, {"starts_at_end": False, "limit": None, "max_bytes": 1000}
    made: Any = KafkaConsumer(settings, None, {}, [], **limits, **hooks)  # type: ignore[arg-type]
    made._partitions["lab", 0] = Partition(made, "lab", 0, "id", 0, 0, is_at_least_once=True)
    return made


async def test_settled_offsets_are_committed_soon_even_if_nothing_arrives(clock: Clock, consumer: Any) -> None:
    """Otherwise a service that is killed soon after each start would process the same records again each time."""
    partition, library = consumer._partitions["lab", 0], consumer._consumer
    consumer._turn()
    assert (library.waits, library.commits) == ([POLL], 0)
    consumer._delivered = 2
    consumer._turn()
    partition.settled, consumer.ended = 1, 1
    consumer._turn()
    partition.settled, consumer.ended = 2, 2
    consumer._turn()
    assert (library.waits[1:], library.commits) == ([COMMIT_INTERVAL] * 3, 1)
    clock.advance(COMMIT_INTERVAL)
    consumer._turn()
    assert (library.waits[4:], library.commits) == ([POLL], 2)


async def test_settled_offsets_are_committed_soon_while_there_is_no_room(clock: Clock, consumer: Any) -> None:
    """Partitions are paused only after a longer time, and records are read again when half of them are settled."""
    partition, library = consumer._partitions["lab", 0], consumer._consumer
    consumer._delivered = IN_FLIGHT
    for number in range(1, 4):
        consumer._turn()
        partition.settled = number
        consumer.has_ended(1, 0, 1)
        clock.advance(COMMIT_INTERVAL)
    consumer._turn()
    assert (library.commits, library.waits, library.pauses) == (3, [], 0)
    clock.advance(PAUSE_DELAY)
    consumer._turn()
    assert library.pauses == 1
    consumer.has_ended(IN_FLIGHT // 2, 0, IN_FLIGHT // 2)
    consumer._turn()
    assert (library.waits, library.resumes) == ([COMMIT_INTERVAL], 1)

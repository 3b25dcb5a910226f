"""Trust in a clock that jumps, stops and is corrected."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs

from spark_store.lake import clock as clock_module
from spark_store.lake.clock import ClockReading, Uptime, next_reading
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NONE = timedelta(0)
RIGHT = NONE
JUMPED = 400 * DAY
STEADILY = [(HOUR, RIGHT, NONE)]

Step = tuple[timedelta, timedelta, timedelta]
"""A step: the measured time; the error of the clock after it; the error of the trusted time then."""


class Machine:
    """A machine that is switched on and off, and its trusted time."""

    def __init__(self, trusted: datetime = NOW) -> None:
        self.now = NOW
        self.last: ClockReading = next_reading(None, trusted, Uptime("first", 500.0))
        self._uptime = Uptime("first", 500.0)

    def wait(self, passed: timedelta) -> None:
        self.now += passed
        self._uptime = structs.replace(self._uptime, seconds=self._uptime.seconds + passed.total_seconds())

    def switch_on(self, passed: timedelta) -> None:
        """Switch the machine on after it was off for so long."""
        self.now += passed
        self._uptime = Uptime(f"another after {self._uptime.boot}"[-30:] + str(self.now), 20.0)

    def read_clock(self, wrong: timedelta = RIGHT, clock: datetime | None = None) -> timedelta:
        """Return the error of the trusted time."""
        self.last = next_reading(self.last, clock or self.now + wrong, self._uptime)
        return self.last.trusted - self.now


@each_row(
    "steps",
    [
        [*STEADILY, *STEADILY],
        [(7 * DAY, RIGHT, NONE)],
        # Corrected a little, each time.
        [(HOUR, timedelta(seconds=50), timedelta(seconds=50)), (HOUR, timedelta(seconds=100), timedelta(seconds=100))],
        # The clock jumps ahead, noticed at once; it is trusted after a steady day, not before.
        [*STEADILY, (NONE, JUMPED, NONE), (HOUR, JUMPED, NONE), (22 * HOUR, JUMPED, NONE), (HOUR, JUMPED, JUMPED)],
        # A check after more than a day does not show that the clock has been steady.
        [(7 * DAY, JUMPED, NONE), (7 * DAY, JUMPED, JUMPED)],
        # Not steady: the clock goes further ahead, or part of the way back.
        [(HOUR, JUMPED, NONE), (23 * HOUR, JUMPED + DAY, NONE), (HOUR, JUMPED + DAY, NONE)],
        [(HOUR, JUMPED, NONE), (23 * HOUR, DAY, NONE), (HOUR, DAY, NONE), (23 * HOUR, DAY, DAY)],
        # Corrected, without effect.
        [(HOUR, JUMPED, NONE), (HOUR, RIGHT, NONE), (HOUR, RIGHT, NONE)],
        # Behind for less than a day: without effect, too.
        [(HOUR, -JUMPED, NONE), (22 * HOUR, -JUMPED, NONE), (HOUR, RIGHT, NONE)],
        # A clock that is steady for a day is trusted, ahead or behind.
        [(HOUR, -DAY, NONE), (DAY, -DAY, -DAY), (HOUR, RIGHT, -DAY), (23 * HOUR, RIGHT, -DAY), (HOUR, RIGHT, NONE)],
        [(HOUR, JUMPED, NONE), (DAY, JUMPED, JUMPED), (HOUR, RIGHT, JUMPED), (DAY, RIGHT, NONE), (HOUR, JUMPED, NONE)],
    ],
)
def test_a_clock_that_was_set_is_trusted_after_a_steady_day(steps: list[Step]) -> None:
    machine = Machine()
    for number, (passed, wrong, expected) in enumerate(steps):
        machine.wait(passed)
        assert machine.read_clock(wrong) == expected, number
        assert machine.last.ahead == (wrong - expected if wrong > expected else None)
        assert machine.last.until - machine.now == min(wrong, expected), "nothing is deleted that the clock calls young"


@pytest.mark.parametrize(
    ("off", "trusted"),
    [(HOUR, NONE), (DAY, NONE), (3 * DAY, -2 * DAY), (-DAY, DAY)],
    ids=["short", "a day", "longer", "the clock was set back"],
)
def test_a_day_of_being_off_is_trusted_and_all_of_it_after_a_steady_day(off: timedelta, trusted: timedelta) -> None:
    machine = Machine()
    machine.switch_on(off)
    assert machine.read_clock() == trusted
    for _ in range(23):
        machine.wait(HOUR)
        assert machine.read_clock() == trusted
    machine.wait(HOUR)
    assert machine.read_clock() == NONE


def test_processes_that_end_soon_believe_no_more_than_one_that_continues() -> None:
    """A reading is all that they have from each other; a month ahead, one reading each."""
    machine = Machine()
    machine.wait(HOUR)
    assert machine.read_clock(30 * DAY) == NONE
    for number in range(1, 24):
        machine.wait(65 * MINUTE)
        assert machine.read_clock(30 * DAY) == (NONE if number * 65 * MINUTE < DAY else 30 * DAY), number


def test_a_machine_that_starts_in_1970_and_is_never_up_for_a_day_believes_its_clock() -> None:
    machine = Machine(NOW - 30 * DAY)
    for day in range(80):
        machine.switch_on(14 * HOUR)
        machine.read_clock(clock=EPOCH)
        assert machine.last.until == EPOCH
        machine.wait(MINUTE)
        machine.read_clock(clock=EPOCH + MINUTE)
        for _ in range(10):
            machine.wait(HOUR)
            late = machine.read_clock()
            assert machine.last.until <= machine.now, day
    assert late == NONE


def test_a_machine_that_was_off_for_long_regains_a_day_at_each_start() -> None:
    machine = Machine(NOW - 30 * DAY)
    for _ in range(80):
        machine.switch_on(14 * HOUR)
        machine.read_clock()
        for _ in range(10):
            machine.wait(HOUR)
            late = machine.read_clock()
    assert late == NONE


def test_a_day_is_trusted_once_for_each_time_that_a_machine_was_off() -> None:
    """An hour of it is true."""
    machine = Machine()
    machine.switch_on(HOUR)
    for wrong, expected in (
        (-HOUR, -HOUR),
        (RIGHT, NONE),
        (12 * HOUR, 12 * HOUR),
        (JUMPED, 23 * HOUR),
        (2 * JUMPED, 23 * HOUR),
    ):
        assert machine.read_clock(wrong) == expected
        machine.wait(MINUTE)


def test_a_machine_restored_from_a_snapshot_is_treated_like_one_that_was_off() -> None:
    """Later readings are unknown: the boot is the same, and its uptime is shorter."""
    last = next_reading(None, NOW, Uptime("same", 5000.0))
    assert next_reading(last, NOW + JUMPED, Uptime("same", 4000.0)).trusted == NOW + DAY


def test_the_first_reading_of_a_lake_trusts_the_clock() -> None:
    assert next_reading(None, NOW, Uptime("first", 5.0)).trusted == NOW


def test_all_processes_of_a_machine_measure_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = clock_module.uptime()
    output = subprocess.run(
        [sys.executable, "-c", "from spark_store.lake.clock import uptime; it = uptime(); print(it.boot, it.seconds)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert first.boot == output[0]
    assert 0 < first.seconds < float(output[1]) < clock_module.uptime().seconds
    monkeypatch.setattr(clock_module, "_BOOT_ID", tmp_path / "none")
    assert clock_module.uptime().boot == clock_module.uptime().boot != first.boot

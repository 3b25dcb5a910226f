"""When a peer is asked whether it is there, closed, or cut off: decided from times alone."""

from __future__ import annotations

from dataclasses import replace

from connectivity.transports.listener.timeouts import CLOSING, OPENING, Bounds, Times, Verdict, judge
from tests.support.table import each_row

BOUNDS = Bounds(ping=20, pong=10, output=30, idle=0)
OPEN = Times(made=0, heard=100, spoke=50, is_open=True)


@each_row(
    ("times", "now", "expected"),
    [
        (Times(0, 0, 0), OPENING, Verdict.FINE),
        (Times(0, 0, 0), OPENING + 1, Verdict.STUCK),
        (OPEN, 120, Verdict.FINE),
        (OPEN, 121, Verdict.PING),
        (replace(OPEN, pinged=121), 131, Verdict.FINE),
        (replace(OPEN, pinged=121), 132, Verdict.SILENT),
        (replace(OPEN, is_reading=False), 1000, Verdict.FINE),
        (replace(OPEN, is_reading=False, pinged=121), 1000, Verdict.FINE),
        (replace(OPEN, stuck=100), 130, Verdict.PING),
        (replace(OPEN, stuck=100), 131, Verdict.SLOW),
        (replace(OPEN, stuck=100, is_reading=False), 131, Verdict.SLOW),
        (replace(OPEN, closing=100), 100 + CLOSING, Verdict.FINE),
        (replace(OPEN, closing=100), 101 + CLOSING, Verdict.STUCK),
    ],
)
def test_times_decide_what_is_to_be_done(times: Times, now: float, expected: Verdict) -> None:
    assert judge(times, BOUNDS, now) is expected


def test_a_peer_may_listen_for_ever_unless_idling_is_bounded() -> None:
    alive = replace(OPEN, heard=10_000)
    assert judge(alive, BOUNDS, 10_000) is Verdict.FINE
    assert judge(alive, replace(BOUNDS, idle=3600), 3650) is Verdict.FINE
    assert judge(alive, replace(BOUNDS, idle=3600), 3651) is Verdict.IDLE

"""When a peer is pinged, closed or aborted, decided from times alone."""

from __future__ import annotations

from dataclasses import replace

from connectivity.transports.listener.timeouts import (
    CLOSING,
    OPENING,
    SocketTimes,
    TimeoutDecision,
    TimeoutOptions,
    next_timeout,
)
from tests.support.table import each_row

BOUNDS = TimeoutOptions(ping=20, pong=10, output=30, idle=0)
OPEN = SocketTimes(made=0, last_received=100, spoke=50, is_open=True)


@each_row(
    ("times", "now", "expected"),
    [
        (SocketTimes(0, 0, 0), OPENING, TimeoutDecision.FINE),
        (SocketTimes(0, 0, 0), OPENING + 1, TimeoutDecision.STUCK),
        (OPEN, 120, TimeoutDecision.FINE),
        (OPEN, 121, TimeoutDecision.PING),
        (replace(OPEN, pinged=121), 131, TimeoutDecision.FINE),
        (replace(OPEN, pinged=121), 132, TimeoutDecision.SILENT),
        (replace(OPEN, is_reading=False), 1000, TimeoutDecision.FINE),
        (replace(OPEN, is_reading=False, pinged=121), 1000, TimeoutDecision.FINE),
        (replace(OPEN, stuck=100), 130, TimeoutDecision.PING),
        (replace(OPEN, stuck=100), 131, TimeoutDecision.SLOW),
        (replace(OPEN, stuck=100, is_reading=False), 131, TimeoutDecision.SLOW),
        (replace(OPEN, closing=100), 100 + CLOSING, TimeoutDecision.FINE),
        (replace(OPEN, closing=100), 101 + CLOSING, TimeoutDecision.STUCK),
    ],
)
def test_the_times_of_a_socket_decide_its_next_timeout(
    times: SocketTimes, now: float, expected: TimeoutDecision
) -> None:
    assert next_timeout(times, BOUNDS, now) is expected


def test_a_peer_may_listen_forever_unless_idling_is_bounded() -> None:
    alive = replace(OPEN, last_received=10_000)
    assert next_timeout(alive, BOUNDS, 10_000) is TimeoutDecision.FINE
    assert next_timeout(alive, replace(BOUNDS, idle=3600), 3650) is TimeoutDecision.FINE
    assert next_timeout(alive, replace(BOUNDS, idle=3600), 3651) is TimeoutDecision.IDLE

"""Kills and cuts while a stream is read in frames of reactive-streams-io: each message once, in order.

The readers are processes: one over a broker and one through a TCP listener, each behind a proxy that resets its links. The
service is killed (SIGKILL), and the broker is killed and restarted. The readers deliver the elements as they arrive; a
checker process compares their fsynced logs with the stored messages. It is shown to catch a planted repeat and a planted gap
(reactive-streams-io, resume and sequence).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KillSeriesBroker,
    Mqtt5KillSeriesBroker,
)
from tests.support.kill_series.stream_series import FRAMES, TCP_FRAMES, StreamKillSeries

ROUNDS = 12


def planted(series: StreamKillSeries, reader: str, place: int, folder: Path) -> tuple[Path, Path]:
    """The log of a reader with a repeat, and with a gap, at the message of this number."""
    lines = series.log_of(reader).read_text(encoding="utf-8").splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.startswith('{"read"')][place]
    logs = folder / "repeat.log", folder / "gap.log"
    logs[0].write_text("".join([*lines[:at], lines[at], *lines[at:]]), encoding="utf-8")
    logs[1].write_text("".join([*lines[:at], *lines[at + 1 :]]), encoding="utf-8")
    return logs


def kill(folder: Path, series_broker: KillSeriesBroker, rounds: int) -> None:
    """Kill service and broker in turn, while links are cut; then check the logs, and the checker."""
    chances = dice("frames", series_broker.kind)
    with StreamKillSeries(folder, series_broker, FRAMES, TCP_FRAMES) as series:
        for _ in range(rounds):
            series.kill_service_after(chances.randrange(10, 60))
            series.restart_broker_after(chances.randrange(10, 60), gently=chances.random() < 0.5)
        series.wait_for(20)
        for reader in (FRAMES, TCP_FRAMES):
            # A killed service has lost its sessions: it reports that, and the reader subscribes again.
            found = series.sessions(reader)
            assert found["begun"] + found["not resumed"] > 1, found
        series.wait_for_sessions(TCP_FRAMES, "resumed", 2)
        if not isinstance(series_broker, AmqpKillSeriesBroker):
            # A queue keeps what comes while its reader is away, so that nothing may be missing there.
            series.wait_for_sessions(FRAMES, "resumed", 1)
        print(series.decision())
        for reader in (FRAMES, TCP_FRAMES):
            print(reader, dict(series.sessions(reader)))
            for log in planted(series, reader, chances.randrange(10, 40), folder):
                checked = series.check(log)
                assert checked.returncode == 1, f"{reader}: {log.name} was not noticed: {checked.stdout}"
                assert "the reader handed on" in checked.stdout


@pytest.mark.soak(shard="kills-streams")
@pytest.mark.parametrize("kind", [AmqpKillSeriesBroker, Mqtt5KillSeriesBroker])
def test_frames_arrive_once_and_in_order_through_kills_and_cuts(
    killed_broker: BrokerOfKind, kind: type[KillSeriesBroker], tmp_path: Path
) -> None:
    """One kill of each is in `test_streams_killed`."""
    kill(tmp_path, killed_broker(kind), ROUNDS)

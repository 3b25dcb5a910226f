"""Kills and cuts while a stream is read in frames of reactive-streams-io: every message comes once and in order.

The readers are processes of their own: over a broker and through a TCP listener, each behind a proxy that keeps resetting
its links. The service is killed (SIGKILL), the broker is killed and started again. What a reader hands on it does not put in
order; its synced log is compared with what is stored by a checker, a process too, which is shown to catch a planted repeat
and a planted gap (reactive-streams-io, resume and sequence).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.stream_trial import FRAMES, TCP_FRAMES, StreamKillSeries
from tests.support.kill_series.trial_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KillSeriesBroker,
    Mqtt5KillSeriesBroker,
)

ROUNDS = 12


def planted(trial: StreamKillSeries, reader: str, place: int, folder: Path) -> tuple[Path, Path]:
    """The log of a reader with a repeat, and with a gap, at the message of this number."""
    lines = trial.log_of(reader).read_text(encoding="utf-8").splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.startswith('{"read"')][place]
    logs = folder / "repeat.log", folder / "gap.log"
    logs[0].write_text("".join([*lines[:at], lines[at], *lines[at:]]), encoding="utf-8")
    logs[1].write_text("".join([*lines[:at], *lines[at + 1 :]]), encoding="utf-8")
    return logs


def kill(folder: Path, trial_broker: KillSeriesBroker, rounds: int) -> None:
    """Kill service and broker in turn, while links are cut; then judge, and see whether the judge is awake."""
    chances = dice("frames", trial_broker.kind)
    with StreamKillSeries(folder, trial_broker, FRAMES, TCP_FRAMES) as trial:
        for _ in range(rounds):
            trial.kill_service_after(chances.randrange(10, 60))
            trial.restart_broker_after(chances.randrange(10, 60), gently=chances.random() < 0.5)
        trial.wait_for(20)
        for reader in (FRAMES, TCP_FRAMES):
            # A killed service has lost its sessions: it reports that, and the reader subscribes again.
            found = trial.sessions(reader)
            assert found["begun"] + found["not resumed"] > 1, found
        trial.wait_for_sessions(TCP_FRAMES, "resumed", 2)
        if not isinstance(trial_broker, AmqpKillSeriesBroker):
            # A queue keeps what comes while its reader is away, so that nothing may be missing there.
            trial.wait_for_sessions(FRAMES, "resumed", 1)
        print(trial.decision())
        for reader in (FRAMES, TCP_FRAMES):
            print(reader, dict(trial.sessions(reader)))
            for log in planted(trial, reader, chances.randrange(10, 40), folder):
                checked = trial.check(log)
                assert checked.returncode == 1, f"{reader}: {log.name} was not noticed: {checked.stdout}"
                assert "the reader handed on" in checked.stdout


@pytest.mark.soak(shard="kills-streams")
@pytest.mark.parametrize("kind", [AmqpKillSeriesBroker, Mqtt5KillSeriesBroker])
def test_frames_arrive_once_and_in_order_through_kills_and_cuts(
    killed_broker: BrokerOfKind, kind: type[KillSeriesBroker], tmp_path: Path
) -> None:
    """One kill of each is in `test_streams_killed`."""
    kill(tmp_path, killed_broker(kind), ROUNDS)

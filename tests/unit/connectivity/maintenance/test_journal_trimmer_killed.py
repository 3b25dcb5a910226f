"""A service is killed while it trims: every event is in the journal or in the lake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_store.journal.journal import TRIM_EVENTS
from spark_store.journal.reader import JournalReader
from spark_store.lake import rows
from spark_store.lake.tables import EVENTS
from tests.support.dice import dice
from tests.support.kill_series.trimming_store import LATE
from tests.support.lake.pipeline_process import DataFolder
from tests.support.lake.pipeline_tables import write_lake


def die(folder: Path, steps: int) -> tuple[bool, int]:
    """Trim, with a kill after so many steps.

    Returns whether trimming was complete before the kill, and the newest revision of `LATE` that was reported as
    durable.
    """
    command = [sys.executable, "-m", "tests.support.kill_series.trimming_store", str(folder)]
    durable = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, number = line.strip().partition(" ")
            if word == "durable":
                durable = int(number)
            if word == "trimmed":
                steps -= 1
            if steps == 0:
                # Output from before the kill is valid too, so the rest is read.
                process.kill()
    return process.returncode == 0, durable


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.soak(shard="kills-operators"))])
def test_a_service_killed_while_trimming_loses_no_event_and_trims_no_event_too_early(
    tmp_path: Path, kills: int
) -> None:
    data_folder, moments = DataFolder(tmp_path / "data"), dice("kills of trimming")
    # Enough steps for each kill to come before the end of trimming.
    steps = 34 + 6 * kills
    moved = steps * TRIM_EVENTS
    data_folder.write(moved)
    write_lake(data_folder.folder)
    data_folder.write(TRIM_EVENTS)
    in_lake = {row.seq: row for row in rows.entries(rows.TableRows(data_folder.lake, EVENTS))}
    oldest = 1
    for _ in range(kills):
        is_done, durable = die(data_folder.folder, moments.randint(1, 4))
        assert not is_done
        with JournalReader.open(data_folder.lake.journal) as follower:
            left = list(follower.entries(1, follower.newest()))
            assert oldest < left[0].seq <= moved + 1
            oldest = left[0].seq
            assert [entry.seq for entry in left] == list(range(oldest, follower.newest() + 1))
            late = [entry.revision for entry in left if entry.entity == LATE.id]
            assert late == list(range(1, len(late) + 1))
            assert len(late) >= durable
        assert all(in_lake[entry.seq] == entry for entry in left if entry.seq <= moved)
        assert set(range(1, oldest)) <= set(in_lake)
    # With more steps than exist, the process is not killed.
    assert die(data_folder.folder, 2 * steps)[0]
    with JournalReader.open(data_folder.lake.journal) as follower:
        assert follower.oldest() == moved + 1

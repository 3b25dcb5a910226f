"""Scratch folders of Spark: one per process, removed with it, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_store.lake.tables import Lake
from spark_store.pipeline.session import remove_unused_folders, scratch_folder


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def folders(lake: Lake) -> list[Path]:
    return [it for it in lake.scratch.iterdir() if it.is_dir()]


def test_a_scratch_folder_is_private_and_is_removed_after_use(lake: Lake) -> None:
    with scratch_folder(lake) as mine, scratch_folder(lake) as another:
        assert mine != another
        assert mine.is_absolute()
        assert mine.stat().st_mode & 0o777 == 0o700
        (mine / "deep").mkdir()
        (mine / "deep" / "spilled").touch()
        assert sorted(folders(lake)) == sorted([mine, another])
    assert folders(lake) == []


def test_a_used_folder_stays_when_others_are_removed(lake: Lake) -> None:
    with scratch_folder(lake) as mine:
        remove_unused_folders(lake)
        assert folders(lake) == [mine]
        assert mine.is_dir()


def test_a_sweep_removes_the_scratch_folder_of_a_killed_process(lake: Lake) -> None:
    program = (
        "import sys; from pathlib import Path; from spark_store.lake.tables import Lake\n"
        "from spark_store.pipeline.session import scratch_folder\n"
        "with scratch_folder(Lake(Path(sys.argv[1]))) as mine:\n"
        "    (mine / 'spilled').touch(); print(mine, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lake.data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        remove_unused_folders(lake)
        assert (theirs / "spilled").exists(), "it is still used"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (theirs / "spilled").exists()
    remove_unused_folders(lake)
    assert folders(lake) == []


def test_a_sweep_removes_a_scratch_folder_without_a_lock(lake: Lake) -> None:
    (lake.scratch / "without-lock").mkdir(parents=True)
    remove_unused_folders(lake)
    assert folders(lake) == []

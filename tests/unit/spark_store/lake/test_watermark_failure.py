"""The latest failure of the pipeline."""

from __future__ import annotations

from pathlib import Path

from spark_store.lake.watermark import Failure, forget_failure, note_failure, read_failure

FAILURE = Failure("2030-01-15T07:30:00.250000Z", 5, "lake and journal do not fit together")


def test_a_failure_is_remembered_until_it_is_overcome(tmp_path: Path) -> None:
    file = tmp_path / "failure.json"
    assert read_failure(file) is None
    note_failure(file, FAILURE)
    assert read_failure(file) == FAILURE
    forget_failure(file)
    forget_failure(file)
    assert read_failure(file) is None


def test_a_file_that_cannot_be_used_is_no_further_trouble(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "failure.json"
    note_failure(gone, FAILURE)
    forget_failure(gone)
    assert not gone.parent.exists()
    gone.parent.mkdir()
    gone.write_bytes(b'{"at": 1')
    assert read_failure(gone) is None

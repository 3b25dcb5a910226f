"""A file is there as a whole or not at all, and why it is not is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_store.errors import OutputUnusable, StoreUnavailable
from spark_store.queries.export import ExportFile

TABLE = pa.table({"n": [1, 2]})


def write(out: Path, *, force: bool = False) -> int:
    with ExportFile.open(out, TABLE.schema, force=force) as output:
        output.write(TABLE)
        assert not out.exists() or force
        return output.finish()


def test_a_file_is_put_in_its_place_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    assert write(out) == out.stat().st_size
    assert pq.read_table(out).to_pydict() == {"n": [1, 2]}
    with pytest.raises(OutputUnusable, match=r"expected no such file, found one; .* --force"):
        write(out)
    out.write_text("old")
    write(out, force=True)
    assert pq.read_table(out).num_rows == 2
    assert [it.name for it in tmp_path.iterdir()] == ["it.parquet"]


def test_an_unfinished_output_is_removed_and_the_existing_file_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    out.write_text("old")
    with ExportFile.open(out, TABLE.schema, force=True) as output:
        output.write(TABLE)
    assert [it.read_text() for it in tmp_path.iterdir()] == ["old"]


def test_somebody_elses_file_that_came_meanwhile_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    with ExportFile.open(out, TABLE.schema, force=False) as output:
        out.write_text("theirs")
        with pytest.raises(OutputUnusable):
            output.finish()
    assert [it.read_text() for it in tmp_path.iterdir()] == ["theirs"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputUnusable, match=r"found no .*gone; create it"):
        write(tmp_path / "gone" / "it.parquet")
    with pytest.raises(OutputUnusable, match="found a folder"):
        write(tmp_path)
    with pytest.raises(OutputUnusable, match="expected a file that can be written"):
        write(Path("/proc/self/it.parquet"))
    with pytest.raises(OutputUnusable, match="expected a file that can be written"):
        write(tmp_path / ("n" * 250))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_something_else_and_leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(number, os.strerror(number))

    with ExportFile.open(tmp_path / "it.parquet", TABLE.schema, force=False) as output:
        monkeypatch.setattr(output._writer, "write_table", refuse)
        with pytest.raises(StoreUnavailable, match="the disk is full; make room"):
            output.write(TABLE)
    assert list(tmp_path.iterdir()) == []

"""A file is written completely or not at all, and a failure is reported with its reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from spark_store.errors import OutputUnusable, StoreUnavailable
from spark_store.queries.export_file import TableWriter, output_file

TABLE = pa.table({"n": [1, 2]})


def write(out: Path, *, force: bool = False, meanwhile: Callable[[TableWriter], object] = lambda _: None) -> int:
    with output_file(out, TABLE.schema, force=force) as output:
        output.write_table(TABLE)
        assert not out.exists() or force
        meanwhile(output)
        output.write_table(TABLE.slice(2))
    return out.stat().st_size


def test_a_file_is_put_in_its_place_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    assert write(out) > 0
    assert pq.read_table(out).to_pydict() == {"n": [1, 2]}
    with pytest.raises(OutputUnusable, match=r"this file already exists; .* --force"):
        write(out)
    out.write_text("old")
    write(out, force=True)
    assert pq.read_table(out).num_rows == 2
    assert [it.name for it in tmp_path.iterdir()] == ["it.parquet"]


def test_an_unfinished_output_is_removed_and_the_existing_file_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    out.write_text("old")

    def interrupt(_: TableWriter) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(out, force=True, meanwhile=interrupt)
    assert [it.read_text() for it in tmp_path.iterdir()] == ["old"]


def test_a_foreign_file_that_was_created_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    with pytest.raises(OutputUnusable):
        write(out, meanwhile=lambda _: out.write_text("theirs"))
    assert [it.read_text() for it in tmp_path.iterdir()] == ["theirs"]


def test_the_ending_of_the_name_decides_the_format(tmp_path: Path) -> None:
    at = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
    table = pa.table({"ts": [at, at], "value": ['{"a":"x\\n "\r\n}', None], "path": ["/a,b", 'say "é"'], "n": [1, 2]})
    for name in ("it.csv", "it.jsonl"):
        with output_file(tmp_path / name, table.schema, force=False) as output:
            output.write_table(table)
            output.write_table(table.slice(1))
    lines = (tmp_path / "it.jsonl").read_text().splitlines()
    assert lines[1:] == ['{"ts":"2030-01-15T07:30:00.000000Z","value":null,"path":"say \\"é\\"","n":2}'] * 2
    assert lines[0] == '{"ts":"2030-01-15T07:30:00.000000Z","value":{"a":"x\\n "  },"path":"/a,b","n":1}'
    read = csv.read_csv(tmp_path / "it.csv", parse_options=csv.ParseOptions(newlines_in_values=True))
    assert read.drop(["ts"]).to_pylist()[0] == {"value": '{"a":"x\\n "\r\n}', "path": "/a,b", "n": 1}
    assert read["ts"].cast(pa.timestamp("us", "UTC")).to_pylist() == [at] * 3
    with pytest.raises(OutputUnusable, match=r"expected a name that ends with one of \.parquet, \.csv, \.jsonl"):
        write(tmp_path / "it.txt")


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OutputUnusable, match=r"the folder .*gone does not exist; create it"):
        write(tmp_path / "gone" / "it.parquet")
    with pytest.raises(OutputUnusable, match="found a folder"):
        write(tmp_path)
    with pytest.raises(OutputUnusable, match="expected a file that can be written"):
        write(Path("/proc/self/it.parquet"))
    with pytest.raises(OutputUnusable, match="expected a file that can be written"):
        write(tmp_path / f"{'n' * 250}.parquet")


@pytest.mark.parametrize("path", ["", ".", "/", ".."])
def test_a_path_without_a_file_name_is_reported_as_a_folder(path: str) -> None:
    with pytest.raises(OutputUnusable, match="expected the name of a file, found a folder"):
        write(Path(path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_something_else_and_leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StoreUnavailable, match="the disk is full; free space"):
        write(tmp_path / "it.parquet", meanwhile=lambda output: monkeypatch.setattr(output, "write_table", refuse))
    assert list(tmp_path.iterdir()) == []

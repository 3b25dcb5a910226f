"""Small files are there as a whole, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from spark_store.files import write_atomically


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, is_durable: bool) -> None:
    file = tmp_path / "it.json"
    for content in (b"first", b"second"):
        write_atomically(file, content, is_durable=is_durable)
        assert file.read_bytes() == content
    assert os.listdir(tmp_path) == ["it.json"]


def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "it.json" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "it.json", b"new")
    assert os.listdir(tmp_path) == ["it.json"]


def test_a_leftover_partial_file_does_not_change_the_file_permissions(tmp_path: Path) -> None:
    (tmp_path / "it.part").write_bytes(b"left behind, for everybody")
    write_atomically(tmp_path / "it.json", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "it.json").stat().st_mode) == 0o600

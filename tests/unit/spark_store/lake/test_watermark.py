"""The watermark is there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_store.errors import StoreUnavailable
from spark_store.lake.watermark import BatchProgress, TableSize, Watermark, publish_watermark, read_watermark


def test_a_published_watermark_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "watermark.json"
    assert read_watermark(file) == Watermark(seq=0)
    for seq in (5, 9):
        published = Watermark(
            seq, seq + 3, "2030-01-15T07:30:00.250000Z", BatchProgress(4, 0.5), tables={"events": TableSize(3, 700)}
        )
        publish_watermark(file, published)
        assert read_watermark(file) == published
    assert [it.name for it in tmp_path.iterdir()] == ["watermark.json"]


def test_a_publication_that_was_cut_short_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "watermark.json"
    publish_watermark(file, Watermark(5))
    (tmp_path / "watermark.part").write_bytes(b'{"se')
    assert read_watermark(file) == Watermark(5)


def test_unknown_members_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "watermark.json"
    file.write_text('{"seq": 7, "weather": {"sun": true}}')
    assert read_watermark(file) == Watermark(7)


@pytest.mark.parametrize("content", [b"", b'{"seq": "7"}', b"[7]", b"\xff", b'{"published": "\xff"}'])
def test_a_corrupt_watermark_raises_an_error_with_the_next_step(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "watermark.json"
    file.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"expected a watermark.* delete this file"):
        read_watermark(file)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        publish_watermark(tmp_path / "gone" / "watermark.json", Watermark(1))

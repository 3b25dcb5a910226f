"""Files whose paths are chosen by others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectivity.security.files import ForbiddenPlaces, UnreadableFile, read_regular_file

MOST = 100


def refusal(path: Path, forbidden: tuple[Path, ...] = ()) -> str:
    with pytest.raises(UnreadableFile) as caught:
        read_regular_file(path, most=MOST, forbidden=ForbiddenPlaces(forbidden))
    return str(caught.value)


def test_a_file_is_read_as_bytes_up_to_the_most(tmp_path: Path) -> None:
    (tmp_path / "word").write_bytes(b"x" * MOST)
    assert read_regular_file(tmp_path / "word", most=MOST) == b"x" * MOST
    (tmp_path / "word").write_bytes(b"x" * (MOST + 1))
    assert refusal(tmp_path / "word") == "a file of more than 100 bytes"


def test_a_folder_or_file_that_became_a_link_after_it_was_checked_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "own").mkdir()
    (real / "own" / "word").write_text("geheim", encoding="utf-8")
    (real / "folder").symlink_to(real / "own")
    (real / "link").symlink_to(real / "own" / "word")
    assert refusal(real / "folder" / "word") == "a path without a regular file"
    assert refusal(real / "link") == "a file that cannot be read: Too many levels of symbolic links"


def test_an_irregular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/"), tmp_path / "missing"):
        assert refusal(path.resolve()) == "a path without a regular file"


def test_a_forbidden_file_is_recognized_by_any_of_its_names(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "own").mkdir()
    (real / "own" / "word").write_text("geheim", encoding="utf-8")
    (real / "other").hardlink_to(real / "own" / "word")
    (real / "link").symlink_to(real / "own")
    assert refusal(real / "own" / "word", (real / "link",)) == "a file that belongs to the service"
    assert refusal(real / "other", (real / "own" / "word",)) == "a file that belongs to the service"
    assert read_regular_file(real / "other", most=MOST, forbidden=ForbiddenPlaces([real / "missing"])) == b"geheim"


def test_a_hard_link_to_a_file_in_a_forbidden_folder_is_refused(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "own" / "below").mkdir(parents=True)
    (real / "link").symlink_to(real / "own")
    for number, folder in enumerate((real / "own", real / "own" / "below")):
        (folder / "word").write_text("geheim", encoding="utf-8")
        (real / f"other-{number}").hardlink_to(folder / "word")
        for forbidden in (real / "own", real / "link"):
            assert refusal(real / f"other-{number}", (forbidden,)) == "a file that belongs to the service"
    (real / "first").write_text("word", encoding="utf-8")
    (real / "second").hardlink_to(real / "first")
    assert read_regular_file(real / "second", most=MOST, forbidden=ForbiddenPlaces([real / "own"])) == b"word"


def test_no_file_is_read_while_those_of_the_service_cannot_be_told_from_it(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("word", encoding="utf-8")
    assert refusal(tmp_path.resolve() / "word", (tmp_path / ("x" * 300),)) == (
        "a file that cannot be told from those of the service: File name too long"
    )


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "word").write_bytes(b"x" * (MOST + 1))
    for path in (tmp_path, tmp_path / "word", tmp_path / "missing" / "word"):
        refusal(path.resolve())
    assert len(os.listdir("/proc/self/fd")) == before

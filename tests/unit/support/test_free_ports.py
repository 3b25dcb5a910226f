"""Ports for brokers and services of tests: each process, and each thread, gets others."""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support import brokers


def test_threads_get_different_ports_and_share_one_file_of_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[BinaryIO] = []

    @functools.cache
    def open_slowly() -> BinaryIO:
        opened.append(file := (tmp_path / "locks").open("wb"))
        time.sleep(0.05)
        return file

    monkeypatch.setattr(brokers, "_locks", open_slowly)
    with ThreadPoolExecutor(4) as threads:
        ports = set(threads.map(lambda _: brokers.free_port(), range(4)))
    for file in opened:
        file.close()
    assert (len(ports), len(opened)) == (4, 1)

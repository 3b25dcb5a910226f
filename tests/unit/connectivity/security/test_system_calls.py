"""System calls that a process gives up for good."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectivity.security.system_calls import NotSupported, hide_memory, keep_only_computing
from connectivity.store.folder_lock import lock_folder
from tests.support.paths import ROOT

_GET_DUMPABLE = 3

SERVICE = f"""
import ctypes, sys
from connectivity import service
from connectivity.config.settings import Settings
libc = ctypes.CDLL(None)
before = libc.prctl({_GET_DUMPABLE}, 0, 0, 0, 0)
code = service.main(Settings(data_dir=sys.argv[1]))
print(before, code, libc.prctl({_GET_DUMPABLE}, 0, 0, 0, 0))
"""


def test_the_service_cannot_be_read_by_other_processes_of_its_user(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        ended = subprocess.run(
            [sys.executable, "-c", SERVICE, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True
        )
    assert ended.stdout.split() == ["1", "3", "0"], ended.stderr


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "x86_64"), ("linux", "riscv64")])
def test_a_system_without_a_list_of_calls_is_named(
    monkeypatch: pytest.MonkeyPatch, platform: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "", "", "", machine)))
    with pytest.raises(NotSupported, match=f"does not support {platform} on {machine}"):
        keep_only_computing()


def test_a_system_that_cannot_hide_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotSupported, match="darwin has no prctl"):
        hide_memory()


def test_a_kernel_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def prctl(self, *_: object) -> int:
            ctypes.set_errno(22)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library())
    with pytest.raises(NotSupported, match="refused prctl 38: Invalid argument"):
        keep_only_computing()

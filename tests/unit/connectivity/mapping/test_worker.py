"""The privileges that a script process has given up before the first script."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectivity.mapping.script_host import ScriptHost
from connectivity.mapping.script_protocol import ScriptLimits


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """The entry of a running script process in /proc."""
    monkeypatch.setenv("CONNECTIVITY_SECRET", "never seen")
    host = ScriptHost(ScriptLimits(seconds=5.0))
    await host.call(host.scripts(("mapToDittoProtocolMsg = () => null",)), "check", lambda: "incoming")
    yield Path(f"/proc/{host.pid}")
    await host.close()


def test_it_has_only_standard_input_and_output(process: Path) -> None:
    links = {file.name: os.readlink(file) for file in (process / "fd").iterdir()}
    assert set(links) == {"0", "1", "2"}
    assert links["2"] == "/dev/null"


def test_it_has_no_environment_variables(process: Path) -> None:
    names = {entry.partition(b"=")[0] for entry in (process / "environ").read_bytes().split(b"\0") if entry}
    assert names <= {b"LD_LIBRARY_PATH"}


def test_it_cannot_open_files_or_start_processes_and_its_memory_is_limited(process: Path) -> None:
    lines = (process / "limits").read_text(encoding="ascii").splitlines()
    limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
    assert limits["Max open files"] == "0"
    assert limits["Max file size"] == "0"
    assert limits["Max processes"] == "0"
    assert limits["Max core file size"] == "0"
    assert int(limits["Max address space"]) < 512 << 20


def test_it_has_one_thread_and_a_session_of_its_own(process: Path) -> None:
    status = (process / "status").read_text(encoding="ascii")
    assert "Threads:\t1\n" in status
    assert os.getsid(int(process.name)) == int(process.name)

"""The privileges that a script process has given up before the first script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from connectivity.mapping.script_host import ScriptHost
from connectivity.mapping.script_protocol import ScriptLimits
from connectivity.mapping.worker import NOBODY
from tests.support.paths import ROOT

pytestmark = pytest.mark.extra("javascript")


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


def test_it_closes_the_files_that_the_service_has_inherited() -> None:
    """The event loop of the service passes them on."""

    async def opened() -> set[str]:
        inherited = os.open(os.devnull, os.O_RDONLY)
        os.set_inheritable(inherited, True)
        host = ScriptHost(ScriptLimits(seconds=5.0))
        try:
            await host.call(host.scripts(("mapToDittoProtocolMsg = () => null",)), "check", lambda: "incoming")
            return set(os.listdir(f"/proc/{host.pid}/fd"))
        finally:
            await host.close()
            os.close(inherited)

    assert uvloop.run(opened()) == {"0", "1", "2"}


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


def test_native_code_in_it_reaches_no_file_no_process_and_no_network(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="ascii")
    command = [sys.executable, "-m", "tests.support.script_process_attacks", str(tmp_path)]
    outcomes = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "SIGSYS"} == {}
    assert len(outcomes) > 30
    assert victim.read_text(encoding="ascii") == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["victim"]


def test_it_is_not_root_and_cannot_gain_privileges(process: Path) -> None:
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text(encoding="ascii").splitlines())
    user = os.getuid() or NOBODY
    assert status["Uid"].split() == [str(user)] * 4
    assert os.getuid() != 0 or status["Groups"].split() == []
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"

"""Static checks of the systemd unit: by systemd's own checker, and by the rules of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connectivity.config.settings_loader import load_settings
from tests.support.markdown import blocks
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "deploying.md"
UNIT = ROOT / "deploy" / "systemd" / "connectivity.service"

MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts; what Java needs is allowed."""


def unit() -> dict[str, list[str]]:
    """The settings of the unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def drop_in() -> str:
    """The drop-in file that the page on systemd shows."""
    [block] = [block for block in blocks(PAGE) if block.title == "override.conf"]
    return block.text


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return systemd's report on the unit and its drop-ins, with an existing program for the service."""
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is missing, install it: sudo apt-get install systemd", pytrace=False)
    copy = folder / UNIT.name
    text = UNIT.read_text(encoding="utf-8").replace("/opt/connectivity/bin/connectivity", sys.executable)
    copy.write_text(text, encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *arguments, str(copy)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"},
    )


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    checked = analyze(tmp_path, "verify")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_unit_leaves_little_open(tmp_path: Path) -> None:
    checked = analyze(tmp_path, "security", "--offline=true")
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", checked.stdout)
    assert level is not None, checked.stdout + checked.stderr
    assert float(level[1]) <= MOST_EXPOSED


def test_the_unit_has_a_dynamic_user_and_writes_only_to_its_state_directory() -> None:
    found = unit()
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome", "PrivateDevices"):
        assert found[name] == ["yes"], name
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["StateDirectory"] == ["connectivity"]
    assert "ReadWritePaths" not in found


def test_the_unit_s_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in unit()["Environment"]:
        monkeypatch.setenv(*pair.split("=", 1))
    settings = load_settings(None)
    assert str(settings.data_dir) == "/var/lib/" + unit()["StateDirectory"][0]
    assert str(settings.connections_dir) == "/etc/connectivity/connections"


def test_the_unit_gives_the_service_time_to_drain_and_limits_failing_starts() -> None:
    found = unit()
    assert int(found["TimeoutStopSec"][0]) >= 20
    assert found["Restart"] == ["on-failure"]
    assert set(found["RestartPreventExitStatus"][0].split()) == {"2", "3", "4"}


def write_drop_in(folder: Path, text: str) -> None:
    place = folder / f"{UNIT.name}.d"
    place.mkdir()
    (place / "override.conf").write_text(text, encoding="utf-8")


def test_systemd_finds_nothing_wrong_with_the_drop_in_of_the_page(tmp_path: Path) -> None:
    write_drop_in(tmp_path, drop_in())
    checked = analyze(tmp_path, "verify")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_systemd_finds_an_error_in_a_drop_in(tmp_path: Path) -> None:
    write_drop_in(tmp_path, drop_in().replace("LoadCredential", "LoadCredentials"))
    assert "LoadCredentials" in analyze(tmp_path, "verify").stderr


def test_the_drop_in_of_the_page_gives_the_service_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = dict(line.split("=", 1) for line in drop_in().splitlines() if "=" in line)
    credential, _, _ = lines["LoadCredential"].partition(":")
    monkeypatch.setenv(*lines["Environment"].replace("%d", "/run/credentials").split("=", 1))
    assert load_settings(None).secrets.key_file == Path("/run/credentials") / credential

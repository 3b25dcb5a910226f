"""Backup and restore as the documentation has them: its commands are run, on a service under load."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import client, connection, policy_for, source, topic
from tests.support.lake.pipeline_process import QUICK_JAVA, WITHIN
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.spark]

OWNER = "acme:owner"
THINGS = 5
DAYS = ("monday", "tuesday")
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page: str) -> list[str]:
    """The commands that a page shows as its steps."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    part = text.partition("\n## Steps\n")[2].partition("\n## ")[0]
    return [line[2:] for block in _BLOCK.findall(part) for line in block.splitlines() if line.startswith("$ ")]


class Machine:
    """A machine on which the page's paths are those of a test."""

    def __init__(self, folder: Path, systemctl: Mapping[str, Callable[[], object]]) -> None:
        """`systemctl`: what its verbs do."""
        self._systemctl = systemctl
        self.data, self.backups = folder / "data", folder / "backups"
        self.settings = folder / "settings.json"
        self.outputs: list[str] = []

    def run(self, command: str) -> None:
        for named, real in (
            ("/var/lib/private/connectivity", self.data),
            ("/var/backups/connectivity", self.backups),
            ("/etc/connectivity/settings.yaml", self.settings),
        ):
            command = command.replace(named, str(real))
        program, *arguments = shlex.split(command)
        if program == "systemctl":
            self._systemctl[arguments[0]]()
            return
        words = [sys.executable, "-m", "connectivity"] if program == "connectivity" else [program]
        ended = subprocess.run([*words, *arguments], capture_output=True, text=True, timeout=WITHIN, check=False)
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        self.outputs.append(ended.stdout)


class Load:
    """Changes things, some concurrently, and records the responses."""

    def __init__(self, requester: MqttClient) -> None:
        self.requester = requester
        self.answered: dict[int, int] = dict.fromkeys(range(THINGS), 0)
        """Of each thing the highest number that a change was answered for."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        for number in range(THINGS):
            value = {"_policy": policy_for(OWNER), "attributes": {"n": 0}}
            assert self.requester.ask_for(topic(f"lamp-{number}", "commands/create"), value=value)["status"] == 201
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            for number in range(THINGS):
                answer = self.requester.ask_for(
                    topic(f"lamp-{number}", "commands/modify"), "/attributes/n", value=count
                )
                assert answer["status"] == 204, answer
                self.answered[number] = count


def history(requester: MqttClient, number: int) -> list[Any]:
    """The numbers that a thing has had, by its history."""
    requester.command(topic(f"lamp-{number}", "streaming/subscribeForPersistedEvents"), value={})
    created = requester.until("created")[-1]
    subscription = created["value"]["subscriptionId"]
    demand = {"subscriptionId": subscription, "demand": 1_000_000}
    requester.command(topic(f"lamp-{number}", "streaming/request"), value=demand)
    events = [answer["value"]["item"] for answer in requester.until("complete") if answer["topic"].endswith("/next")]
    return [event["value"] if event["path"] != "/" else 0 for event in events]


@pytest.mark.soak(shard="lake-processes")
@pytest.mark.parametrize("mode", ["external", "embedded"])
def test_a_backup_under_load_restored_elsewhere_has_every_change_that_was_answered_before(
    tmp_path: Path, mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The oldest events are only in the lake by then.

    `mode`: how the pipeline of the restored service runs, if at all.
    """
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    name = f"backup-{os.getpid()}-{mode}"
    settings: dict[str, Any] = {"journal": {"retention": "1s"}, "spark": {"mode": "embedded", "master": "local[2]"}}
    restored = ServiceProcess(tmp_path, {**settings, "spark": {"mode": mode, "master": "local[2]"}})
    with (
        ServiceProcess.start(tmp_path, [connection(mosquitto, source(name, OWNER))], **settings) as service,
        restored,
        client(mosquitto, name) as requester,
    ):
        machine = Machine(tmp_path, {"stop": service.stop, "start": restored.start_again})
        with Load(requester) as load:
            wait_until_sync(lambda: service.metric("connectivity_journal_trimmed_total") > 50, WITHIN)
            for command in commands("backup"):
                before = dict(load.answered)
                machine.run(command)
        first, second = (json.loads((machine.backups / each / "backup.json").read_bytes()) for each in DAYS)
        assert second["linked"] > 0
        assert second["trimmed"] > 0
        assert first["events"] < second["events"]
        # The later backup is restored.
        (machine.backups / DAYS[0]).rename(machine.backups / "older")
        (machine.backups / DAYS[1]).rename(machine.backups / DAYS[0])
        for command in commands("restore"):
            machine.run(command)
        assert "the same" in machine.outputs[-1]
        for number in range(THINGS):
            numbers = history(requester, number)
            assert numbers == list(range(len(numbers))), "a change is missing, or is there twice"
            assert before[number] <= numbers[-1] <= load.answered[number]
        answer = requester.ask_for(topic("lamp-0", "commands/modify"), "/attributes/n", value="again")
        assert answer["status"] == 204
        assert restored.metric("connectivity_journal_trimming_up") == 1
        if mode == "embedded":
            wait_until_sync(lambda: restored.metric("connectivity_lake_lag_events") == 0, WITHIN)

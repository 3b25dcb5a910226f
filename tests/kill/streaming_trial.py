"""A trial of a stream: one service, a writer and a reader over one broker, things that go wrong meanwhile, and a verdict.

with StreamTrial(tmp_path, ground) as trial:
    trial.kill_service_after(100)
    trial.restart_broker_after(100)
    print(trial.verdict())
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.helpers import wait_until_sync
from tests.integration.documents import EVERYTHING
from tests.kill.grounds import SUBJECT, Ground
from tests.kill.parties import join
from tests.kill.streaming import PARTITIONS, STREAM
from tests.kill.streaming_checker import Known
from tests.kill.trial import PATIENCE, PAUSES
from tests.service import ServiceProcess

MAKE, WRITE, READ, RECALL = "make", "write", "read", "recall"

OPTIONS = {"streams": {STREAM: {"partitions": PARTITIONS, "policyId": STREAM}}, "sessionCatchUpMax": 100}
POLICY = {
    "policyId": STREAM,
    "entries": {
        "OWNER": {
            "subjects": {SUBJECT: {"type": "test"}},
            "resources": {f"stream:/{STREAM}": EVERYTHING, "policy:/": EVERYTHING},
        }
    },
}


def connection(ground: Ground, name: str) -> dict[str, Any]:
    """A source for Ditto commands, and one for each party of the stream."""
    document = ground.connection(name, MAKE, WRITE, READ, RECALL)
    document["mappingDefinitions"] = {"tanks": {"mappingEngine": "Streamr", "options": OPTIONS}}
    for source in document["sources"][1:]:
        source["payloadMapping"] = ["tanks"]
    return document


class StreamTrial:
    """Where things are killed while a stream is written and read."""

    def __init__(self, folder: Path, ground: Ground) -> None:
        self.ground = ground
        self._name = f"trial-{secrets.token_hex(4)}"
        self._logs = {part: folder / f"{part}.log" for part in (WRITE, READ, RECALL)}
        self._words = folder / "parties.txt"
        self._parties: dict[str, subprocess.Popen[bytes]] = {}
        ground.prepare(self._name, MAKE, *self._logs)
        self.service = ServiceProcess.start(folder, [connection(ground, self._name)], reconnect=PAUSES)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        namespace, _, name = STREAM.partition(":")
        with join(self.ground.uri, *self.ground.addresses(self._name, MAKE)) as maker:
            made = maker.ask_for(f"{namespace}/{name}/policies/commands/create", value=POLICY)
            assert made["status"] == 201, made
        self._start(READ)
        self._start(WRITE)
        self.wait_for(20)

    def _start(self, part: str) -> subprocess.Popen[bytes]:
        command = [part, self.ground.uri, *self.ground.addresses(self._name, part), str(self._logs[part])]
        with self._words.open("ab") as words:
            process = subprocess.Popen([sys.executable, "-m", "tests.kill.streaming", *command], stderr=words)
        self._parties[part] = process
        return process

    def count(self) -> int:
        """How many messages the reader has handed on."""
        log = self._logs[READ]
        return log.read_bytes().count(b'"read"') if log.exists() else 0

    def wait_for(self, more: int) -> None:
        """Wait until the reader has handed on so many more."""
        target = self.count() + more
        try:
            wait_until_sync(lambda: self.count() >= target, PATIENCE)
        except BaseException as error:
            raise AssertionError(f"the reader is stuck at {self.count()}: {self._story()}") from error

    def kill_service_after(self, more: int) -> None:
        """SIGKILL as soon as the reader has handed on so many more; then start again."""
        self.wait_for(more)
        self.service.kill()
        self.service.start_again(ready=False)

    def restart_broker_after(self, more: int) -> None:
        """Knock the broker down as soon as the reader has handed on so many more; then start it again."""
        self.wait_for(more)
        self.ground.knock_down()
        self.ground.start_again()

    def verdict(self) -> str:
        """The checker's counts, when the reader has all that was published. Raises AssertionError with its findings."""
        self._parties[WRITE].send_signal(signal.SIGUSR1)
        try:
            wait_until_sync(self._has_read_everything, PATIENCE)
        except BaseException as error:
            raise AssertionError(f"the reader does not come to the end: {self._story()}") from error
        assert self._start(RECALL).wait(PATIENCE) == 0, self._story()
        for part in (WRITE, READ):
            self._parties[part].send_signal(signal.SIGTERM)
            assert self._parties[part].wait(PATIENCE) == 0, self._story()
        command = [sys.executable, "-m", "tests.kill.streaming_checker", *map(str, self._logs.values())]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert checked.returncode == 0, checked.stdout[-8000:] + checked.stderr + self._story()
        return checked.stdout.strip()

    def _has_read_everything(self) -> bool:
        published, reader = Known.of(self._logs[WRITE]).published, Known.of(self._logs[READ])
        return {n for read in reader.read.values() for _, n in read}.issuperset(published)

    def _story(self) -> str:
        return self._words.read_text(encoding="utf-8")[-4000:] + self.service.log()[-8000:]

    def close(self) -> None:
        for process in self._parties.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        self.service.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

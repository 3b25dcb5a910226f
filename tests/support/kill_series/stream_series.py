"""A kill test of a stream: one service, a writer and readers over one broker, faults, and a decision.

with StreamKillSeries(tmp_path, series_broker, READ) as series:
    series.kill_service_after(100)
    series.restart_broker_after(100)
    print(series.decision())
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.brokers import free_port
from tests.support.connection_documents import EVERYTHING
from tests.support.kill_series.clients import join
from tests.support.kill_series.series import PATIENCE, PAUSES
from tests.support.kill_series.series_broker import SUBJECT, KillSeriesBroker
from tests.support.kill_series.stream_checker import Known
from tests.support.kill_series.stream_load import PARTITIONS, STREAM
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

MAKE, WRITE, RECALL = "make", "write", "recall"
READ, FRAMES, TCP_FRAMES = "read", "frames", "tcp-frames"
"""The readers: Streamr, and reactive-streams-io over the broker and over a TCP listener."""

_STREAMS = {STREAM: {"partitions": PARTITIONS, "policyId": STREAM}}
OPTIONS = {"streams": _STREAMS, "sessionCatchUpMax": 100}
POLICY = {
    "policyId": STREAM,
    "entries": {
        "OWNER": {
            "subjects": {SUBJECT: {"type": "test"}},
            "resources": {f"stream:/{STREAM}": EVERYTHING, "policy:/": EVERYTHING},
        }
    },
}


def connection(series_broker: KillSeriesBroker, name: str, *readers: str) -> dict[str, Any]:
    """Return a connection with a source for each client of the stream over this broker."""
    clients = [WRITE, RECALL, *(reader for reader in readers if reader != TCP_FRAMES)]
    document = series_broker.connection(name, *clients)
    meant = series_broker.reply_address(series_broker.beside(series_broker.addresses(name, FRAMES)[1], "*"))
    document["mappingDefinitions"] = {
        "tanks": {"mappingEngine": "Streamr", "options": OPTIONS},
        "frames": {
            "mappingEngine": "ReactiveStreamsIO",
            "options": {"streams": _STREAMS, "replyAddressPattern": meant},
        },
    }
    for client, source in zip(clients, document["sources"], strict=True):
        source["payloadMapping"] = ["tanks"]
        if client == FRAMES:
            # The reply address differs for each session.
            source["payloadMapping"] = ["frames"]
            source["replyTarget"] = {"address": series_broker.reply_address("{{ header:reply-to }}")}
    return document


def listener_connection(name: str, port: int) -> dict[str, Any]:
    """Return the connection of a TCP listener for frames without a broker."""
    return {
        "id": f"{name}-listener",
        "connectionType": "tcp",
        "connectionStatus": "open",
        "uri": f"tcp://127.0.0.1:{port}",
        "mappingDefinitions": {"frames": {"mappingEngine": "ReactiveStreamsIO", "options": {"streams": _STREAMS}}},
        "sources": [{"addresses": ["frames"], "authorizationContext": [SUBJECT], "payloadMapping": ["frames"]}],
    }


class StreamKillSeries:
    """A kill test while a stream is written and read."""

    def __init__(self, folder: Path, series_broker: KillSeriesBroker, *readers: str) -> None:
        """`readers`: READ, FRAMES, TCP_FRAMES."""
        self.series_broker = series_broker
        self.readers = readers
        self.kills: Counter[str] = Counter()
        """The number of kills, by kind."""
        self._port = free_port()
        self._name = f"series-{secrets.token_hex(4)}"
        self._logs = {part: folder / f"{part}.log" for part in (WRITE, *readers, RECALL)}
        self._errors = folder / "errors.txt"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        series_broker.prepare(self._name, MAKE, *self._logs)
        # Commands of the Ditto protocol need another connection than the stream.
        maker = {**series_broker.connection(self._name, MAKE), "id": f"{self._name}-{MAKE}"}
        documents = [
            maker,
            connection(series_broker, self._name, *readers),
            listener_connection(self._name, self._port),
        ]
        self.service = ServiceProcess.start(folder, documents, reconnect=PAUSES)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        namespace, _, name = STREAM.partition(":")
        with join(self.series_broker.uri, *self.series_broker.addresses(self._name, MAKE)) as maker:
            made = maker.ask_for(f"{namespace}/{name}/policies/commands/create", value=POLICY)
            assert made["status"] == 201, made
        for reader in self.readers:
            self._start(reader)
        self._start(WRITE)
        self.wait_for(20)

    def _start(self, part: str) -> subprocess.Popen[bytes]:
        uri = f"rsio://127.0.0.1:{self._port}" if part == TCP_FRAMES else self.series_broker.uri
        command = [uri, *self.series_broker.addresses(self._name, part), str(self._logs[part])]
        module = (
            ["tests.support.kill_series.stream_frame_reader"]
            if part in (FRAMES, TCP_FRAMES)
            else ["tests.support.kill_series.stream_load", part]
        )
        with self._errors.open("ab") as errors:
            process = subprocess.Popen([sys.executable, "-m", *module, *command], stderr=errors)
        self._processes[part] = process
        return process

    def count(self) -> int:
        """Return how many messages the slowest reader has delivered."""
        logs = [self._logs[reader] for reader in self.readers]
        return min(log.read_bytes().count(b'"read"') if log.exists() else 0 for log in logs)

    def wait_for(self, more: int) -> None:
        """Wait until each reader has delivered `more` further messages."""
        target = self.count() + more
        try:
            wait_until_sync(lambda: self.count() >= target)
        except BaseException as error:
            raise AssertionError(f"a reader is stuck at {self.count()}: {self._story()}") from error

    def wait_for_sessions(self, reader: str, what: str, number: int) -> None:
        """Wait until the reader's log has `number` lines `what` about sessions."""
        try:
            wait_until_sync(lambda: self.sessions(reader)[what] >= number)
        except BaseException as error:
            raise AssertionError(f"{reader}: {self.sessions(reader)}, {self._story()}") from error

    def sessions(self, reader: str) -> Counter[str]:
        """Return the numbers of log lines about sessions of a reader."""
        log = self._logs[reader]
        return Known.of(log).sessions if log.exists() else Counter()

    def kill_service_after(self, more: int) -> None:
        """SIGKILL the service when each reader has delivered `more` further messages, and start it again."""
        self.wait_for(more)
        self.kill_service()
        self.service.start_again(ready=False)

    def kill_service(self) -> None:
        self.service.kill()
        self.kills["service"] += 1

    def restart_broker_after(self, more: int, *, gently: bool = False) -> None:
        """Stop the broker when each reader has delivered `more` further messages, and start it again."""
        self.wait_for(more)
        self.restart_broker(gently=gently)

    def restart_broker(self, *, gently: bool = False) -> None:
        self.series_broker.take_down(gently=gently)
        self.kills["broker"] += 1
        self.series_broker.start_again()

    def decision(self) -> str:
        """Return the checker's counts when the readers have all messages.

        Raises AssertionError with the checker's findings.
        """
        self._processes[WRITE].send_signal(signal.SIGUSR1)
        try:
            wait_until_sync(self._has_read_everything)
        except BaseException as error:
            raise AssertionError(f"a reader does not come to the end: {self._story()}") from error
        assert self._start(RECALL).wait(PATIENCE) == 0, self._story()
        for part in (WRITE, *self.readers):
            self._processes[part].send_signal(signal.SIGTERM)
            assert self._processes[part].wait(PATIENCE) == 0, self._story()
        lines = [f"{self.series_broker.kind}: {self.kills.total()} kills {dict(self.kills)}"]
        for reader in self.readers:
            checked = self.check(self._logs[reader])
            assert checked.returncode == 0, f"{reader}: {checked.stdout[-8000:]}{checked.stderr}{self._story()}"
            lines.append(f"{reader}: {checked.stdout.strip()}")
        return "\n".join(lines)

    def check(self, log: Path) -> subprocess.CompletedProcess[str]:
        """Run the checker as a process for the log of a reader."""
        logs = [str(self._logs[WRITE]), str(log), str(self._logs[RECALL])]
        command = [sys.executable, "-m", "tests.support.kill_series.stream_checker", *logs]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def log_of(self, reader: str) -> Path:
        return self._logs[reader]

    def _has_read_everything(self) -> bool:
        written = Known.of(self._logs[WRITE])
        known = (Known.of(self._logs[reader]) for reader in self.readers)
        return written.is_over and all(
            {n for read in each.read.values() for _, n in read}.issuperset(written.published) for each in known
        )

    def _story(self) -> str:
        return self._errors.read_text(encoding="utf-8")[-4000:] + self.service.log()[-8000:]

    def close(self) -> None:
        for process in self._processes.values():
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

"""A trial: one service, a load over each of some brokers, things that go wrong meanwhile, and the checker's verdict.

with Trial(tmp_path, trial_broker) as trial:
    trial.kill_service_after(100)
    trial.restart_broker_after(100, trial_broker)
    print(trial.verdict())
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_store.maintenance.index_check import compare
from tests.support.brokers.proxy import ProxyThread
from tests.support.connection_documents import policy_for
from tests.support.kill_series.clients import join
from tests.support.kill_series.load import NAMESPACE, THINGS
from tests.support.kill_series.log import Log
from tests.support.kill_series.trial_broker import SUBJECT, KillSeriesBroker, hearing
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

MAKE, LOAD, CHECK = "make", "load", "check"
"""Each has addresses of its own: after a kill, whoever listens at one of them may be answered again."""

PATIENCE = 90.0
CHECKED_WITHIN = 300.0
APART = 1_000_000_000
"""Between the first numbers of two loads."""

PAUSES = {"min": "0.1s", "max": "1s"}


class Trial:
    """`proxies`: what stands between the service and a broker. `is_keyed`: commands carry an `idempotency-key`, which those
    need whose own link to the broker breaks (see `Ground.client_resends`). `hearer`: where somebody hears of all events at a
    target, which every command then wants to be acknowledged."""

    def __init__(
        self,
        folder: Path,
        *trial_brokers: KillSeriesBroker,
        proxies: Mapping[KillSeriesBroker, ProxyThread] | None = None,
        is_keyed: bool = False,
        hearer: KillSeriesBroker | None = None,
    ) -> None:
        self.trial_brokers = trial_brokers
        self.hearer = hearer
        self._keyed = "keyed" if is_keyed else "bare"
        name = f"trial-{secrets.token_hex(4)}"
        self._name = name
        self._logs = {trial_broker: folder / f"{trial_broker.kind}.log" for trial_broker in trial_brokers}
        self._heard = folder / "heard.log"
        self._listener: subprocess.Popen[bytes] | None = None
        self._words = folder / "loads.txt"
        self._loads: list[subprocess.Popen[bytes]] = []
        for trial_broker in trial_brokers:
            trial_broker.prepare(name, MAKE, LOAD, CHECK)
        documents = [
            trial_broker.connection(name, MAKE, LOAD, CHECK, proxy=(proxies or {}).get(trial_broker))
            for trial_broker in trial_brokers
        ]
        if hearer is not None:
            address = hearer.addresses(name, "heard")[1]
            hearer.prepare(name, "heard")
            for document in documents:
                for source in document["sources"]:
                    source["replyTarget"]["expectedResponseTypes"] = ["response", "error", "nack"]
            documents.append(hearing(hearer, name, address))
            command = [
                sys.executable,
                "-m",
                "tests.support.kill_series.target_listener",
                hearer.uri,
                address,
                str(self._heard),
            ]
            self._listener = subprocess.Popen(command)
            wait_until_sync(self._heard.exists)
        self._hearing = documents[-1]
        self.connections = [str(document["id"]) for document in documents]
        self.service = ServiceProcess.start(folder, documents, reconnect=PAUSES)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        with join(self.trial_brokers[0].uri, *self.trial_brokers[0].addresses(self._name, MAKE)) as maker:
            for number in range(THINGS):
                made = maker.ask_for(
                    f"{NAMESPACE}/device-{number}/things/twin/commands/create", value={"_policy": policy_for(SUBJECT)}
                )
                assert made["status"] == 201, made
        for position, trial_broker in enumerate(self.trial_brokers):
            command = [trial_broker.uri, *trial_broker.addresses(self._name, LOAD), str(self._logs[trial_broker])]
            command += [str(position * APART), self._keyed]
            if self.hearer is not None:
                command.append(self._hearing["targets"][0]["issuedAcknowledgementLabel"])
            with self._words.open("ab") as words:
                self._loads.append(
                    subprocess.Popen([sys.executable, "-m", "tests.support.kill_series.load", *command], stderr=words)
                )

    def answers(self, trial_broker: KillSeriesBroker) -> int:
        log = self._logs[trial_broker]
        return log.read_bytes().count(b'"answered"') if log.exists() else 0

    def wait_for(self, more: int, *trial_brokers: KillSeriesBroker) -> None:
        """Wait until so many further answers, or more, are in the log of each of these (or of all)."""
        targets = {each: self.answers(each) + more for each in trial_brokers or self.trial_brokers}
        wait_until_sync(lambda: all(self.answers(each) >= target for each, target in targets.items()))

    def kill_service_after(self, more: int) -> None:
        """SIGKILL as soon as `more` further answers have come everywhere; then start again."""
        self.wait_for(more)
        self.service.kill()
        self.service.start_again(ready=False)

    def restart_broker_after(self, more: int, trial_broker: KillSeriesBroker) -> None:
        """Knock the broker down as soon as `more` further answers have come over it; then start it again."""
        self.wait_for(more, trial_broker)
        trial_broker.knock_down()
        trial_broker.start_again()

    def finish(self) -> None:
        """Let the loads come to their end. Raises AssertionError for one that is not answered."""
        for load in self._loads:
            load.send_signal(signal.SIGTERM)
        for load in self._loads:
            code = load.wait(2 * PATIENCE)
            words = self._words.read_text(encoding="utf-8")
            assert code == 0, f"a load ended with {code}:\n{words}\n{self.service.log()}"
        if self._listener is not None:
            self._hear_out(self._listener)

    def _hear_out(self, listener: subprocess.Popen[bytes]) -> None:
        """Let the listener hear of everything that was answered, which is everything that was sent."""
        log = Log.read(*self._logs.values())
        newest: dict[str, int] = {}
        for number, revisions in log.answered.items():
            newest[log.sent[number]] = max(newest.get(log.sent[number], 0), *revisions)

        def has_heard() -> bool:
            heard = {(event.thing, event.revision) for event in Log.read(self._heard).received}
            return heard.issuperset(newest.items())

        wait_until_sync(has_heard)
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(PATIENCE) == 0

    def check(self) -> subprocess.CompletedProcess[str]:
        trial_broker = self.trial_brokers[0]
        logs = [str(log) for log in self._logs.values()]
        if self.hearer is not None:
            logs.append(str(self._heard))
        command = [
            "tests.support.kill_series.checker",
            trial_broker.uri,
            *trial_broker.addresses(self._name, CHECK),
            *logs,
        ]
        return subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=CHECKED_WITHIN, check=False
        )

    def decision(self) -> str:
        """The checker's counts, after the loads have ended. Raises AssertionError with its findings, for an answer
        that a broker is said to have refused: it may have been told again, and by luck; and where the search index does not
        say what the states say."""
        self.finish()
        checked = self.check()
        assert checked.returncode == 0, checked.stdout[-8000:] + checked.stderr + self.service.log()
        refused = [record for record in self.service.records() if record["event"] == "message not published"]
        assert not refused, refused[:5]
        indexed = compare(self.service.data / "journal.db")
        assert (indexed.examples, indexed.waiting, indexed.entities >= THINGS) == ([], 0, True)
        return checked.stdout.strip()

    def close(self) -> None:
        for process in (*self._loads, *([self._listener] if self._listener is not None else [])):
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

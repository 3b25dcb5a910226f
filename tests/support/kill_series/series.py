"""A kill test: one service, a load over each of some brokers, faults, and the checker's decision.

with KillSeries(tmp_path, series_broker) as series:
    series.kill_service_after(100)
    series.restart_broker_after(100, series_broker)
    print(series.decision())
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from spark_store.maintenance.index_check import compare
from tests.support.brokers.proxy import ProxyThread
from tests.support.connection_documents import policy_for
from tests.support.kill_series.clients import join
from tests.support.kill_series.faults import STATUSES, FaultyService
from tests.support.kill_series.load import APART, THINGS, LoadOptions, Producer, command
from tests.support.kill_series.log import Log
from tests.support.kill_series.series_broker import SUBJECT, KillSeriesBroker, target_connection
from tests.support.wait import TimedOut, wait_until_sync

MAKE, LOAD, CHECK = "make", "load", "check"
"""The clients, each with its own addresses, because a client may get a response again after a kill."""

PATIENCE = 90.0
CHECKED_WITHIN = 300.0

QUIET = 0.5
"""Seconds without a log line after which a load has sent all it may: longer than the pause of a retry."""

PAUSES = {"min": "0.1s", "max": "1s"}


class KillSeries:
    """A kill test. `proxies` are between the service and a broker.

    `target_broker`: the broker of a target that receives all events; each command requests an acknowledgement of it.
    `is_faulty`: reads fail and handlers raise at random. `is_lossy`: a broker loses confirmed messages. `kills`: the
    numbers of kills and changes, by kind; `redelivered`: the number of deliveries that the service recognized as
    redelivered.
    """

    def __init__(
        self,
        folder: Path,
        *series_brokers: KillSeriesBroker,
        proxies: Mapping[KillSeriesBroker, ProxyThread] | None = None,
        target_broker: KillSeriesBroker | None = None,
        is_faulty: bool = False,
        is_lossy: bool = False,
        producers: tuple[Producer, ...] = tuple(Producer),
        in_flight: int = 40,
    ) -> None:
        self.series_brokers = series_brokers
        self.target_broker = target_broker
        self.kills: Counter[str] = Counter()
        self._is_faulty = is_faulty
        self._begun = time.monotonic()
        self.redelivered = 0.0
        if is_lossy:
            producers = (Producer.KEYED,)
        elif target_broker is not None:
            # Acknowledgements need a correlation ID.
            producers = (Producer.MESSAGE_ID, Producer.ENVELOPE)
        self._options = LoadOptions(
            producers=producers, tolerated=STATUSES if is_faulty else (), is_lossy=is_lossy, in_flight=in_flight
        )
        name = f"series-{secrets.token_hex(4)}"
        self._name = name
        self._logs = {series_broker: folder / f"{series_broker.kind}.log" for series_broker in series_brokers}
        self._target_log = folder / "received.log"
        self._listener: subprocess.Popen[bytes] | None = None
        self._errors = folder / "loads.txt"
        self._loads: list[subprocess.Popen[bytes]] = []
        for series_broker in series_brokers:
            series_broker.prepare(name, MAKE, LOAD, CHECK)
        documents = [
            series_broker.connection(name, MAKE, LOAD, CHECK, proxy=(proxies or {}).get(series_broker))
            for series_broker in series_brokers
        ]
        if target_broker is not None:
            address = target_broker.addresses(name, "target")[1]
            target_broker.prepare(name, "target")
            for document in documents:
                for source in document["sources"]:
                    source["replyTarget"]["expectedResponseTypes"] = ["response", "error", "nack"]
            documents.append(target_connection(target_broker, name, address))
            self._options = msgspec.structs.replace(
                self._options, label=documents[-1]["targets"][0]["issuedAcknowledgementLabel"]
            )
            listener = ["tests.support.kill_series.target_listener", target_broker.uri, address, str(self._target_log)]
            self._listener = subprocess.Popen([sys.executable, "-m", *listener])
            wait_until_sync(self._target_log.exists)
        self.documents: list[dict[str, Any]] = documents
        self.connections = [str(document["id"]) for document in documents]
        self.service = FaultyService.start(folder, documents, reconnect=PAUSES)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        with join(self.series_brokers[0].uri, *self.series_brokers[0].addresses(self._name, MAKE)) as maker:
            for number in range(THINGS):
                made = maker.ask_for(command(f"device-{number}", "create"), value={"_policy": policy_for(SUBJECT)})
                assert made["status"] == 201, made
        for position, series_broker in enumerate(self.series_brokers):
            options = msgspec.json.encode(msgspec.structs.replace(self._options, first=position * APART)).decode()
            addresses = series_broker.addresses(self._name, LOAD)
            arguments = [series_broker.uri, *addresses, str(self._logs[series_broker]), options]
            with self._errors.open("ab") as errors:
                self._loads.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.support.kill_series.load", *arguments], stderr=errors
                    )
                )
        if self._is_faulty:
            self.wait_for(1)
            self.service.arm()

    def _count(self, series_broker: KillSeriesBroker, kind: bytes) -> int:
        log = self._logs[series_broker]
        return log.read_bytes().count(kind) if log.exists() else 0

    def wait_for(self, more: int, *series_brokers: KillSeriesBroker) -> None:
        """Wait until the log of each of these brokers, by default all, has `more` further responses.

        Raises AssertionError with the checker's findings if they do not arrive.
        """
        self._wait_for(more, b'"answered"', series_brokers or self.series_brokers)

    def wait_until_replaced(self) -> None:
        """Wait until all commands that are open now have responses, because as many new ones were sent.

        Raises as `wait_for`.
        """
        self._wait_for(self._options.in_flight, b'"sent"', self.series_brokers)

    def _wait_for(self, more: int, kind: bytes, series_brokers: Sequence[KillSeriesBroker]) -> None:
        targets = {each: self._count(each, kind) + more for each in series_brokers}
        try:
            wait_until_sync(lambda: all(self._count(each, kind) >= target for each, target in targets.items()))
        except TimedOut as error:
            raise AssertionError(f"no answers come: {self.decision()}") from error

    def kill_service_after(self, more: int) -> None:
        """SIGKILL the service when each log has `more` further responses, and start it again."""
        self.wait_for(more)
        self.kill_service()
        self.service.start_again(ready=False)

    def kill_service(self) -> None:
        self._count_again()
        self.service.kill()
        self.kills["service"] += 1

    def restart_broker_after(self, more: int, series_broker: KillSeriesBroker, *, gently: bool = False) -> None:
        """Stop the broker after `more` further responses over it, and start it again."""
        self.wait_for(more, series_broker)
        with self.broker_away(series_broker, gently=gently):
            pass

    def restart_broker_in_burst(self, series_broker: KillSeriesBroker, pause: float, *, gently: bool) -> None:
        """Stop the broker `pause` seconds after the service has begun to handle a burst of commands.

        The service is paused until the broker has as many commands as the load keeps open. So most are carried out when
        the broker stops, but have neither a response nor an acknowledgement.
        """
        process = self.service.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        self._wait_until_full()
        process.send_signal(signal.SIGCONT)
        time.sleep(pause)
        with self.broker_away(series_broker, gently=gently):
            pass

    def _wait_until_full(self) -> None:
        """Wait until no load sends anything more, because there are no responses."""

        def sizes() -> list[int]:
            return [log.stat().st_size for log in self._logs.values()]

        before, since = sizes(), time.monotonic()

        def is_quiet() -> bool:
            nonlocal before, since
            if (now := sizes()) != before:
                before, since = now, time.monotonic()
            return time.monotonic() - since > QUIET

        wait_until_sync(is_quiet)

    @contextmanager
    def broker_away(self, series_broker: KillSeriesBroker, *, gently: bool = False) -> Iterator[None]:
        """Stop the broker for the duration of the block."""
        is_asked = gently or not series_broker.survives_kill
        series_broker.take_down(gently=is_asked)
        self.kills[f"{series_broker.kind} by {'SIGTERM' if is_asked else 'SIGKILL'}"] += 1
        yield
        series_broker.start_again()

    def kill_forgetful(self, series_broker: KillSeriesBroker) -> None:
        """SIGKILL a broker that loses messages then, and start it again."""
        series_broker.broker.kill()
        self.kills[f"{series_broker.kind} by SIGKILL"] += 1
        series_broker.start_again()

    def _count_again(self) -> None:
        """Add the deliveries that the service recognized as redelivered, before it ends."""
        for connection in self.connections:
            self.redelivered += self.service.metric(
                "connectivity_deliveries_total", connection=connection, outcome="answered_again"
            )

    def finish(self) -> None:
        """Stop the loads and wait for them. Raises AssertionError if one fails."""
        for load in self._loads:
            load.send_signal(signal.SIGTERM)
        for load in self._loads:
            code = load.wait(2 * PATIENCE)
            errors = self._errors.read_text(encoding="utf-8")
            assert code == 0, f"a load ended with {code}:\n{errors}\n{self.service.log()}"
        self.service.disarm()
        if self._listener is not None:
            self._wait_for_events(self._listener)

    def _wait_for_events(self, listener: subprocess.Popen[bytes]) -> None:
        """Wait until the listener has received the events of all responses, then stop it."""
        log = Log.read(*self._logs.values())
        newest: dict[str, int] = {}
        for number, revisions in log.answered.items():
            newest[log.sent[number]] = max(newest.get(log.sent[number], 0), *revisions)

        def has_received_all() -> bool:
            received = {(event.thing, event.revision) for event in Log.read(self._target_log).received}
            return received.issuperset(newest.items())

        wait_until_sync(has_received_all)
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(PATIENCE) == 0

    def check(self) -> subprocess.CompletedProcess[str]:
        series_broker = self.series_brokers[0]
        logs = [str(log) for log in self._logs.values()]
        if self.target_broker is not None:
            logs.append(str(self._target_log))
        if self.service.injected.exists():
            logs.append(str(self.service.injected))
        command = [
            "tests.support.kill_series.checker",
            series_broker.uri,
            *series_broker.addresses(self._name, CHECK),
            *logs,
        ]
        return subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=CHECKED_WITHIN, check=False
        )

    def decision(self) -> str:
        """Return a line of figures after the loads have ended.

        Raises AssertionError with the checker's findings, for a response that a broker refused, for differences between
        search index and states, and for deliveries left at a broker.
        """
        self.finish()
        checked = self.check()
        self._count_again()
        lines = checked.stdout.splitlines()
        line = self._line(lines[-1] if lines else "")
        if checked.returncode:
            errors = self._errors.read_text(encoding="utf-8")
            found = "\n".join(lines[:200])
            raise AssertionError(f"{line}\n{found}\n{checked.stderr}{errors[-4000:]}{self.service.log()}")
        refused = [record for record in self.service.records() if record["event"] == "message not published"]
        assert not refused, refused[:5]
        indexed = compare(self.service.data / "journal.db")
        assert (indexed.examples, indexed.waiting, indexed.entities >= THINGS) == ([], 0, True)
        self._check_settled()
        return line

    def _line(self, figures: str) -> str:
        kinds = ", ".join(series_broker.kind for series_broker in self.series_brokers)
        kills = ", ".join(f"{number} {what}" for what, number in self.kills.items()) or "none"
        faults = f"; {self.faults} faults" if self._is_faulty else ""
        seconds = time.monotonic() - self._begun
        known = f"{self.redelivered:.0f} redelivered"
        return f"{kinds}: {self.kills.total()} kills ({kills}){faults}; {known}; {figures}; {seconds:.0f} s"

    @property
    def faults(self) -> int:
        """The number of injected faults."""
        log = self.service.injected
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _check_settled(self) -> None:
        """Raise AssertionError for deliveries with a response that are neither acknowledged nor rejected.

        Those with a fault may have been requeued. Commands whose acknowledgements failed were requeued: MQTT brokers
        send them again on the next link, when their target is available.
        """
        self.service.stop()
        if self.target_broker is not None:
            self.service.start_again()
            wait_until_sync(lambda: self.service.metric("connectivity_oldest_unsettled_seconds") == 0)
            self.service.stop()
        for series_broker in self.series_brokers:
            left = series_broker.unsettled(self._name, LOAD)
            assert left <= self.faults, f"{series_broker.kind}: {left} deliveries are not settled"

    def plant_stall(self, seconds: float) -> None:
        """Change the log of the first load: its first response arrived `seconds` later."""
        log = self._logs[self.series_brokers[0]]
        lines = log.read_text(encoding="utf-8").splitlines()
        place = next(number for number, line in enumerate(lines) if line.startswith('{"answered"'))
        line = json.loads(lines[place])
        lines[place] = json.dumps({**line, "at": line["at"] + seconds})
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")

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

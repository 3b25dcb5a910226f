"""The pipeline process, which the service starts, watches and stops.

With `spark.mode: embedded` the service runs `python -m spark_store.pipeline`, and starts it again with growing pauses when
it ends. Clients do not notice: the lake catches up from the journal. Two ends are final until the service starts again:
Spark cannot run on this machine, or lake and journal do not match. They are logged once and shown in
`/health/ready`; the service goes on without a lake. The pipeline writes JSON objects to its standard output, which appear in
the service's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import structlog

from connectivity.config.settings import PREFIX, Settings, SparkMode
from connectivity.errors import ConnectivityError
from connectivity.monitoring.prometheus import GaugeReading
from spark_store.errors import StoreError
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import Lake
from spark_store.lake.watermark import MAINTENANCE, LakeLag, Watermark, measure_lag, read_watermark
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.settings import PipelineSettings

log = structlog.get_logger(__name__)


PAUSE_MIN, PAUSE_MAX = 1.0, 60.0
"""Seconds between an end and the next start: doubled until the pipeline has worked again."""

FINAL = {2, 4, 5}
"""Exit codes after which another start would end the same way (see `spark_store.pipeline.__main__`)."""

_DEBUG_EVENTS = {"batch", "merged", "maintenance"}
"""Events that are too frequent for the log."""

_WARNING_EVENTS = {"maintenance failed", "erasure failed", "watermark lost", "clock went ahead"}
"""Events that an operator should look at, although the pipeline goes on."""

_MAINTENANCE = {"maintenance", "maintenance failed"}

_ANSWERS = {"installed", "preview", "optimized", "expired", "verified"}
"""The last event of a process that answers a question."""

_FOLLOWING = {"following", "batch"}
"""The events of a pipeline that follows the journal."""

MAX_LINE = 1 << 20
"""The longest line in bytes; longer ones are cut."""

_READ_BYTES = 1 << 16


class NotReadable(ConnectivityError):
    """Journal or watermark cannot be read now."""


class PipelineEnded(ConnectivityError):
    """A pipeline process ended before it had answered."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code if exit_code > 0 else 1


def environment() -> dict[str, str]:
    """Return the environment of a pipeline process, without the service's own secrets."""
    own = (f"{PREFIX}SECRETS", f"{PREFIX}API")
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(own)}


def command(settings: Settings, action: str, *options: str) -> list[str]:
    """Return the command line of a pipeline process."""
    found = [sys.executable, "-m", "spark_store.pipeline", action, "--data-dir", str(settings.data_dir)]
    return [*found, "--settings", msgspec.json.encode(_pipeline_settings(settings)).decode(), *options]


def _pipeline_settings(settings: Settings) -> PipelineSettings:
    spark, lake = settings.spark, settings.lake
    rules = {name: RetentionRule(kept.days, kept.revisions) for name, kept in lake.retention.rules.items()}
    return PipelineSettings(
        master=spark.master,
        memory=spark.memory,
        jars=None if spark.jars is None else str(spark.jars),
        mirror=spark.mirror,
        # With `spark.remote`, another Spark does.
        answers_queries=spark.remote is None,
        interval=lake.interval.total_seconds(),
        optimize_files=lake.optimize_files,
        optimize_every=lake.optimize_every,
        vacuum_every=lake.vacuum_every,
        retention_every=lake.retention_every,
        retention=RetentionRules(rules.pop("default"), rules),
    )


def ask(
    settings: Settings, action: str, *options: str, on_event: Callable[[dict[str, Any]], object] = lambda _: None
) -> list[dict[str, Any]]:
    """Run a pipeline process to its end and pass each of its events to `on_event`.

    Output of Java is ignored. The process ends when this one does. Raises PipelineEnded if it failed.
    """
    fields: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile() as aside,
        subprocess.Popen(
            command(settings, action, "--with-parent", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=aside,
            env=environment(),
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if (found := parse_event(line.decode(errors="replace").strip())) is not None:
                fields.append(found)
                on_event(found)
        exit_code = process.wait()
        aside.seek(0)
        words = aside.read().decode(errors="replace").split("\n")
    if exit_code and not (fields and fields[-1]["event"] in _ANSWERS):
        reasons = [str(it["reason"]) for it in fields if it["event"] == "failed"]
        raise PipelineEnded(
            exit_code, next(iter([*reasons, *filter(None, reversed(words))]), "the process printed no result")
        )
    return fields


def answer(
    settings: Settings, action: str, *options: str, on_event: Callable[[dict[str, Any]], object] = lambda _: None
) -> dict[str, Any]:
    """Run a pipeline process as `ask` does, and return its last event. Raises PipelineEnded if it failed."""
    fields = ask(settings, action, *options, on_event=on_event)
    if not fields or fields[-1]["event"] not in _ANSWERS:
        raise PipelineEnded(1, "the process printed no result")
    return {name: value for name, value in fields[-1].items() if name != "event"}


def preview(settings: Settings) -> list[dict[str, Any]]:
    """Return what retention would delete now, by namespace. Raises PipelineEnded."""
    namespaces: list[dict[str, Any]] = answer(settings, "retention", "--preview")["namespaces"]
    return namespaces


def status(settings: Settings) -> dict[str, Any]:
    """Return how far the lake is behind; with `spark.mode: off` nothing lags. Raises NotReadable."""
    # Imports pyarrow, which a service without a lake does not need.
    from spark_store.lake.status import read_status

    mode = settings.spark.mode
    try:
        found = read_status(Lake(settings.data_dir), datetime.now(UTC))
    except StoreError as error:
        raise NotReadable(str(error)) from error
    if mode is SparkMode.OFF:
        found |= {"lag_events": None, "lag_seconds": None}
    return {"mode": mode.value, **found}


def pipeline_figures(
    is_up: bool | None, watermark: Watermark | None, lag: LakeLag | None, pending: int | None
) -> Iterator[GaugeReading]:
    """Return the metrics of the lake and its pipeline.

    None: not known, or not this service's. `is_up`: whether the pipeline follows the journal; `pending`: erasures to be
    done.
    """
    if is_up is not None:
        yield GaugeReading("connectivity_pipeline_up", "1 while the pipeline follows the journal.", {(): is_up})
    if watermark is not None:
        yield from _figures_of(watermark)
    if lag is not None:
        text = "Events that are not in the lake yet."
        yield GaugeReading("connectivity_lake_lag_events", text, {(): lag.events})
        text = "Age of the oldest event that is not in the lake yet."
        yield GaugeReading("connectivity_lake_lag_seconds", text, {(): lag.seconds})
    if pending is not None:
        text = "Erasures that are not complete in the journal or the lake."
        yield GaugeReading("connectivity_lake_erasures_pending", text, {(): pending})


def _figures_of(watermark: Watermark) -> Iterator[GaugeReading]:
    """Return the metrics of the pipeline's own figures; unfinished tasks have none."""
    tables = watermark.tables.items()
    yield GaugeReading(
        "connectivity_lake_table_files", "Files of a table.", {(name,): size.files for name, size in tables}, ("table",)
    )
    yield GaugeReading(
        "connectivity_lake_table_bytes", "Bytes of a table.", {(name,): size.bytes for name, size in tables}, ("table",)
    )
    done = {
        "batch": watermark.published,
        "optimize": watermark.optimized,
        "vacuum": watermark.vacuumed,
        "retention": watermark.retention.happened if watermark.retention is not None else None,
    }
    yield GaugeReading(
        "connectivity_pipeline_last_run_timestamp_seconds",
        "When the pipeline last did the work named in `kind`, in seconds since 1970.",
        {(kind,): datetime.fromisoformat(at).timestamp() for kind, at in done.items() if at is not None},
        ("kind",),
    )
    failing = {**dict.fromkeys(MAINTENANCE, False), **dict.fromkeys(watermark.maintenance_failures, True)}
    yield GaugeReading(
        "connectivity_pipeline_failing",
        "1 if the pipeline's last attempt at the work named in `kind` failed; new events still arrive.",
        {(kind,): is_failing for kind, is_failing in failing.items()},
        ("kind",),
    )
    if watermark.retention is not None:
        text = "Events deleted by the last run of retention."
        yield GaugeReading("connectivity_lake_retention_events", text, {(): watermark.retention.events})
    if watermark.batch is not None:
        text = "Events of the last batch."
        yield GaugeReading("connectivity_pipeline_batch_events", text, {(): watermark.batch.rows})
        text = "How long the last batch took."
        yield GaugeReading("connectivity_pipeline_batch_seconds", text, {(): watermark.batch.seconds})


@dataclass(slots=True)
class RestartBackoff:
    """Counts how often the pipeline has ended without having worked."""

    ends: int = 0

    def pause(self, exit_code: int) -> float | None:
        """Return the seconds until the next start after this end; None: no other start."""
        if exit_code in FINAL:
            return None
        self.ends += 1
        return min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(self.ends - 1, 16))

    def over(self) -> None:
        self.ends = 0


@dataclass(slots=True)
class _Run:
    """The events of one process."""

    reason: str | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=20))


class _LakeStatus(NamedTuple):
    """The watermark, the lag, and how many erasures wait; None if they could not be read."""

    watermark: Watermark | None = None
    lag: LakeLag | None = None
    pending: int | None = None


class PipelineProcess:
    """The pipeline of one service; `details` describes its state for operators."""

    def __init__(self, settings: Settings) -> None:
        self.details = {
            SparkMode.OFF: "off: the journal keeps everything",
            SparkMode.EXTERNAL: "external",
            SparkMode.EMBEDDED: "starting",
        }[settings.spark.mode]
        self._settings = settings
        self._lake = Lake(settings.data_dir)
        self._journal_reader: JournalReader | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._backoff = RestartBackoff()
        self._is_following = False
        self._maintenance = ""
        self._lake_status = _LakeStatus()
        self._looking = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process ID while a process runs."""
        return self._process.pid if self._process is not None else None

    async def look(self) -> None:
        """Read what `figures` shows, in a thread, since the disk may be slow."""
        if self._settings.spark.mode is not SparkMode.OFF:
            self._lake_status = await asyncio.to_thread(self._read_lake_status)

    def _read_lake_status(self) -> _LakeStatus:
        with self._looking:
            try:
                watermark = read_watermark(self._lake.watermark)
            except StoreError as error:
                log.debug("the watermark cannot be read", reason=str(error))
                return _LakeStatus()
            try:
                if self._journal_reader is None:
                    self._journal_reader = JournalReader.open(self._lake.journal)
                lag = measure_lag(self._journal_reader, watermark.visible, datetime.now(UTC))
                return _LakeStatus(watermark, lag, len(self._journal_reader.erasures(watermark.erased)))
            except StoreError as error:
                log.debug("the lake's lag cannot be read", reason=str(error))
                return _LakeStatus(watermark)

    def figures(self) -> Iterator[GaugeReading]:
        """Return the metrics of lake and pipeline as of the last `look`; none if they could not be read."""
        if self._settings.spark.mode is SparkMode.OFF:
            return
        is_up = self._is_following if self._settings.spark.mode is SparkMode.EMBEDDED else None
        yield from pipeline_figures(is_up, *self._lake_status)

    def start(self) -> None:
        """Run the pipeline from now on, if it is the service's to run."""
        if self._settings.spark.mode is SparkMode.EMBEDDED:
            self._running = asyncio.create_task(self._run_forever(), name="pipeline")

    def stop(self) -> None:
        """Ask the pipeline to end after its current batch, and do not start it again."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    async def close(self, seconds: float) -> None:
        """Stop the pipeline, and kill it after so many seconds, which leaves the lake consistent."""
        self.stop()
        if self._running is not None:
            _, late = await asyncio.wait([self._running], timeout=seconds)
            if late:
                log.info("pipeline did not end in time and was killed", seconds=seconds)
                self._kill()
            await self._running
        await asyncio.to_thread(self._close_journal_reader)

    def _close_journal_reader(self) -> None:
        """Close the journal reader, after a running `look`."""
        with self._looking:
            if self._journal_reader is not None:
                self._journal_reader.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _kill(self) -> None:
        """Kill the process and its Java process, which would hold the output open until it notices."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _run_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                exit_code, run = await self._run()
            except Exception as error:
                # For example no memory for a process, or unexpected output: the next start may succeed.
                log.exception("reading pipeline output failed")
                exit_code, run = 1, _Run(reason=str(error))
            if self._stopping.is_set():
                return
            reason = (
                run.reason or _signal_name(exit_code) or (run.last[-1] if run.last else "the process printed no result")
            )
            pause = self._backoff.pause(exit_code)
            if pause is None:
                self.details = f"stopped: {reason}"
                log.error("pipeline cannot run: the journal keeps everything", exit_code=exit_code, reason=reason)
                return
            self.details = f"restarting: {reason}"
            log.warning("pipeline ended", exit_code=exit_code, reason=reason, pause=pause, output=list(run.last))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _run(self) -> tuple[int, _Run]:
        """Run one process to its end; return its exit code and its events."""
        run = _Run()
        self._process = process = await asyncio.create_subprocess_exec(
            *command(self._settings, "run", "--with-parent"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environment(), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        log.info("pipeline started", pid=process.pid)
        try:
            if self._stopping.is_set():
                self._signal(signal.SIGTERM)
            assert process.stdout is not None
            async for line in lines(process.stdout):
                self._read_line(line.decode(errors="replace").strip(), run)
            return await process.wait(), run
        except Exception:
            # Its output would no longer be read, and it would hinder the next one.
            self._kill()
            await process.wait()
            raise
        finally:
            self._process, self._is_following = None, False
            if process.stdin is not None:
                process.stdin.close()

    def _read_line(self, line: str, run: _Run) -> None:
        """Read one line of the process: an event, or output of Java or a library."""
        fields = parse_event(line)
        if fields is None:
            if line:
                run.last.append(line)
                log.debug("pipeline output", line=line)
            return
        event = str(fields.pop("event"))
        if event == "failed":
            run.reason = str(fields.get("reason"))
            return
        if _has_worked(event, fields):
            self._backoff.over()
        if event in _MAINTENANCE:
            self._maintenance = f"; maintenance failed: {fields['reason']}" if "reason" in fields else ""
        if event in _FOLLOWING or event in _MAINTENANCE:
            self._is_following = True
            self.details = f"following{self._maintenance}"
        level = log.debug if event in _DEBUG_EVENTS else log.warning if event in _WARNING_EVENTS else log.info
        level(f"pipeline {event}", **fields)


def _signal_name(exit_code: int) -> str | None:
    """Return the signal that ended a process. Output of its Java process is no reason."""
    if exit_code >= 0:
        return None
    number = -exit_code
    # Real-time signals have no names.
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"the process was ended by {name}; the next process repeats its unfinished work"


async def lines(stream: asyncio.StreamReader, longest: int = MAX_LINE) -> AsyncIterator[bytes]:
    """Yield the lines of `stream` without their ends, cut after `longest` bytes."""
    line = bytearray()
    while found := await stream.read(_READ_BYTES):
        *ended, rest = found.split(b"\n")
        for part in ended:
            yield bytes(line + part)[:longest]
            line.clear()
        line += rest[: longest - len(line)]
    if line:
        yield bytes(line)


def _has_worked(event: str, fields: Mapping[str, Any]) -> bool:
    """Whether the pipeline has worked.

    Finding its position proves it only if no event waits: a batch that ends it does so again after the next start.
    """
    return event == "batch" or (event == "following" and "seq" in fields and fields["seq"] == fields.get("newest"))


def parse_event(line: str) -> dict[str, Any] | None:
    """Return the event on this line; None for other output."""
    if not line.startswith('{"event": '):
        return None
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return found

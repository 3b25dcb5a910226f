"""The pipeline process of the service: it is started, read, restarted and stopped. No Spark here."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from connectivity.config.settings import Settings
from connectivity.maintenance import pipeline_process as module
from connectivity.maintenance.pipeline_process import (
    NotReadable,
    PipelineEnded,
    PipelineProcess,
    RestartBackoff,
    answer,
    command,
    parse_event,
    preview,
    status,
)
from connectivity.monitoring.prometheus import PrometheusRegistry
from spark_store.journal.journal import Journal
from spark_store.lake.clock import next_reading, uptime
from spark_store.lake.watermark import BatchProgress, RetentionRun, TableSize, Watermark, publish_watermark
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.settings import PipelineSettings, decode_settings
from tests.support.journal_entries import LAMP, history
from tests.support.wait import PATIENCE, wait_until

PREAMBLE = """
import json, signal, sys, time
def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)
"""


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(data_dir=folder, **{"spark": {"mode": "embedded"}, **more})


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Replace the pipeline by this script."""
    program = f"{PREAMBLE}\n{text}"
    monkeypatch.setattr(module, "command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(module, "PAUSE_MIN", 0.01)


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[PipelineProcess]:
    made = PipelineProcess(settings(tmp_path))
    yield made
    await made.close(10)


def test_the_command_has_the_folder_and_the_settings(tmp_path: Path) -> None:
    retention = {"default": "1d", "acme": "forever", "site": {"days": 0.5, "revisions": 7}}
    spark = {"master": "local[3]", "jars": "/jars", "memory": "2g"}
    found = command(settings(tmp_path, spark=spark, lake={"retention": retention}), "run", "--with-parent")
    assert found[1:7] == ["-m", "spark_store.pipeline", "run", "--data-dir", str(tmp_path), "--settings"]
    assert found[8:] == ["--with-parent"]
    rules = {"acme": RetentionRule(), "site": RetentionRule(timedelta(hours=12), 7)}
    assert decode_settings(found[7]) == PipelineSettings(
        master="local[3]", jars="/jars", memory="2g", retention=RetentionRules(RetentionRule(timedelta(days=1)), rules)
    )
    remote = {"mode": "external", "remote": "sc://spark:15002", "mirror": "https://maven.example"}
    decoded = decode_settings(command(settings(tmp_path, spark=remote), "run")[7])
    assert decoded == PipelineSettings(answers_queries=False, mirror="https://maven.example")


def test_times_of_any_length_are_reported_unchanged(tmp_path: Path) -> None:
    found = command(settings(tmp_path, lake={"vacuum_every": "999999999d", "interval": "0.25s"}), "run")
    decoded = decode_settings(found[7])
    assert (decoded.vacuum_every, decoded.interval) == (timedelta(days=999_999_999), 0.25)


def test_pauses_grow_until_the_pipeline_has_worked_again() -> None:
    trouble = RestartBackoff()
    assert [trouble.pause(1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    trouble.over()
    assert trouble.pause(-9) == 1
    assert [trouble.pause(code) for code in (2, 4, 5)] == [None, None, None]


def up(pipeline: PipelineProcess) -> bool:
    (figure,) = [it for it in pipeline.figures() if it.name == "connectivity_pipeline_up"]
    return bool(figure.values[()])


async def until_ended(pipeline: PipelineProcess, times: int) -> Sequence[Mapping[str, Any]]:
    """Start it, stop it after its process has ended so often, and return the log."""
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: sum(line["event"] == "pipeline ended" for line in lines) >= times)
        await pipeline.close(10)
    return lines


async def test_a_pipeline_that_ends_is_started_again(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "print('Java says something'); say('following', seq=7, newest=9); sys.exit(1)")
    lines = await until_ended(pipeline, 2)
    ended = [line for line in lines if line["event"] == "pipeline ended"]
    assert (ended[0]["exit_code"], ended[0]["reason"]) == (1, "Java says something")
    assert [line["pause"] for line in ended[:2]] == [0.01, 0.02], "there was something to do, and nothing was done"
    assert [line["seq"] for line in lines if line["event"] == "pipeline following"][:1] == [7]


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (37, "signal 37")])
async def test_of_a_pipeline_that_was_killed_the_signal_is_the_reason(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    script(monkeypatch, f"print('Java misses somebody', flush=True)\nimport os; os.kill(os.getpid(), {number})")
    lines = await until_ended(pipeline, 1)
    ended = next(line for line in lines if line["event"] == "pipeline ended")
    assert ended["reason"] == f"the process was ended by {name}; the next process repeats its unfinished work"
    assert ended["output"] == ["Java misses somebody"]


@pytest.mark.parametrize(
    "output", ["say('following', seq=9, newest=9)", "say('following', seq=7, newest=9); say('batch')"]
)
async def test_pauses_stay_short_after_a_batch_and_where_nothing_waits(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    script(monkeypatch, f"{output}; sys.exit(1)")
    lines = await until_ended(pipeline, 2)
    assert {line["pause"] for line in lines if line["event"] == "pipeline ended"} == {0.01}


async def test_maintenance_that_failed_is_shown_until_it_has_gone_well(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(
        monkeypatch,
        "say('following')\nsay('maintenance failed', reason='a damaged file')\nsay('batch')\nsay('half')\n"
        "sys.stdin.read(1)\nsay('maintenance')\nsay('batch')\nsay('done')\nsys.stdin.read()",
    )
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: any(line["event"] == "pipeline half" for line in lines))
        assert pipeline.details == "following; maintenance failed: a damaged file"
        assert up(pipeline), "events arrive all the same"
        assert [line["log_level"] for line in lines if line["event"] == "pipeline maintenance failed"] == ["warning"]
        assert pipeline._process is not None
        assert pipeline._process.stdin is not None
        pipeline._process.stdin.write(b"x")
        await wait_until(lambda: any(line["event"] == "pipeline done" for line in lines))
        assert pipeline.details == "following"


async def test_a_pipeline_that_cannot_run_here_is_reported_once(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "say('failed', reason='expected Java 17'); sys.exit(4)")
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: pipeline.details.startswith("stopped"))
    assert pipeline.details == "stopped: expected Java 17"
    (error,) = [line for line in lines if line["log_level"] == "error"]
    assert error["event"] == "pipeline cannot run: the journal keeps everything"


async def test_a_line_that_is_too_long_is_cut_and_the_pipeline_continues(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "print('x' * (3 << 20), flush=True)\nsay('following')\nsys.stdin.read()")
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: pipeline.details == "following")
        await pipeline.close(0.05)
    assert [len(line["line"]) for line in lines if line["event"] == "pipeline output"] == [module.MAX_LINE]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"ne\n\ntw", b"o"], [b"one", b"", b"two"]),
        ([b"12345678\n1234567", b"8\n", b"9"], [b"12345", b"12345", b"9"]),
        ([b"123456", b"78", b"90"], [b"12345"]),
        ([], []),
    ],
)
async def test_output_is_cut_into_lines(chunks: list[bytes], expected: list[bytes]) -> None:
    class Chunks(asyncio.StreamReader):
        async def read(self, n: int = -1) -> bytes:
            return chunks.pop(0) if chunks else b""

    assert [line async for line in module.lines(Chunks(), 5)] == expected


async def test_the_pipeline_restarts_after_any_failed_run(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "say('following')\nsys.stdin.read()")
    read_line, received = pipeline._read_line, []

    def mistaken(line: str, run: Any) -> None:
        received.append(line)
        if len(received) < 3:
            raise RuntimeError("not expected")
        read_line(line, run)

    monkeypatch.setattr(pipeline, "_read_line", mistaken)
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: pipeline.details == "following")
    ended = [line for line in lines if line["event"] == "pipeline ended"]
    assert [(line["exit_code"], line["reason"], line["pause"]) for line in ended] == [
        (1, "not expected", 0.01),
        (1, "not expected", 0.02),
    ]


async def test_closing_lets_the_batch_end(pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        monkeypatch,
        "signal.signal(signal.SIGTERM, lambda *_: (say('stopped'), sys.exit(0)))\nsay('following')\ntime.sleep(60)",
    )
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: pipeline.details == "following")
        await pipeline.close(30)
    assert [line["event"] for line in lines][-1] == "pipeline stopped"
    assert pipeline.pid is None


async def test_a_batch_that_takes_too_long_is_killed(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('following')\ntime.sleep(60)")
    pipeline.start()
    await wait_until(lambda: pipeline.details == "following")
    await asyncio.wait_for(pipeline.close(0.05), PATIENCE)
    assert pipeline.pid is None


async def test_a_java_process_that_holds_the_output_is_killed_too(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it starts, Java does not notice for ten seconds and more that the process above it is gone."""
    script(
        monkeypatch,
        "import subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen(['sleep', '{2 * PATIENCE:g}'])\nsay('following')\ntime.sleep(60)",
    )
    pipeline.start()
    await wait_until(lambda: pipeline.details == "following")
    await asyncio.wait_for(pipeline.close(0.05), PATIENCE)
    assert pipeline.pid is None


async def test_a_pipeline_notices_that_the_service_is_gone(
    pipeline: PipelineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its standard input is a pipe that the service holds, and ends with it."""
    script(monkeypatch, "say('following')\nsys.stdin.read()\nsay('alone')\nsys.exit(4)")
    with capture_logs() as lines:
        pipeline.start()
        await wait_until(lambda: pipeline.details == "following")
        assert pipeline._process is not None
        assert pipeline._process.stdin is not None
        pipeline._process.stdin.close()
        await wait_until(lambda: any(line["event"] == "pipeline alone" for line in lines))


@pytest.mark.parametrize(("mode", "details"), [("off", "off: the journal keeps everything"), ("external", "external")])
async def test_a_pipeline_that_is_not_the_services_own_is_not_started(mode: str, details: str, tmp_path: Path) -> None:
    made = PipelineProcess(settings(tmp_path, spark={"mode": mode}))
    made.start()
    await asyncio.sleep(0)
    assert (made.details, made.pid) == (details, None)
    await made.close(1)


async def test_the_lag_is_a_metric(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    made, monitor = PipelineProcess(settings(tmp_path)), PrometheusRegistry()
    monitor.look_first(made.look)
    monitor.watch_figures(made.figures)
    try:
        journal.append(history(LAMP, 5))
        assert b"connectivity_lake_lag" not in generate_latest(monitor.registry), "not read yet"
        assert b"connectivity_lake_lag_events 5.0" in await monitor.scrape()
        made._lake.pipeline.mkdir(parents=True)
        publish_watermark(made._lake.watermark, Watermark(3))
        assert b"connectivity_lake_lag_events 2.0" in await monitor.scrape()
        assert b"connectivity_lake_lag_seconds" in generate_latest(monitor.registry)
        made._lake.watermark.write_bytes(b"corrupt")
        assert b"connectivity_lake_lag" not in await monitor.scrape()
    finally:
        await made.close(1)
        journal.close()


async def test_the_status_of_the_pipeline_is_exported_as_metrics(tmp_path: Path) -> None:
    made, monitor = PipelineProcess(settings(tmp_path)), PrometheusRegistry()
    monitor.look_first(made.look)
    monitor.watch_figures(made.figures)
    assert b"connectivity_pipeline_up 0.0" in await monitor.scrape()
    assert b"connectivity_pipeline_batch" not in generate_latest(monitor.registry), "nothing was published yet"
    made._lake.pipeline.mkdir(parents=True)
    at = "2030-01-15T00:00:00.000000Z"
    published = Watermark(
        3,
        3,
        at,
        BatchProgress(200, 0.5),
        optimized=at,
        retention=RetentionRun(next_reading(None, datetime.fromisoformat(at), uptime()), 17),
        tables={"events": TableSize(4, 700)},
    )
    publish_watermark(made._lake.watermark, published)
    shown = (await monitor.scrape()).decode().splitlines()
    assert set(shown) >= {
        'connectivity_lake_table_files{table="events"} 4.0',
        'connectivity_lake_table_bytes{table="events"} 700.0',
        'connectivity_pipeline_last_run_timestamp_seconds{kind="batch"} 1.8946656e+09',
        'connectivity_pipeline_last_run_timestamp_seconds{kind="optimize"} 1.8946656e+09',
        'connectivity_pipeline_last_run_timestamp_seconds{kind="retention"} 1.8946656e+09',
        "connectivity_lake_retention_events 17.0",
        "connectivity_pipeline_batch_events 200.0",
        "connectivity_pipeline_batch_seconds 0.5",
    }
    assert not [line for line in shown if 'run_timestamp_seconds{kind="vacuum"' in line]
    assert published.retention is not None
    by_hand = msgspec.structs.replace(published.retention, by_hand="2030-01-15T00:01:00.000000Z")
    publish_watermark(made._lake.watermark, msgspec.structs.replace(published, retention=by_hand))
    assert b'timestamp_seconds{kind="retention"} 1.89466566e+09' in await monitor.scrape()
    made._lake.watermark.write_bytes(b"corrupt")
    assert b"connectivity_lake_table" not in await monitor.scrape()
    await made.close(1)


async def test_maintenance_and_erasures_that_failed_are_a_metric(tmp_path: Path) -> None:
    made, monitor = PipelineProcess(settings(tmp_path, spark={"mode": "external"})), PrometheusRegistry()
    monitor.look_first(made.look)
    monitor.watch_figures(made.figures)
    made._lake.pipeline.mkdir(parents=True)

    async def failing() -> set[str]:
        shown = (await monitor.scrape()).decode().splitlines()
        found = [line for line in shown if line.startswith("connectivity_pipeline_failing{")]
        assert len(found) == 5
        return {line.partition('"')[2].partition('"')[0] for line in found if line.endswith(" 1.0")}

    publish_watermark(made._lake.watermark, Watermark(3, maintenance_failures={"optimize": "a damaged file"}))
    assert await failing() == {"optimize"}
    publish_watermark(made._lake.watermark, Watermark(3, maintenance_failures={"erasure": "a damaged file"}))
    assert await failing() == {"erasure"}
    await made.close(1)


async def test_a_scrape_reads_the_journal_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    def read(_: object) -> Watermark:
        readers.append(threading.current_thread())
        return Watermark()

    monkeypatch.setattr(module, "read_watermark", read)
    made = PipelineProcess(settings(tmp_path))
    await made.look()
    assert len(readers) == 1
    assert readers[0] is not threading.current_thread()
    await made.close(1)


async def test_closing_waits_for_a_status_check_in_a_thread(tmp_path: Path) -> None:
    made = PipelineProcess(settings(tmp_path))
    made._looking.acquire()
    rescue = threading.Timer(10, made._looking.release)
    rescue.start()
    closing = asyncio.create_task(made.close(1))
    await asyncio.sleep(0)
    assert made._looking.locked(), "the loop goes on while somebody looks"
    assert not closing.done()
    rescue.cancel()
    made._looking.release()
    await closing


async def test_without_a_lake_there_is_no_lag(tmp_path: Path) -> None:
    off = PipelineProcess(settings(tmp_path, spark={"mode": "off"}))
    await off.look()
    assert list(off.figures()) == []


def test_a_preview_returns_the_output_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "print('Java'); say('spark'); say('preview', namespaces=[{'namespace': 'acme'}])")
    assert preview(settings(tmp_path)) == [{"namespace": "acme"}]
    script(monkeypatch, "say('failed', reason='expected Java 17'); sys.exit(4)")
    with pytest.raises(PipelineEnded, match="expected Java 17") as ended:
        preview(settings(tmp_path))
    assert ended.value.exit_code == 4
    script(monkeypatch, "print('no room', file=sys.stderr); sys.exit(1)")
    with pytest.raises(PipelineEnded, match="no room"):
        preview(settings(tmp_path))


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ('{"event": "batch", "seq": 7}', {"event": "batch", "seq": 7}),
        ('{"event": "half', None),
        ('{"other": 1}', None),
        ("Java", None),
        ("", None),
    ],
)
def test_only_lines_of_the_pipeline_are_parsed_as_events(line: str, event: dict[str, Any] | None) -> None:
    assert parse_event(line) == event


def test_an_answer_may_be_no_while_each_line_is_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "say('difference', entity='acme:lamp'); say('verified', differences=1); sys.exit(1)")
    events: list[dict[str, Any]] = []
    assert answer(settings(tmp_path), "verify", on_event=events.append) == {"differences": 1}
    assert [it["event"] for it in events] == ["difference", "verified"]


@pytest.mark.extra("lake")
def test_the_status_of_a_folder_without_a_journal_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotReadable, match="found no journal"):
        status(settings(tmp_path))


@pytest.mark.extra("lake")
def test_without_a_pipeline_the_status_reports_of_no_lag(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append(history(LAMP, 5))
    journal.close()
    found = status(settings(tmp_path, spark={"mode": "off"}))
    assert (found["mode"], found["newest"], found["lag_events"], found["lag_seconds"]) == ("off", 5, None, None)
    assert status(settings(tmp_path))["lag_events"] == 5


def test_the_process_is_not_given_the_secrets_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECTIVITY_SECRETS__KEY", "connectivity_secrets__old_keys", "CONNECTIVITY_API__TOKEN", "JAVA_HOME"):
        monkeypatch.setenv(name, "x")
    assert [name for name in module.environment() if "CONNECTIVITY" in name.upper()] == []
    assert module.environment()["JAVA_HOME"] == "x"


def test_a_query_process_does_not_get_the_secret_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(tmp_path)
    monkeypatch.setenv("CONNECTIVITY_SECRETS__KEY", "x")
    script(monkeypatch, "import os; say('verified', key=os.environ.get('CONNECTIVITY_SECRETS__KEY'))")
    assert answer(given, "verify") == {"key": None}

"""The command `connectivity history export`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli import history
from connectivity.cli.main import app
from connectivity.errors import CommandFailed
from connectivity.maintenance import export as module
from connectivity.maintenance.export import HistoryExport
from mappings.ids import EntityId, EntityType
from spark_store.journal.journal import Journal
from tests.support.journal_entries import change
from tests.support.lake.pipeline_tables import write_lake
from tests.support.wait import wait_until_sync


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["history", "export", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(f"data_dir: {tmp_path}\n")
    return file


def written(self: HistoryExport, out: Path, *, force: bool, progress: Callable[[int], object]) -> dict[str, Any]:
    progress(3)
    return {"file": str(out), "rows": 3, "bytes": 1 if force else 2, "first_revision": 1, "last_revision": 3}


def test_an_export_reports_its_result_as_text_or_json(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryExport, "run", written)
    shown = run("acme:lamp", "--out", "it.parquet", "--settings", settings)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "it.parquet: 3 events, 2 bytes\n", "")
    output = json.loads(run("--out", "it.parquet", "--force", "--json", "--settings", settings).stdout)
    assert output == {"file": "it.parquet", "rows": 3, "bytes": 1, "first_revision": 1, "last_revision": 3}


def test_a_terminal_sees_how_far_it_is(
    settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history._print_rows(1234567)
    assert capsys.readouterr().err == "\r1,234,567 events"


def test_a_file_without_events_is_reported(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryExport, "run", lambda *_, **__: {"file": "it.parquet", "rows": 0, "bytes": 900})
    assert run("--out", "it.parquet", "--settings", settings).stdout == ("it.parquet: no events, 900 bytes\n")


@pytest.mark.extra("lake")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acme:lam"], "acme:lam: found no thing or policy or stream with this ID, expected one with a history\n"),
        (["acme:lamp", "--type", "policy"], "acme:lamp: found no policy with this ID, expected one with a history\n"),
        (
            ["x" * 3000, "--type", "stream"],
            "x" * 200 + "…: found no stream with this ID, expected one with a history\n",
        ),
    ],
)
def test_an_entity_that_is_invalid_is_reported_and_nothing_written(
    arguments: list[str], message: str, settings: Path, tmp_path: Path
) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([change(EntityId(EntityType.THING, "acme", "lamp"), 1)])
    journal.close()
    result = run(*arguments, "--out", tmp_path / "it.parquet", "--settings", settings)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)
    assert not (tmp_path / "it.parquet").exists()


def test_arguments_that_mean_nothing_end_with_2(settings: Path) -> None:
    result = run("lamp", "--out", "it.parquet", "--settings", settings)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "expected the id of an entity" in result.stderr
    settings.write_text("spark: {remote: 'http://spark.example'}\n")
    assert "spark.remote" in run("--out", "it.parquet", "--settings", settings).stderr


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "soon"])
def test_a_time_limit_that_is_invalid_is_refused(settings: Path, seconds: str) -> None:
    result = run("--out", "it.parquet", "--timeout", seconds, "--settings", settings)
    assert (result.exit_code, "'--timeout'" in result.stderr) == (2, True)


@pytest.mark.extra("lake")
def test_an_export_does_not_load_pandas(settings: Path, tmp_path: Path) -> None:
    Journal.open(tmp_path / "journal.db").close()
    write_lake(tmp_path)
    arguments = ["history", "export", "--out", str(tmp_path / "it.parquet"), "--settings", str(settings)]
    program = f"""
import sys
from connectivity.cli.main import app
app({arguments}, standalone_mode=False)
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
import pyarrow
pyarrow.table({{"n": [1]}}).to_pandas()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.extra("lake")
def test_an_export_needs_no_pipeline(settings: Path, tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([change(EntityId(EntityType.THING, "acme", "lamp"), 1)])
    journal.close()
    write_lake(tmp_path)
    settings.write_text(f"{{data_dir: {tmp_path}, spark: {{mode: off}}}}\n")
    out = tmp_path / "it.parquet"
    assert json.loads(run("--out", out, "--json", "--settings", settings).stdout)["rows"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_and_it_ends_with_130(
    number: signal.Signals, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(number, signal.default_int_handler)

    def wait(self: HistoryExport, *_: object, **__: object) -> None:
        signal.raise_signal(number)
        wait_until_sync(lambda: self._cancellation.is_set)
        raise CommandFailed("the query was cancelled", module.EXIT_CANCELLED)

    monkeypatch.setattr(HistoryExport, "run", wait)
    try:
        result = run("--out", "it.parquet", "--settings", settings)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert result.exit_code == 130
    assert "the query was cancelled" in result.stderr


def test_an_internal_error_is_not_hidden(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HistoryExport, "run", fail)
    with pytest.raises(ZeroDivisionError):
        run("--out", "it.parquet", "--settings", settings)

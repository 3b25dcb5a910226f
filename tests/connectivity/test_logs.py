"""Log lines, for people and for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from connectivity import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_json_line_holds_event_level_time_and_what_belongs_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    structlog.get_logger("connectivity.test").warning("connection lost", connection="site", correlation_id="c-1")
    (line,) = [json.loads(text) for text in lines(capsys)]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "connection lost",
        "level": "warning",
        "logger": "connectivity.test",
        "connection": "site",
        "correlation_id": "c-1",
    }


def test_text_is_one_line_with_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="text", level="info")
    structlog.get_logger("connectivity.test").warning("connection lost", connection="site")
    (line,) = lines(capsys)
    assert "connection lost" in line
    assert "site" in line


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="warning")
    structlog.get_logger("connectivity.test").info("nothing to see")
    assert lines(capsys) == []


def test_a_client_library_logs_into_the_same_stream_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    logging.getLogger("somebody.else").error("their words %s", 7)
    (line,) = [json.loads(text) for text in lines(capsys)]
    assert (line["event"], line["logger"], line["level"]) == ("their words 7", "somebody.else", "error")


def test_an_exception_is_part_of_its_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    try:
        raise ValueError("what went wrong")
    except ValueError:
        structlog.get_logger("connectivity.test").exception("it failed")
    (line,) = [json.loads(text) for text in lines(capsys)]
    assert "ValueError: what went wrong" in line["exception"]

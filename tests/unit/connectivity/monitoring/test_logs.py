"""Log lines, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from connectivity.monitoring import logs
from connectivity.security import redaction


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A server without access log, as other tests start one, disables this logger for good.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("uvicorn.access", "asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, former in levels.items():
        logging.getLogger(name).setLevel(former)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_json_line_has_event_level_time_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_text_line_has_the_same_contents(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_bound_fields_are_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Bound to a logger they are in its lines; bound to the context they are in all lines."""
    logs.configure(log_format="json", level="info")
    structlog.contextvars.bind_contextvars(correlation_id="c-1")
    structlog.get_logger("connectivity.bound").bind(connection="site").info("connected")
    logging.getLogger("somebody.else").warning("their words")
    found = [json.loads(text) for text in lines(capsys)]
    assert [(line["event"], line.get("connection"), line["correlation_id"]) for line in found] == [
        ("connected", "site", "c-1"),
        ("their words", None, "c-1"),
    ]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_an_exception_passed_as_value_is_logged_with_its_traceback(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(log_format=log_format, level="info")
    structlog.get_logger(f"connectivity.handed.{log_format}").error("source stopped", exc_info=ValueError("lost"))
    assert "ValueError: lost" in "".join(lines(capsys))


def test_a_log_line_is_one_line_of_json_for_any_value(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    values = {"a": b"\xff", "b": {1, 2}, "c": "two\nlines", "d": object(), "e": "half \ud800", "f": float("nan")}
    structlog.get_logger("connectivity.odd").info("odd", **values)
    (line,) = [json.loads(text) for text in lines(capsys)]
    assert line["c"] == "two\nlines"


def test_a_value_cannot_forge_a_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="text", level="info")
    structlog.get_logger("connectivity.forged").info("command refused", correlation_id="x\n2030 [error] forged")
    (line,) = lines(capsys)
    assert r"correlation_id='x\n2030 [error] forged'" in line


def test_a_value_cannot_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="text", level="info")
    structlog.get_logger("connectivity.forged").info("command refused", correlation_id="\x1b[2J\x00\x9b31m")
    (line,) = lines(capsys)
    assert r"correlation_id=\x1b[2J\x00\x9b31m" in line


HOSTILE = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
)
"""C0 and C1 controls, line breaks of all kinds, and changes of the writing direction."""


class Odd:
    """A value whose representation is not escaped."""

    def __repr__(self) -> str:
        return f"Odd({HOSTILE})"


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.info(f"consumed {HOSTILE}"),
        lambda log: log.info("consumed", text=HOSTILE, nested={"a": [HOSTILE]}, raw=HOSTILE.encode()),
        lambda log: log.info("consumed", value=Odd(), error=ValueError(HOSTILE)),
        lambda log: logging.getLogger("somebody.else").warning("their words %s", HOSTILE),
    ],
    ids=["event", "fields", "objects", "client library"],
)
def test_a_line_of_text_has_no_control_character_of_a_sender(
    write: Callable[[Any], None], is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    logs.configure(log_format="text", level="info")
    write(structlog.get_logger(f"connectivity.hostile.{is_terminal}"))
    line = capsys.readouterr().err.removesuffix("\n")
    # The renderer's own colors.
    assert set(re.sub(r"\x1b\[[0-9;]*m", "", line)) & set(HOSTILE) == set()
    assert ("\x1b" in line) is is_terminal


def test_the_text_of_an_exception_cannot_control_a_terminal_or_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="text", level="info")
    error = ValueError(f"{HOSTILE}2030 [error] forged")
    error.__cause__ = OSError("\n2030 [error] forged")
    structlog.get_logger("connectivity.hostile.error").error("it failed", exc_info=error)
    written = capsys.readouterr().err
    assert set(written) & set(HOSTILE) <= {"\n", "\t"}
    first, *others = written.splitlines()
    assert "it failed" in first
    assert [text for text in others if text and not text.startswith("    ")] == []
    assert any("forged" in text for text in others)


def test_a_long_correlation_id_is_cut() -> None:
    assert logs.log_context({"correlation-id": "x" * 1000}) == {"correlation_id": "x" * 200 + "…"}


def test_configuring_again_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        logs.configure(log_format="json", level="info")
    structlog.get_logger("connectivity.once").info("once")
    assert len(lines(capsys)) == 1


def test_warnings_of_noisy_libraries_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    logging.getLogger("uvicorn.access").info("GET /health/live")
    logging.getLogger("uvicorn.access").warning("something is wrong")
    assert [json.loads(text)["event"] for text in lines(capsys)] == ["something is wrong"]


def test_a_traceback_in_text_has_no_values_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """They may contain passwords."""
    logs.configure(log_format="text", level="info")
    password = "s3cret-password"
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("connectivity.test").exception("it failed")
    shown = "\n".join(lines(capsys))
    assert "ValueError: 15" in shown
    assert "s3cret-password" not in shown


@pytest.fixture
def _hooks() -> Iterator[None]:
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.usefixtures("_hooks")
def test_no_line_shows_a_secret_that_is_in_use(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "kanarienvogel-im-log"
    redaction.remember([secret])
    logs.configure(log_format=log_format, level="info")
    logs.install_exception_hooks()
    structlog.get_logger("connectivity.test").warning(f"it is {secret}", word=secret, nested={"a": [secret]})
    logging.getLogger("paho").warning("CONNECT %s", secret.encode())
    error = ValueError(f"not {secret}")
    sys.excepthook(ValueError, error, None)
    thread = threading.Thread(target=lambda: int(secret), name="counting")
    thread.start()
    thread.join()

    class Ends:
        def __del__(self) -> None:
            raise error

    Ends()
    structlog.get_logger("connectivity.test").info("tcp://u:pw@h:1")
    captured = capsys.readouterr().err
    assert secret not in captured
    assert "tcp://u:*****@h:1" in captured
    for message in ("process ends", "thread ended", "exception could not be raised", "counting"):
        assert message in captured
    assert captured.count("ValueError") == 3

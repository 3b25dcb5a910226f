"""Fixtures of all unit tests: cheap log lines, cheap new journals, and the connection type `memory`."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from spark_store.journal import journal
from spark_store.journal.journal import Journal

# Registers its connection type.
from tests.support import memory_transport as _memory_transport  # noqa: F401
from tests.support.failing_sqlite import Fragile

# By default structlog renders each traceback with rich: a third of a second for each exception that is logged.
_renderer = structlog.get_config()["processors"][-1]
assert isinstance(_renderer, structlog.dev.ConsoleRenderer)
_renderer.exception_formatter = structlog.dev.plain_traceback


@pytest.fixture(scope="session", autouse=True)
def copied_journals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make each new journal a copy of one, because ten migrations take six times as long.

    A journal with a connection class of a test is made step by step, so that each step can fail.
    """
    template = tmp_path_factory.mktemp("journal") / "journal.db"
    Journal.open(template).close()
    content = template.read_bytes()
    connect = journal._connect

    def connect_to_copy(path: str, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
        # SQLite reports the problem with a path.
        if factory is sqlite3.Connection and not Path(path).exists():
            with contextlib.suppress(OSError, ValueError):
                Path(path).write_bytes(content)
        return connect(path, factory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_connect", connect_to_copy)
        yield


@pytest.fixture(autouse=True)
def sound_disk() -> Iterator[None]:
    """Reset SQLite's planned faults after each test, so that an unused one does not hit a later test."""
    yield
    Fragile.arm(0)

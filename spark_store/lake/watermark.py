"""The watermark: how far the lake follows the journal, in one small file.

`Watermark.seq` is the highest number whose events and states are committed in both tables; the journal may be trimmed up to
it. `appended` is the same for `events` alone, which may be minutes ahead. The pipeline publishes each after its commit. The
file is written durably and renamed, so readers find the old or the new one. Its other members inform operators; only
retention and maintenance read their own last runs. A lost watermark costs only work: the tables know their content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from mappings.timestamps import utc_text
from spark_store.errors import StoreUnavailable, translate_system_error
from spark_store.files import write_atomically
from spark_store.journal.reader import JournalReader
from spark_store.lake.clock import ClockReading

MAINTENANCE = ("retention", "full_snapshot", "optimize", "vacuum", "erasure")
"""The kinds of maintenance."""


class BatchProgress(msgspec.Struct, frozen=True):
    """The batch that moved the watermark last: its events, and how many seconds it took."""

    rows: int
    seconds: float


class TableSize(msgspec.Struct, frozen=True):
    """The present size of a table; files of older versions are not included."""

    files: int
    bytes: int


class RetentionRun(msgspec.Struct, frozen=True):
    """The last run of retention: the reading of the clock that it went by, and how many events it deleted.

    `by_hand`: the time of a later manual run, which does not change the trusted time.
    """

    reading: ClockReading
    events: int
    by_hand: str | None = None

    @property
    def happened(self) -> str:
        """When, by the clock."""
        return self.by_hand or utc_text(self.reading.clock)


class Watermark(msgspec.Struct, frozen=True):
    """The position of the lake, and the pipeline's last runs. Times are UTC text as in events.

    `erased` is the ID of the lake's last erasure; `maintenance_failures` has the errors of the latest runs of maintenance
    that failed. `tables` are their sizes, `compacted` their numbers of
    files after compaction.
    """

    seq: int = 0
    appended: int = 0
    published: str | None = None
    batch: BatchProgress | None = None
    optimized: str | None = None
    vacuumed: str | None = None
    retention: RetentionRun | None = None
    erased: int = 0
    erased_at: str | None = None
    tables: Mapping[str, TableSize] = {}
    compacted: Mapping[str, int] = {}
    maintenance_failures: Mapping[str, str] = {}

    @property
    def visible(self) -> int:
        """The last event that is in `events`."""
        return max(self.seq, self.appended)


def read_watermark(path: Path) -> Watermark:
    """Return the last published watermark; watermark 0 if there is none.

    Raises StoreUnavailable for an unreadable file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Watermark()
    except OSError as error:
        raise StoreUnavailable(f"{path}: expected a file that can be read, found: {error}") from error
    try:
        return msgspec.json.decode(content, type=Watermark)
    except ValueError as error:
        raise StoreUnavailable(
            f"{path}: expected a watermark, found {content[:80]!r} ({error}); delete this file, and the pipeline creates it "
            "again"
        ) from error


def publish_watermark(path: Path, watermark: Watermark) -> None:
    """Put `watermark` in the file's place, durably.

    Raises StoreUnavailable; then the old one is still there.
    """
    try:
        write_atomically(path, msgspec.json.encode(watermark), is_durable=True)
    except OSError as error:
        raise translate_system_error(path, error, "the watermark cannot be written") from error


class Failure(msgspec.Struct, frozen=True):
    """When the pipeline ended (UTC text as in events), with which exit code, and why."""

    at: str
    exit_code: int
    reason: str


def note_failure(path: Path, failure: Failure) -> None:
    """Remember `failure`, if its folder is there."""
    with contextlib.suppress(OSError):
        write_atomically(path, msgspec.json.encode(failure))


def read_failure(path: Path) -> Failure | None:
    """Return the unresolved failure; None if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Failure)
    except (OSError, ValueError):
        return None


def forget_failure(path: Path) -> None:
    """The pipeline works again."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


class LakeLag(NamedTuple):
    """Events that are not in the lake yet, and for how many seconds the oldest of them has been waiting."""

    events: int
    seconds: float


def measure_lag(journal_reader: JournalReader, seq: int, now: datetime) -> LakeLag:
    """Return the lag of a lake with the watermark `seq`. Raises StoreUnavailable."""
    waiting = journal_reader.next_after(seq)
    if waiting is None:
        return LakeLag(0, 0.0)
    since = datetime.fromisoformat(waiting[1])
    return LakeLag(journal_reader.newest() - seq, max(0.0, (now - since).total_seconds()))

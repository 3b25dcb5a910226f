"""The watermark: how far the lake follows the journal, in one small file.

`Watermark.seq` is the highest number of the journal whose events, and the states after them, are committed in both tables.
The pipeline publishes it after both commits; the service reads it, since below it the journal need not keep anything. The
file is written whole, made durable and put in its place by a rename: a reader finds the old one or the new one. It says
some things more, for people who want to know how the pipeline does; nobody decides anything by those, but retention by its
last look, and upkeep by when it was done last.

A watermark that is lost costs nothing but work: the tables know what they hold, and the pipeline begins from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from spark_store.errors import StoreUnavailable, translate_system_error
from spark_store.files import write_atomically

UPKEEP = ("retention", "moment", "optimize", "vacuum")
"""The kinds of upkeep."""


class Batch(msgspec.Struct, frozen=True):
    """The batch that moved the watermark last: its events, and how many seconds it took."""

    rows: int
    seconds: float


class TableSize(msgspec.Struct, frozen=True):
    """What a table consists of now; files that only older versions need do not count."""

    files: int
    bytes: int


class RetentionRun(msgspec.Struct, frozen=True):
    """What retention did last: when, by the time that it believes and by the clock; how many events went.

    `boot`, `seconds`, `steady` and `off` are of the same look (`spark_store.pipeline.clock`).

    `by_hand`: somebody had it done since then, at this time by the clock, which changes nothing of what is believed.
    """

    at: str
    events: int
    by_hand: str | None = None
    clock: str | None = None
    boot: str = ""
    seconds: float = 0.0
    steady: float = 0.0
    off: float = 0.0

    @property
    def happened(self) -> str:
        """When, by the clock."""
        return self.by_hand or self.clock or self.at


class Watermark(msgspec.Struct, frozen=True):
    """How far the lake is, and what the pipeline did last. Times are UTC text as in events.

    `erased` is the number of the last erasure that the lake has carried out, `erasure_failure` why the next one waits, if it
    could not be carried out; `upkeep_failures` says of each kind of upkeep that failed the last time why it did. `tables` is
    what they consist of, `compacted` of how many files each did right after it was compacted.
    """

    seq: int = 0
    published: str | None = None
    batch: Batch | None = None
    optimized: str | None = None
    vacuumed: str | None = None
    retention: RetentionRun | None = None
    erased: int = 0
    erased_at: str | None = None
    erasure_failure: str | None = None
    tables: Mapping[str, TableSize] = {}
    compacted: Mapping[str, int] = {}
    upkeep_failures: Mapping[str, str] = {}


def read_watermark(path: Path) -> Watermark:
    """What was published last; the watermark 0 where nothing was.

    Raises StoreUnavailable for a file that cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Watermark()
    except OSError as error:
        raise StoreUnavailable(f"{path}: expected a file that can be read, found: {error}") from error
    try:
        return msgspec.json.decode(content, type=Watermark)
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(
            f"{path}: expected a watermark, found {content[:80]!r} ({error}); remove it, and the pipeline makes it anew"
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
    """The failure that nobody has overcome yet; None where there is none, or where it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Failure)
    except (OSError, msgspec.MsgspecError):
        return None


def forget_failure(path: Path) -> None:
    """The pipeline works again."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)

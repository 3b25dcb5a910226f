"""The errors of the store, as one tree with the root StoreError.

StoreUnavailable may pass: the same call may succeed later. So may LakeBusy and HistoryUnavailable.
All others need another request, another file, or an operator.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mappings.errors import Fault
from mappings.ids import EntityId

if TYPE_CHECKING:
    import sqlite3

_RQL_HINT = "Check that the RQL expression is valid, and that every opening parenthesis has a closing one."

_LONGEST_NAME = 200
"""The most characters of a property that a message repeats."""


def _mark(introduction: str, text: str, position: int, expected: str) -> str:
    """The text, or the part of it that matters, with a mark under the position."""
    shown, mark = text, position
    if len(text) > 120:
        start = max(0, position - 60)
        shown, mark = text[start : start + 120], position - start
    return f"{introduction}{shown}\n{' ' * (len(introduction) + mark)}^ position {position}: expected {expected}"


class StoreError(Exception):
    """The root of this package's errors."""


class RevisionConflict(StoreError):
    """The first revision of an event does not follow the newest one. Nothing of the batch was stored."""

    def __init__(self, entity: EntityId, expected: int, found: int) -> None:
        super().__init__(f"{entity}: expected the newest revision to be {expected}, found {found}")
        self.entity, self.expected, self.found = entity, expected, found


class QueryError(StoreError):
    """A query text that cannot be answered; `fault` says so to the client."""

    def __init__(self, message: str, description: str | None = _RQL_HINT) -> None:
        super().__init__(message)
        self.fault = Fault(400, "rql.expression.invalid", message, description)


class RqlSyntaxError(QueryError):
    """Text that is no RQL.

    The message shows the text with a mark under `position` (0-based, in characters).
    """

    def __init__(self, text: str, position: int, expected: str) -> None:
        super().__init__(_mark("Invalid filter expression: ", text, position, expected))
        self.text, self.position, self.expected = text, position, expected


class UnknownProperty(QueryError):
    """A property that no document has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown property name: {name if len(name) <= _LONGEST_NAME else f'{name[:_LONGEST_NAME]}…'}")
        self.name = name


class FilterTooExpensive(QueryError):
    """A filter that compares so much of long arrays and texts that it would delay other work.

    `revision` is that of the event, if the filter is one of events.
    """

    def __init__(self, found: int, allowed: int, revision: int | None = None) -> None:
        texts = "arrays and texts" if revision is None else f"arrays and texts at revision {revision}"
        super().__init__(
            f"All comparisons of the filter together compare {found} bytes of {texts}, expected at most {allowed}.",
            "Compare long arrays and texts less often.",
        )
        self.found, self.allowed = found, allowed


class InvalidOption(QueryError):
    """Options of a search that cannot be followed; `fault` says so to the client."""

    def __init__(self, message: str, description: str) -> None:
        super().__init__(message)
        self.fault = Fault(400, "thing-search:search.option.invalid", message, description)

    @classmethod
    def at(cls, text: str, position: int, expected: str) -> InvalidOption:
        """Text that is no list of options; the message shows it with a mark under `position`."""
        return cls(_mark("Invalid options: ", text, position, expected), "At least one provided option is invalid.")


class AggregationInvalid(QueryError):
    """An invalid aggregation; the text says what was found and what was expected."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Invalid aggregation: {message}")
        self.fault = Fault(
            400,
            "thing-search:aggregation.invalid",
            f"Invalid aggregation: {message}.",
            'Write it like {"groupBy": {"room": "attributes/room"}, "measures": {"largest": {"max": "attributes/size"}}}.',
        )


class TooManyGroups(QueryError):
    """An aggregation with more groups than allowed."""

    def __init__(self, found: str) -> None:
        super().__init__(f"found {found}")
        self.fault = Fault(
            413,
            "thing-search:aggregation.toolarge",
            f"The aggregation has {found}, which exceeds its limit.",
            "Group by a path with fewer values, or narrow the filter.",
        )


class BudgetExceeded(StoreError):
    """A search looked at more than it may; `fault` says so to the client."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"found no further thing within {seconds:g} s, the time limit of a search")
        self.fault = Fault(
            503,
            "thing-search:budget.exceeded",
            f"The search found no further thing within {seconds:g} s.",
            "Narrow the search: compare a path for equality or a range, specify namespaces, or ask an operator to "
            "index the path.",
        )


class Unstorable(StoreError):
    """A change that cannot be stored: its parts contradict each other, or a value is no JSON.

    An error of the caller. Nothing of the batch was stored.
    """


class StateDamaged(StoreError):
    """The stored state of one entity cannot be read, and will not be later; the others can."""


class SchemaTooNew(StoreError):
    """The file's schema version is above the newest known one."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(f"{path}: found schema version {found}, expected at most {known}; start the newer service")


class SparkMissing(StoreError):
    """Something that Spark needs is missing on this machine; the text says how to install it."""


class LakeUnfit(StoreError):
    """Moving events must stop: some would be lost, or unknown ones overwritten. An operator has to look."""


class LakeBusy(StoreError):
    """Another pipeline writes this lake; the same call works when that has ended."""


class OutputUnusable(StoreError):
    """The output file cannot be written: it exists, its folder is missing, or permissions are."""


class QueryRefused(StoreError):
    """Spark rejected the query: its text, a missing table or column, a value it fails on."""


class QueryCancelled(StoreError):
    """The query was canceled."""


class LimitExceeded(StoreError):
    """The query found more than allowed, and was stopped."""


class QueryTimeout(LimitExceeded):
    """It took longer than it may."""


class HistoryUnavailable(StoreError):
    """Events that the journal has trimmed cannot be read in the lake now. `fault` says so to the client.

    The present is not touched by that, and neither is the history that the journal has.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(
            500,
            "internalerror",
            "An older part of this history cannot be read now.",
            "Try again later, or request newer revisions. The log of the service has the reason.",
        )


class StoreUnavailable(StoreError):
    """The store cannot write (or read) now.

    Nothing of the batch is stored; the same call may succeed later.
    """


class CommitFailed(StoreUnavailable):
    """The commit of a batch failed: it is not known whether all of it is stored, or nothing."""


INSTALL_EXTRA = "install it with: pip install 'broker-connectivity[{}]'"
FULL = "the disk is full: free space; a running service then continues automatically"
DAMAGED_JOURNAL = "the file is damaged: stop the service, and restore the file from a backup"
MOVED_JOURNAL = "the file was moved, deleted or replaced while it was in use: put it back, or restart the service"

FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_STEP_LAKE = (
    "stop the pipeline; restore the table's folder from a backup, or, if the journal still has all events, move the "
    "folder away and start the pipeline, which then creates the table again"
)
_STEP_ABSENT = "mount the folder, or restore the table's folder from a backup"
_STEP_LATER_VERSION = (
    "start the newer version of the service, or, if the journal still has all events, move the table's folder away; "
    "the pipeline then creates the table again"
)
_WORKER_ERROR = re.compile(r"spark_store\.errors\.(LakeUnfit|SchemaTooNew|StoreUnavailable): (.+)")
_FULL_TEXT = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_SYSTEM_STEPS = {
    "Too many open files": "raise the limit of open files (LimitNOFILE of the service, `ulimit -n`)",
    "Permission denied": "check the owner and permissions of the lake's folder and its files",
    "Read-only file system": "check the mount options of the disk and the system's log",
    "Input/output error": "check the disk and the system's log",
    "Cannot allocate memory": "give the machine more memory, or stop other programs",
}
_SYSTEM_TEXT = re.compile(r"\b(?:" + "|".join(_SYSTEM_STEPS) + r")\b")
"""Why the system opens no file that is there: Java says of each that it was not found."""

_LATER_VERSION = re.compile(
    r"DELTA_INVALID_PROTOCOL_VERSION|DELTA_UNSUPPORTED_FEATURES_FOR_(?:READ|WRITE)|InvalidProtocolVersion|"
    r"UnsupportedTableFeature|(?i:unsupported (?:reader |table )?feature|unknown (?:reader |table )?feature|"
    r"minimum reader version)|Kernel error: Unsupported"
)
_DAMAGED = re.compile(
    r"is not a Parquet file|DELTA_STATE_RECOVER_ERROR|Json(?:Parse|EOF|Mapping)\w*Exception|MalformedRecord|"
    r"UnexpectedEndOfInput|Parquet magic bytes|Truncated record|Json error|could not verify page integrity|"
    r"[Pp]arquet file size is|ChecksumException|footer is too large|"
    r"FAILED_READ_FILE[\s\S]*?Caused by: java\.io\.EOFException"
)
"""Content that is not what was written."""

_ABSENT = re.compile(
    r"FileNotFoundException|FILE_NOT_EXIST|DELTA_LOG_FILE|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_MISSING_|"
    r"Expected contiguous commit files|Object at location \S+ not found"
)
"""A file that may come back, for example with its mount."""

_CONFLICT = re.compile(r"DELTA_CONCURRENT_\w+")
"""Another transaction has changed what one relied on."""

_FILE = re.compile(r"(?:file:)?(/[^\s'\"`;,]+\.(?:parquet|json))")
_SHOWN = 400


def damaged_table(said: str) -> LakeUnfit:
    """Return the error for a changed file of a table."""
    return LakeUnfit(f"{said}; {_STEP_LAKE}")


def translate_lake_error(path: str | Path, error: Exception) -> StoreError:
    """Return the error for an error of a Delta reader about the table at `path`."""
    text = str(error)
    shown = " ".join(text.partition("   0: <unknown>")[0].split())[:_SHOWN]
    return _known_error(f"{path}: ", text, shown) or StoreUnavailable(
        f"{path}: expected a Delta table that can be read, found: {shown}"
    )


def _known_error(where: str, text: str, shown: str) -> StoreError | None:
    """Return the error for a known text of the system, Delta or Parquet about the file `where`."""
    if (reason := system_reason(text)) is not None:
        return StoreUnavailable(f"{where}{reason} ({shown})")
    if _LATER_VERSION.search(text):
        return LakeUnfit(f"{where}a later version of the service wrote this table; {_STEP_LATER_VERSION} ({shown})")
    if _DAMAGED.search(text):
        return damaged_table(f"{where}expected a file that can be read, found: {shown}")
    if where and _ABSENT.search(text):
        return StoreUnavailable(f"{where}a file of the lake is missing; {_STEP_ABSENT} ({shown})")
    return None


def translate_system_error(path: str | Path, error: OSError, what: str = "cannot be used") -> StoreUnavailable:
    """Return the error for a system error about the file at `path`, with the failed action."""
    step = f"; {FULL}" if error.errno in FULL_ERRORS else ""
    return StoreUnavailable(f"{path}: {what}: {error.strerror or error}{step}")


def translate_spark_error(kind: str, text: str) -> StoreError:
    """Return the error for an error text of Spark (with this exception class).

    A worker's own error is included.
    """
    if found := _WORKER_ERROR.search(text):
        return StoreUnavailable(found[2]) if found[1] == "StoreUnavailable" else LakeUnfit(found[2])
    if conflict := _CONFLICT.search(text):
        return LakeBusy(f"{conflict[0]}: another pipeline wrote the same table at the same time; stop one of the two")
    file, shown = _FILE.search(text), " ".join(text.split())[:_SHOWN]
    return _known_error(f"{file[1]}: " if file else "", text, shown) or StoreUnavailable(f"{kind}: {shown}")


def system_reason(text: str) -> str | None:
    """Return the system's reason in an error text of Spark, and what to do; None if there is none."""
    if full := _FULL_TEXT.search(text):
        return f"{full[0]}; {FULL}"
    if reason := _SYSTEM_TEXT.search(text):
        return f"{reason[0]}; {_SYSTEM_STEPS[reason[0]]}"
    return None


_SQLITE_STEPS = {
    "SQLITE_FULL": FULL,
    "SQLITE_READONLY": "the file cannot be written: check its owner, permissions and mount",
    # The file beside the journal that its processes share cannot grow.
    "SQLITE_IOERR_SHMSIZE": FULL,
    "SQLITE_IOERR": "input or output failed: check the disk and the system's log",
    "SQLITE_CORRUPT": DAMAGED_JOURNAL,
    "SQLITE_NOTADB": "the file is not a journal: choose another data_dir, or restore the file from a backup",
    "SQLITE_CANTOPEN": "the file cannot be opened: check its folder and permissions",
    "SQLITE_BUSY": "another process has locked the file: stop that process",
    "SQLITE_LOCKED": "another process has locked the file: stop that process",
}


def translate_sqlite_error(path: str | Path, error: sqlite3.Error) -> StoreUnavailable:
    """Return SQLite's error about the file at `path` as an error of the store."""
    name = getattr(error, "sqlite_errorname", "")
    # Extended codes begin with the name of the primary one: SQLITE_IOERR_WRITE.
    step = _SQLITE_STEPS.get(name) or _SQLITE_STEPS.get("_".join(name.split("_")[:2]))
    return StoreUnavailable(f"{path}: {error}" + (f"; {step}" if step is not None else ""))

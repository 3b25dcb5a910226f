"""The command `connectivity history export`: reads its arguments, and maps errors to exit codes.

The work is done by `spark_store.queries.export`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from connectivity.config.settings import Settings
from connectivity.errors import CommandFailed
from mappings.ids import MAX_ID_LENGTH, EntityType, parse_entity_id, utf16_length
from mappings.texts import shorten
from spark_store import rql
from spark_store.errors import (
    LimitExceeded,
    OutputUnusable,
    QueryCancelled,
    QueryError,
    QueryTimeout,
    StoreError,
)
from spark_store.journal.reader import JournalReader
from spark_store.lake.tables import Lake
from spark_store.queries.selection import EventSelection
from spark_store.queries.spark_query import Cancellation, QueryLimits

EXIT_FAILED, EXIT_UNUSABLE, EXIT_CANCELLED = 1, 2, 130
TYPES = tuple(type.value for type in EntityType)
_EXPECTED = "expected the id of an entity, such as acme.site:lamp-7, or a filter"
_FILTER = re.compile(r"\s*+[a-zA-Z]*+\s*+\(")
"""How a text begins that is meant as a filter, even an invalid one."""
_BELOW_MICROSECOND = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
"""A time with a part of a microsecond, which Python cuts off."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments of an export as text.

    `selector` is an entity's ID or a filter; None: everything.
    """

    selector: str | None = None
    type: str | None = None
    namespace: str | None = None
    begin: str | None = None
    end: str | None = None


def selection(wanted: ExportRequest, now: datetime) -> EventSelection:
    """Return the selection that the arguments mean.

    `now` is timezone-aware and replaces `time:now`. Raises CommandFailed.
    """
    if wanted.type is not None and wanted.type not in TYPES:
        raise _unusable(f"--type: expected one of {', '.join(TYPES)}, found {wanted.type}")
    entity, predicate = _subject(wanted.selector, wanted.type, now)
    first, since = _parse_bound("--from", wanted.begin)
    last, until = _parse_bound("--to", wanted.end)
    for low, high in ((first, last), (since, until)):
        if low is not None and high is not None and low > high:  # type: ignore[operator]
            raise _unusable(
                f"--from, --to: expected a start that is not after the end, found {wanted.begin} and {wanted.end}"
            )
    return EventSelection(entity, wanted.type, wanted.namespace, first, last, since, until, predicate)


def _subject(what: str | None, type: str | None, now: datetime) -> tuple[str | None, rql.Predicate | None]:
    """Return the entity or the filter.

    No text is both: a filter begins with an operator and a parenthesis, and ends with a parenthesis.
    """
    if what is None:
        return None, None
    if not what.strip():
        raise _unusable(f"{_EXPECTED}, found nothing")
    is_stream = type == "stream" and "(" not in what
    if is_stream or any(parse_entity_id(kind, what) is not None for kind in EntityType):
        return what, None
    if _FILTER.match(what) is None:
        if (length := utf16_length(what)) > MAX_ID_LENGTH:
            limit = f"expected an id of at most {MAX_ID_LENGTH} characters, or a filter"
            raise _unusable(f"{limit}, found {length} characters: {shorten(what)!r}")
        raise _unusable(f"{_EXPECTED}, found {what!r}")
    try:
        predicate = rql.resolve_times(rql.parse(what), now)
    except QueryError as error:
        # The error may mark a position in the line above it.
        raise _unusable(f"{_EXPECTED}, found an invalid filter\n{error}") from error
    if type not in (None, EntityType.THING.value):
        raise _unusable(f"--type: expected thing, because a filter selects things, found {type}")
    return None, predicate


def _parse_bound(name: str, text: str | None) -> tuple[int | None, datetime | None]:
    """Return a revision or an instant."""
    if text is None:
        return None, None
    # Numbers of thousands of digits and times beyond the calendar raise errors, too.
    with suppress(ValueError, OverflowError):
        if text.isascii() and text.isdigit():
            if 0 < (revision := int(text)) < 2**63:
                return revision, None
        elif (instant := datetime.fromisoformat(text)).tzinfo is not None:
            # Events have whole microseconds: a part of one is rounded up.
            return None, instant.astimezone(UTC) + timedelta(microseconds=_BELOW_MICROSECOND.search(text) is not None)
    raise _unusable(
        f"{name}: expected a revision from 1 or a time with its zone, such as 2030-01-15T07:30:00Z, found {shorten(text)!r}"
    )


def _unusable(message: str) -> CommandFailed:
    return CommandFailed(message, EXIT_UNUSABLE)


class _WithoutPandas(MetaPathFinder):
    """Lets imports of pandas fail."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:  # noqa: ARG002
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Hide pandas: Arrow loads it if it is installed, which takes a quarter of a second."""
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class HistoryExport:
    """One export, which any thread may cancel."""

    def __init__(self, settings: Settings, wanted: ExportRequest, *, seconds: float, rows: int | None) -> None:
        """Raises CommandFailed for invalid arguments."""
        self._settings = settings
        self._selection = selection(wanted, datetime.now(UTC))
        self._limits = QueryLimits(seconds, rows)
        self._cancellation = Cancellation()

    def cancel(self) -> None:
        """Stop the export. Safe in a signal handler."""
        self._cancellation.cancel()

    def run(self, out: Path, *, force: bool, progress: Callable[[int], object]) -> dict[str, Any]:
        """Write the file and return `{file, rows, bytes, first_revision, last_revision}`.

        `progress` receives the number of events written so far. Raises CommandFailed.
        """
        # Arrow takes a moment to load: invalid arguments are reported before.
        with _without_pandas():
            from spark_store.queries.export import export_events

        self._check_known()
        lake = Lake(self._settings.data_dir)
        try:
            return export_events(lake, self._selection, out, self._limits, self._cancellation, progress, force=force)
        except StoreError as error:
            raise CommandFailed(str(error), _exit_code(error)) from error

    def _check_known(self) -> None:
        """Check that a named entity exists. Raises CommandFailed."""
        entity = self._selection.entity
        if entity is None:
            return
        types = [self._selection.entity_type] if self._selection.entity_type is not None else TYPES
        try:
            with JournalReader.open(Lake(self._settings.data_dir).journal) as journal_reader:
                is_known = any(journal_reader.state(type, entity) is not None for type in types)
        except StoreError as error:
            raise CommandFailed(str(error), _exit_code(error)) from error
        if not is_known:
            kinds = " or ".join(type for type in types)
            raise CommandFailed(
                f"{shorten(entity)}: found no {kinds} with this ID, expected one with a history", EXIT_FAILED
            )


def _exit_code(error: StoreError) -> int:
    match error:
        case QueryCancelled():
            return EXIT_CANCELLED
        case QueryTimeout():
            return EXIT_FAILED
        case OutputUnusable() | LimitExceeded():
            return EXIT_UNUSABLE
        case _:
            return EXIT_FAILED

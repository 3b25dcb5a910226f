"""Searches of the HTTP API, which are answered at once, page by page.

A page is the first one of a search; its cursor holds the place after it. That place may belong to a thing that the user
has no permission to read, so a cursor is encrypted with a key of this process: it reveals nothing, cannot be forged, and is
invalid after a restart. It is bound to the query, and contains the value of `time:now`, so that all pages answer one query.

A search on behalf of others is written to the audit log before it starts: once an hour for the same names, so that a
dashboard does not displace other entries.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.errors import OperationRefused
from connectivity.security.cipher import Cipher
from connectivity.subscriptions.aggregation_feed import FullScan
from connectivity.subscriptions.feed import FeedFailed, PageEnd
from connectivity.subscriptions.search_feed import SearchFeed, SearchRequest, SearchService, SearchWorker
from connectivity.twins.access import ThingRights
from mappings.errors import Fault
from mappings.model.field_selector import FieldSelection
from spark_store.errors import InvalidOption, QueryError, StoreError
from spark_store.records import AuditEntry
from spark_store.rql.options import read_options
from spark_store.rql.order import TypeRank
from spark_store.rql.query import SearchHit, SortKey, SortValue, ThingQuery
from spark_store.rql.search_evaluator import read


@dataclass(frozen=True, slots=True)
class HttpSearch:
    """A search over HTTP: `filter` is RQL, `options` are those of a search, perhaps with a cursor.

    It has the permissions of all `subjects` together. `namespaces` of None are all of them. `seconds` is the time limit;
    None for that of any search. `instead`: the user who searches in the name of others, for the audit log; None if they
    search in their own.
    """

    subjects: tuple[str, ...]
    filter: str | None = None
    options: str | None = None
    namespaces: frozenset[str] | None = None
    selection: FieldSelection | None = None
    seconds: float | None = None
    instead: str | None = None


class HttpSearchPage(NamedTuple):
    """A page of things, as the user can read them, and the cursor of the next one; None for the last.

    `items` is a JSON array as text.
    """

    items: bytes
    cursor: str | None


_CURSOR: Final = re.compile(r"(?:^|,)cursor\((?P<cursor>[^,)\"\\]*)\)(?=,|$)")
_MAX_CURSOR_LENGTH: Final = 16 * 1024
"""The longest cursor in characters, which has to fit into the head of a request."""

_AUDIT_INTERVAL: Final = timedelta(hours=1)
_MAX_AUDITED: Final = 1_000
"""The most pairs of a user and names whose audit entry is remembered."""

_Payload: Final = msgspec.json.Decoder(tuple[float, list[tuple[int, Any]]])


class _ParsedSearch(NamedTuple):
    """A parsed search: the request, the place where the page begins, and the contents of its cursor."""

    request: SearchRequest
    after: SortKey | None
    now: datetime
    bound: bytes


class SearchRequests:
    """Answers searches over HTTP."""

    def __init__(
        self,
        service: SearchService,
        now: Callable[[], datetime],
        *,
        page_bytes: int,
        count_timeout: float,
        note: Callable[[AuditEntry], Awaitable[None]],
    ) -> None:
        """`count_timeout`: the time limit for counting all matches. `note` adds to the audit log."""
        self._service = service
        self._now = now
        self._page_bytes = page_bytes
        self._count_timeout = count_timeout
        self._cursors = CursorCipher()
        self._note = note
        self._audited: dict[tuple[str, frozenset[str]], datetime] = {}

    async def things(self, search: HttpSearch) -> HttpSearchPage:
        """Return the things that match, in order."""
        """Return the things that match, in order. Raises OperationRefused."""
        async with _as_operation_refused(search.seconds):
            parsed = await self._parse_and_audit(search)
            feed = SearchFeed(self._service, parsed.request)
            page = await feed.page(parsed.after or 0, 1, self._page_bytes)
            cursor = None
            if page.then is not PageEnd.END:
                cursor = self._cursors.seal(page.position, parsed.now, parsed.bound)
            return HttpSearchPage(page.elements[0] if page.elements else b"[]", cursor)

    async def count(self, search: HttpSearch) -> int:
        """Return the number of things that match; options are ignored."""
        """Return the number of things that match. Raises OperationRefused."""
        number = 0

        def add(hits: Sequence[SearchHit], _worker: SearchWorker, _rights: ThingRights) -> None:
            nonlocal number
            number += len(hits)

        async with _as_operation_refused(search.seconds):
            request = (await self._parse_and_audit(search)).request
            scan = FullScan(self._service, request.question, request.subjects, self._count_timeout)
            await scan.read(add)
        return number

    async def plan(self, search: HttpSearch) -> Mapping[str, Any]:
        """Return the plan for the first page: `way`, `order`, `things`, `candidates`, `isIndexed`, `text`.

        It contains numbers of things regardless of permissions.
        """
        """Return the plan for the first page. Raises OperationRefused."""
        async with _as_operation_refused(search.seconds):
            request = (await self._parse_and_audit(search)).request
            plan = await self._service.look(
                request.subjects,
                lambda worker: worker.reading.explain(
                    request.question, ThingRights(worker.world, request.subjects), request.size
                ),
            )
        return {
            "accessPath": plan.access_path.value,
            "order": plan.order,
            "things": plan.things,
            "candidates": plan.known,
            "isIndexed": plan.is_indexed,
            "text": str(plan),
        }

    async def _parse_and_audit(self, search: HttpSearch) -> _ParsedSearch:
        """Parse a search, and write it to the audit log if needed. Raises QueryError, StoreError."""
        parsed = self._parse(search)
        if (by := search.instead) is not None:
            now, key = self._now(), (by, frozenset(search.subjects))
            if (before := self._audited.get(key)) is None or not timedelta() <= now - before < _AUDIT_INTERVAL:
                names = ", ".join(sorted(key[1]))
                await self._note(AuditEntry(now.isoformat(), by, "search on behalf of others", "", None, names))
                if len(self._audited) >= _MAX_AUDITED:
                    self._audited.clear()
                self._audited[key] = now
        return parsed

    def _parse(self, search: HttpSearch) -> _ParsedSearch:
        """Parse a search. Raises QueryError."""
        text, cursor = split_options(search.options)
        options = read_options(text)
        namespaces = search.namespaces or frozenset()
        known = [search.filter, sorted(namespaces), sorted(search.subjects), [_sort_key(it) for it in options.order]]
        bound = sha256(msgspec.json.encode(known)).digest()
        now, after = (self._now(), None) if cursor is None else self._cursors.open(cursor, bound, len(options.order))
        predicate = None if search.filter is None else read(search.filter, now)
        question = ThingQuery(predicate, options.order, namespaces)
        return _ParsedSearch(
            SearchRequest(question, options.size, search.selection, search.subjects), after, now, bound
        )


def _sort_key(sorting: Any) -> list[Any]:
    return [sorting.field.kind.value, sorting.field.path, sorting.is_descending]


@contextlib.asynccontextmanager
async def _as_operation_refused(seconds: float | None) -> AsyncIterator[None]:
    """Limit the time of a block, and convert its errors to OperationRefused."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (QueryError, FeedFailed) as error:
        raise OperationRefused(error.fault) from error
    except StoreError as error:
        raise OperationRefused(Fault(503, "api:store.unavailable", str(error))) from error
    except TimeoutError:
        raise OperationRefused(
            Fault(
                503,
                "thing-search:budget.exceeded",
                f"The search was not answered within {seconds:g} s.",
                "Narrow the filter, or set a longer timeout.",
            )
        ) from None


def split_options(text: str | None) -> tuple[str | None, str | None]:
    """Return options without their cursor, and the cursor. Raises InvalidOption for several."""
    if not text:
        return None, None
    text = text.lstrip(" \t\r\n\f")
    cursors = list(_CURSOR.finditer(text))
    if not cursors:
        return text, None
    if len(cursors) > 1:
        raise InvalidOption("Too many cursor options.", "Found several cursors, expected at most one.")
    (cursor,) = cursors
    rest = text[: cursor.start()] + text[cursor.end() :]
    return (rest.removeprefix(",") if cursor.start() == 0 else rest) or None, cursor["cursor"]


class CursorCipher:
    """Encrypts places into cursors."""

    @cached_property
    def _cipher(self) -> Cipher:
        return Cipher()

    def seal(self, place: SortKey, now: datetime, bound: bytes) -> str:
        """Return the cursor of a place, bound to the query `bound`. Raises InvalidOption."""
        plain = msgspec.json.encode((now.timestamp(), [(int(each.rank), each.value) for each in place]))
        text = base64.urlsafe_b64encode(self._cipher.seal(plain, bound)).rstrip(b"=").decode()
        if len(text) > _MAX_CURSOR_LENGTH:
            raise InvalidOption(
                "The sort values are too long for a cursor.", "Sort by a path with shorter values, or by thingId."
            )
        return text

    def open(self, text: str, bound: bytes, length: int) -> tuple[datetime, SortKey]:
        """Return the value of `time:now`, and a place of `length` values. Raises InvalidOption."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            plain = self._cipher.open(sealed, bound)
        except ValueError:
            raise InvalidOption(
                "The cursor does not belong to this search.",
                "A cursor is valid for the filter, namespaces, order and subjects that it was returned for, until the "
                "service is restarted; request the first page.",
            ) from None
        seconds, values = _Payload.decode(plain)
        assert len(values) == length, "the cursor is valid for one order only"
        return datetime.fromtimestamp(seconds, UTC), tuple(SortValue(TypeRank(rank), value) for rank, value in values)

"""Searches of the HTTP API, which are answered at once, page by page.

A page is the first one of a search; its cursor holds the query, the page size and the place after it, so that it can be
given alone. That place may belong to a thing that the user has no permission to read, so a cursor is encrypted with a key of
this process: it reveals nothing, cannot be forged, and is invalid after a restart. It is bound to the subjects, and contains
the value of `time:now`, so that all pages answer one query.

A search on behalf of others is written to the audit log before it starts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.errors import OperationRefused
from connectivity.security.cipher import Cipher
from connectivity.security.on_behalf import BehalfAudit
from connectivity.subscriptions.aggregation_feed import FullScan
from connectivity.subscriptions.feed import FeedFailed, PageEnd
from connectivity.subscriptions.search_feed import SearchFeed, SearchRequest, SearchService, SearchWorker
from connectivity.twins.access import ThingRights
from mappings.errors import Fault
from mappings.model.field_selector import FieldSelection
from spark_store.errors import InvalidOption, QueryError, StoreError
from spark_store.rql.ast import Field, FieldKind
from spark_store.rql.options import PageOptions, read_page_options
from spark_store.rql.query import SearchHit, SortField, SortKey, SortValue, ThingQuery
from spark_store.rql.search_evaluator import read


@dataclass(frozen=True, slots=True)
class HttpSearch:
    """A search over HTTP: `filter` is RQL, `options` are those of a search, perhaps with a cursor.

    It has the permissions of all `subjects` together. `namespaces`: None for all, an empty set for none. `seconds` is the
    limit; None for that of any search. `instead`: the user who searches in the name of others, for the audit log; None if
    they search in their own.
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

    `items` is a JSON array as text. `next_offset` is the number of things before the next page, -1 for none; None if the
    response does not tell it.
    """

    items: bytes
    cursor: str | None
    next_offset: int | None = None


NO_THINGS: Final = HttpSearchPage(b"[]", None, -1)


_MAX_CURSOR_LENGTH: Final = 16 * 1024
"""The longest cursor in characters, which has to fit into the head of a request."""


_LONGEST_KEPT_FILTER: Final = 4_000
"""The longest filter in characters that a cursor holds; of a longer one it holds the digest."""

_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class SearchCursor(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a cursor: `time:now`, the query, the place after the page, and the page size.

    A long filter is replaced by its digest. A field of the order is its kind, its path, and whether it is descending; a
    value of the place is its rank and value.
    """

    now: float
    filter: str | None
    digest: str | None
    namespaces: tuple[str, ...]
    order: tuple[tuple[str, tuple[str, ...], bool], ...]
    place: tuple[tuple[int, Any], ...]
    size: int

    @property
    def sort_fields(self) -> tuple[SortField, ...]:
        return tuple(SortField(Field(FieldKind(kind), path), is_descending) for kind, path, is_descending in self.order)

    @property
    def sort_key(self) -> SortKey:
        return tuple(SortValue(rank, value) for rank, value in self.place)


_read_cursor: Final = msgspec.json.Decoder(SearchCursor).decode


class _ParsedSearch(NamedTuple):
    """A parsed search: the request, the options of its page, and what its cursor needs besides."""

    request: SearchRequest
    options: PageOptions
    filter: str | None
    now: datetime
    after: SortKey | None
    finds_nothing: bool
    """Whether the list of namespaces is empty. (A cursor has a list of its own.)"""


class SearchRequests:
    """Answers searches over HTTP."""

    def __init__(
        self,
        service: SearchService,
        now: Callable[[], datetime],
        *,
        page_bytes: int,
        count_timeout: float,
        audit: BehalfAudit,
    ) -> None:
        """`count_timeout`: the time limit for counting all matches."""
        self._service = service
        self._now = now
        self._page_bytes = page_bytes
        self._count_timeout = count_timeout
        self._cursors = CursorCipher()
        self._audit = audit

    async def things(self, search: HttpSearch) -> HttpSearchPage:
        """Return the things that match, in order. Raises OperationRefused."""
        async with _as_operation_refused(search.seconds):
            parsed = await self._parse_and_audit(search)
            options, feed = parsed.options, SearchFeed(self._service, parsed.request)
            if options.size == 0 or parsed.finds_nothing:
                return NO_THINGS
            if options.offset is not None:
                page = await feed.page_at(options.offset, self._page_bytes)
            else:
                page = await feed.page(parsed.after or 0, 1, self._page_bytes)
            if not page.elements:
                return NO_THINGS
            items, is_last = page.elements[0], page.then is PageEnd.END
            cursor = next_offset = None
            if not is_last and options.offset is None:
                cursor = self._cursors.seal(_cursor(parsed, page.position), _bound(search.subjects))
            if options.offset is not None or not (options.has_size or options.cursor is not None):
                next_offset = -1 if is_last else (options.offset or 0) + len(_items(items))
            return HttpSearchPage(items, cursor, next_offset)

    async def count(self, search: HttpSearch) -> int:
        """Return the number of things that match. Raises OperationRefused."""
        number = 0

        def add(_hit: SearchHit, _worker: SearchWorker, _rights: ThingRights) -> None:
            nonlocal number
            number += 1

        async with _as_operation_refused(search.seconds):
            parsed = await self._parse_and_audit(search)
            if parsed.finds_nothing:
                return 0
            request = parsed.request
            scan = FullScan(self._service, request.question, request.subjects, self._count_timeout)
            await scan.read(add)
        return number

    async def plan(self, search: HttpSearch) -> Mapping[str, Any]:
        """Return the plan for the first page: `way`, `order`, `things`, `candidates`, `isIndexed`, `text`.

        It contains numbers of things regardless of permissions. Raises OperationRefused.
        """
        async with _as_operation_refused(search.seconds):
            parsed = await self._parse_and_audit(search)
            request = parsed.request
            plan = await self._service.look(
                request.subjects,
                lambda worker: worker.reading.explain(
                    request.question, ThingRights(worker.world, request.subjects), request.size
                ),
            )
            if parsed.finds_nothing:
                plan = plan.of_nothing()
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
        if search.instead is not None:
            await self._audit.record(search.instead, "search", search.subjects)
        return parsed

    def _parse(self, search: HttpSearch) -> _ParsedSearch:
        """Parse a search. Raises QueryError."""
        options = read_page_options(search.options)
        filter, namespaces, order = search.filter, search.namespaces or frozenset(), options.order
        size = options.size
        if options.cursor is None:
            now, after = self._now(), None
        else:
            known = self._cursors.open(options.cursor, _bound(search.subjects))
            filter = _filter_of(known, filter)
            if options.has_order and options.order != known.sort_fields:
                raise _invalid_cursor("The option 'sort' must not differ from the original query of the cursor.")
            namespaces, order = frozenset(known.namespaces), known.sort_fields
            size = size if options.has_size else known.size
            now, after = datetime.fromtimestamp(known.now, UTC), known.sort_key
        question = ThingQuery(None if filter is None else read(filter, now), order, namespaces)
        request = SearchRequest(question, size, search.selection, search.subjects)
        finds_nothing = search.namespaces == frozenset() and options.cursor is None
        return _ParsedSearch(request, options, filter, now, after, finds_nothing)


def _cursor(parsed: _ParsedSearch, place: SortKey) -> SearchCursor:
    question, filter = parsed.request.question, parsed.filter
    is_long = filter is not None and len(filter) > _LONGEST_KEPT_FILTER
    return SearchCursor(
        parsed.now.timestamp(),
        None if is_long else filter,
        _digest(filter) if filter is not None and is_long else None,
        tuple(sorted(question.namespaces)),
        tuple((it.field.kind.value, it.field.path, it.is_descending) for it in question.order),
        tuple((int(each.rank), each.value) for each in place),
        parsed.request.size,
    )


def _filter_of(known: SearchCursor, given: str | None) -> str | None:
    """Return the filter of a cursor, which a request may repeat. Raises InvalidOption."""
    if known.digest is not None:
        if given is None or _digest(given) != known.digest:
            raise _invalid_cursor(
                "Repeat the parameter 'filter' of the original query, because the cursor cannot contain a filter of "
                "that length."
            )
        return given
    if given is not None and given != known.filter:
        raise _invalid_cursor("The parameter 'filter' must not differ from the original query of the cursor.")
    return known.filter


def _digest(filter: str) -> str:
    return sha256(filter.encode()).hexdigest()


def _bound(subjects: Sequence[str]) -> bytes:
    return sha256(msgspec.json.encode(sorted(subjects))).digest()


def _invalid_cursor(description: str) -> InvalidOption:
    return InvalidOption("The option 'cursor' is not valid for the search request.", description)


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


class CursorCipher:
    """Encrypts cursors."""

    @cached_property
    def _cipher(self) -> Cipher:
        return Cipher()

    def seal(self, cursor: SearchCursor, bound: bytes) -> str:
        """Return the text of a cursor, bound to the subjects `bound`. Raises InvalidOption."""
        plain = msgspec.json.encode(cursor)
        text = base64.urlsafe_b64encode(self._cipher.seal(plain, bound)).rstrip(b"=").decode()
        if len(text) > _MAX_CURSOR_LENGTH:
            raise InvalidOption(
                "The sort values are too long for a cursor.", "Sort by a path with shorter values, or by thingId."
            )
        return text

    def open(self, text: str, bound: bytes) -> SearchCursor:
        """Return the contents of a cursor. Raises InvalidOption."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            plain = self._cipher.open(sealed, bound)
        except ValueError:
            raise _invalid_cursor(
                "The cursor belongs to other subjects, or is from before a restart of the service. Request the first page "
                "again."
            ) from None
        return _read_cursor(plain)

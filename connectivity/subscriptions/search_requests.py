"""Searches that are answered at once, page by page, as the HTTP API asks for them.

A page is the first one of a search that nobody else hears of; its cursor is the place behind it. The place may be that of a
thing which whoever asks must not know of, so a cursor is encrypted, with a key that this process made for itself: it tells
nothing, nobody can make one, and after a restart it leads nowhere. Bound to it is the question with everything that decides
what is found; the moment that `time:now` means travels along, so that the pages are answers to one question.

Who asks in the name of others is in the audit log before anything is looked for: once an hour for the same names, so that a
dashboard does not push out what else is in there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from connectivity.errors import OperationRefused
from connectivity.subscriptions.aggregation_feed import FullScan
from connectivity.subscriptions.feed import FeedFailed, PageEnd
from connectivity.subscriptions.search_feed import SearchFeed, SearchRequest, SearchService, SearchWorker
from connectivity.twins.access import ThingRights
from mappings.errors import Fault
from mappings.model.field_selector import Selection
from spark_store.errors import InvalidOption, QueryError, StoreError
from spark_store.records import AuditEntry
from spark_store.rql.options import read_options
from spark_store.rql.order import TypeRank
from spark_store.rql.query import Place, SearchHit, SortValue, ThingQuery
from spark_store.rql.search_evaluator import read


@dataclass(frozen=True, slots=True)
class HttpSearch:
    """One question, as it was asked: `filter` is RQL, `options` are those of a search, perhaps with a cursor.

    It is asked in the name of all `subjects` together. `namespaces` of None are all of them. `seconds` is how long
    looking may take at most; None for as long as any search. `instead`: who asks in names that are not his own, which is
    noted; None for everybody else.
    """

    subjects: tuple[str, ...]
    filter: str | None = None
    options: str | None = None
    namespaces: frozenset[str] | None = None
    selection: Selection | None = None
    seconds: float | None = None
    instead: str | None = None


class HttpSearchPage(NamedTuple):
    """A page of things, as whoever asked may see them, and what leads to the next one; None where nothing follows.

    `items` is a JSON array as text.
    """

    items: bytes
    cursor: str | None


class Inquiries(Protocol):
    """Whoever answers such questions.

    Each raises OperationRefused: `rql.expression.invalid`, `thing-search:search.option.invalid` (400),
    `thing-search:budget.exceeded`, `api:store.unavailable` (503).
    """

    async def things(self, inquiry: HttpSearch) -> HttpSearchPage:
        """The things that match, in order."""

    async def count(self, inquiry: HttpSearch) -> int:
        """How many there are. Options do not matter."""

    async def plan(self, inquiry: HttpSearch) -> Mapping[str, Any]:
        """How the first page would be come by now: `way`, `order`, `things`, `candidates`, `isIndexed`, `text`.

        It tells how many things there are, whoever may see them.
        """


_CURSOR: Final = re.compile(r"(?:^|,)cursor\((?P<cursor>[^,)\"\\]*)\)(?=,|$)")
_NONCE_BYTES: Final = 12
_LONGEST: Final = 16 * 1024
"""Of a cursor, which has to fit into the head of a request."""

_NOTED_FOR: Final = timedelta(hours=1)
_MOST_NOTED: Final = 1_000
"""So many pairs of who asks and in whose name are known to be noted."""

_Payload: Final = msgspec.json.Decoder(tuple[float, list[tuple[int, Any]]])


class _Read(NamedTuple):
    """An inquiry, understood: the question, the place where the page begins, and what its next cursor has to know."""

    asked: SearchRequest
    after: Place | None
    now: datetime
    bound: bytes


class SearchRequests:
    """Answers inquiries by searching."""

    def __init__(
        self,
        searching: SearchService,
        now: Callable[[], datetime],
        *,
        page_bytes: int,
        seconds_for_all: float,
        note: Callable[[AuditEntry], Awaitable[None]],
    ) -> None:
        """`seconds_for_all`: for how long all that matches may be looked at, to count it. `note` adds to the audit log."""
        self._searching = searching
        self._now = now
        self._page_bytes = page_bytes
        self._seconds_for_all = seconds_for_all
        self._cursors = CursorCipher()
        self._note = note
        self._noted: dict[tuple[str, frozenset[str]], datetime] = {}

    async def things(self, inquiry: HttpSearch) -> HttpSearchPage:
        """The things that match, in order. Raises OperationRefused."""
        async with _refusing(inquiry.seconds):
            found = await self._understood(inquiry)
            feed = SearchFeed(self._searching, found.asked)
            page = await feed.page(found.after or 0, 1, self._page_bytes)
            cursor = None
            if page.then is not PageEnd.END:
                cursor = self._cursors.seal(page.position, found.now, found.bound)
            return HttpSearchPage(page.elements[0] if page.elements else b"[]", cursor)

    async def count(self, inquiry: HttpSearch) -> int:
        """How many things match. Raises OperationRefused."""
        number = 0

        def add(hits: Sequence[SearchHit], _looking: SearchWorker, _rights: ThingRights) -> None:
            nonlocal number
            number += len(hits)

        async with _refusing(inquiry.seconds):
            asked = (await self._understood(inquiry)).asked
            everything = FullScan(self._searching, asked.question, asked.subjects, self._seconds_for_all)
            while not everything.is_over:
                await everything.slice(add)
        return number

    async def plan(self, inquiry: HttpSearch) -> Mapping[str, Any]:
        """How the first page would be come by now. Raises OperationRefused."""
        async with _refusing(inquiry.seconds):
            asked = (await self._understood(inquiry)).asked
            plan = await self._searching.look(
                lambda looking: looking.reading.explain(
                    asked.question, ThingRights(looking.world, asked.subjects), asked.size
                )
            )
        return {
            "way": plan.way.value,
            "order": plan.order,
            "things": plan.things,
            "candidates": plan.known,
            "isIndexed": plan.is_indexed,
            "text": str(plan),
        }

    async def _understood(self, inquiry: HttpSearch) -> _Read:
        """What is asked, and that it is asked in the name of others noted. Raises QueryError, StoreError."""
        found = self._read(inquiry)
        if (by := inquiry.instead) is not None:
            now, key = self._now(), (by, frozenset(inquiry.subjects))
            if (before := self._noted.get(key)) is None or not timedelta() <= now - before < _NOTED_FOR:
                names = ", ".join(sorted(key[1]))
                await self._note(AuditEntry(now.isoformat(), by, "search in the name of others", "", None, names))
                if len(self._noted) >= _MOST_NOTED:
                    self._noted.clear()
                self._noted[key] = now
        return found

    def _read(self, inquiry: HttpSearch) -> _Read:
        """What is asked. Raises QueryError."""
        text, cursor = split_options(inquiry.options)
        options = read_options(text)
        namespaces = inquiry.namespaces or frozenset()
        known = [inquiry.filter, sorted(namespaces), sorted(inquiry.subjects), [_spelled(it) for it in options.order]]
        bound = sha256(msgspec.json.encode(known)).digest()
        now, after = (self._now(), None) if cursor is None else self._cursors.open(cursor, bound, len(options.order))
        predicate = None if inquiry.filter is None else read(inquiry.filter, now)
        question = ThingQuery(predicate, options.order, namespaces)
        return _Read(SearchRequest(question, options.size, inquiry.selection, inquiry.subjects), after, now, bound)


def _spelled(sorting: Any) -> list[Any]:
    return [sorting.field.kind.value, sorting.field.path, sorting.is_descending]


@contextlib.asynccontextmanager
async def _refusing(seconds: float | None) -> AsyncIterator[None]:
    """Bounds what is inside in time, and refuses in words of the API what it raises."""
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
                "Ask for less, or wait longer: narrow the filter, or say a longer timeout.",
            )
        ) from None


def split_options(text: str | None) -> tuple[str | None, str | None]:
    """Options without their cursor, and the cursor. Raises InvalidOption for several."""
    if not text:
        return None, None
    text = text.lstrip(" \t\r\n\f")
    found = list(_CURSOR.finditer(text))
    if not found:
        return text, None
    if len(found) > 1:
        raise InvalidOption("Too many cursor options.", "0 or 1 cursor is expected.")
    (cursor,) = found
    rest = text[: cursor.start()] + text[cursor.end() :]
    return (rest.removeprefix(",") if cursor.start() == 0 else rest) or None, cursor["cursor"]


class CursorCipher:
    """Places as texts that nobody else can read or make."""

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(256))

    def seal(self, place: Place, now: datetime, bound: bytes) -> str:
        """A text that leads to the place, for whoever asks what `bound` stands for. Raises InvalidOption."""
        plain = msgspec.json.encode((now.timestamp(), [(int(each.rank), each.value) for each in place]))
        nonce = os.urandom(_NONCE_BYTES)
        text = base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, plain, bound)).rstrip(b"=").decode()
        if len(text) > _LONGEST:
            raise InvalidOption(
                "The values that order the things are too long for a cursor.",
                "Sort by something shorter, or by thingId.",
            )
        return text

    def open(self, text: str, bound: bytes, length: int) -> tuple[datetime, Place]:
        """The moment that `time:now` means, and the place, of `length` values. Raises InvalidOption."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (ValueError, binascii.Error, InvalidTag):
            raise InvalidOption(
                "The cursor is none of this search.",
                "A cursor goes with the filter, namespaces, order and subjects that it came with, until the service is "
                "started again; ask for the first page.",
            ) from None
        seconds, values = _Payload.decode(plain)
        assert len(values) == length, "the order is bound to the cursor"
        return datetime.fromtimestamp(seconds, UTC), tuple(SortValue(TypeRank(rank), value) for rank, value in values)

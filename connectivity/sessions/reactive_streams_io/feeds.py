"""Feeds of encoded elements, built from other feeds (reactive-streams-io, elements).

`EncodedFeed` encodes elements and may leave some out, `EnrichedFeed` enlarges them, `ConcatenatedFeed` continues with a
second feed, `DeferredFeed` is found later, `SyntheticFeed` and `NumbersFeed` are the test publishers. Positions are those of
the underlying feed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from connectivity.subscriptions.feed import Feed, FeedFailed, FeedPosition, Page, PageEnd
from mappings.errors import Fault
from mappings.reactive_streams_io import elements
from mappings.reactive_streams_io.publisher_names import SyntheticName

Write = Callable[[Any], bytes | None]
"""Encodes an element; None leaves it out. Raises FeedFailed if the feed cannot continue with it."""

WRITTEN_AT_ONCE = 500
"""Elements that are written before others have their turn: about a millisecond."""

LOOKED_AT = 50
"""Events that are read at a time to add fields, or to learn whether one follows that is not left out."""


class _FeedOfFeed(Feed):
    """A feed with the elements of another one."""

    __slots__ = ("_feed",)

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    @property
    def is_prompt(self) -> bool:
        return self._feed.is_prompt

    @property
    def store_fault(self) -> Fault:
        return self._feed.store_fault

    async def prepare(self) -> None:
        await self._feed.prepare()

    def wake(self, ready: Callable[[], None]) -> None:
        self._feed.wake(ready)

    def close(self) -> None:
        self._feed.close()


class EncodedFeed(_FeedOfFeed):
    """The encoded elements of a feed.

    `is_sparse`: the feed is a history, and `write` leaves out events.
    """

    __slots__ = ("_is_sparse", "_write")

    def __init__(self, feed: Feed, write: Write, *, is_sparse: bool = False) -> None:
        super().__init__(feed)
        self._write = write
        self._is_sparse = is_sparse

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        if self._is_sparse:
            return await self._sparse_page(position, limit, max_bytes)
        found = await self._feed.page(position, min(limit, WRITTEN_AT_ONCE), max_bytes)
        raw: list[bytes] = []
        for each in found.elements:
            try:
                written = self._write(each)
            except FeedFailed as error:
                return found._replace(elements=raw, then=PageEnd.MORE, fault=error.fault)
            if written is not None:
                raw.append(written)
        return found._replace(elements=raw)

    async def _sparse_page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """As `page`; with a limit of 0, stop before the next event that is not left out."""
        found = await self._feed.page(position, min(limit or LOOKED_AT, WRITTEN_AT_ONCE), max_bytes)
        raw: list[bytes] = []
        for event in found.elements:
            if (written := self._write(event)) is not None:
                if not limit:
                    return Page((), event.revision - 1, PageEnd.MORE)
                raw.append(written)
        return found._replace(elements=raw, then=PageEnd.END if found.then is PageEnd.END else PageEnd.UNDECIDED)


class EnrichedFeed(EncodedFeed):
    """The encoded events of a live feed with extra fields, which may be much larger than the events."""

    __slots__ = ()

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        found = await self._feed.page(position, min(limit, LOOKED_AT), max_bytes)
        raw: list[bytes] = []
        for event in found.elements:
            if (written := self._write(event)) is not None:
                raw.append(written)
                max_bytes -= len(written)
            if max_bytes <= 0 and event.revision < found.position:
                return Page(raw, event.revision, PageEnd.MORE)
        return found._replace(elements=raw)


class ConcatenatedFeed(_FeedOfFeed):
    """A feed, and behind its end another one, which is opened then."""

    __slots__ = ("_is_closed", "_is_second", "_open")

    def __init__(self, feed: Feed, open: Callable[[], Feed | Fault]) -> None:
        super().__init__(feed)
        self._open = open
        self._is_second = self._is_closed = False

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Raises FeedFailed where there is no second feed."""
        found = await self._feed.page(position, limit, max_bytes)
        if self._is_second or self._is_closed or found.then is not PageEnd.END:
            # The first feed may be closed while its page is read.
            return found
        feed = self._open()
        if isinstance(feed, Fault):
            raise FeedFailed(feed)
        self._feed.close()
        self._feed, self._is_second = feed, True
        return Page(found.elements, 0, PageEnd.MORE)

    def close(self) -> None:
        self._is_closed = True
        super().close()


class DeferredFeed(Feed):
    """A feed that takes time to be found, which begins before the first page."""

    __slots__ = ("_feed", "_find", "_is_closed")

    def __init__(self, find: Callable[[], Awaitable[Feed | Fault]]) -> None:
        self._find = find
        self._feed: Feed | None = None
        self._is_closed = False

    @property
    def is_prompt(self) -> bool:
        return self._feed is not None and self._feed.is_prompt

    async def prepare(self) -> None:
        """Raises FeedFailed if there is no feed."""
        await self._found()

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Raises FeedFailed if there is no feed."""
        feed = await self._found()
        return await feed.page(position, limit, max_bytes)

    async def _found(self) -> Feed:
        if self._feed is None:
            found = await self._find()
            if isinstance(found, Fault):
                raise FeedFailed(found)
            self._feed = found
            if self._is_closed:
                found.close()
        return self._feed

    def wake(self, ready: Callable[[], None]) -> None:
        if self._feed is not None:
            self._feed.wake(ready)

    def close(self) -> None:
        self._is_closed = True
        if self._feed is not None:
            self._feed.close()


class SyntheticFeed(Feed):
    """A test publisher. Its elements are made when they are asked for."""

    __slots__ = ("_elements", "_left", "_name")

    def __init__(self, name: SyntheticName) -> None:
        self._name = name
        self._elements: Iterator[bytes] = elements.elements(name)
        self._left = elements.number(name)

    @property
    def is_empty(self) -> bool:
        """Whether it ends before its first element."""
        return not self._left and self._name.kind != "never"

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        if self._name.kind == "never":
            return Page((), position, PageEnd.WAIT)
        fit = max(1, max_bytes // max(1, self._name.size))
        found = list(islice(self._elements, min(limit, fit)))
        self._left -= len(found)
        if self._left:
            return Page(found, position + len(found), PageEnd.MORE)
        return Page(found, position + len(found), PageEnd.END, elements.ending(self._name))

    def wake(self, ready: Callable[[], None]) -> None:
        """Do nothing: such a feed gets no further events."""


class NumbersFeed(Feed):
    """The test publisher of elements with a fixed size, in runs. A position is how many were read."""

    __slots__ = ("_name",)

    def __init__(self, name: SyntheticName) -> None:
        self._name = name

    @property
    def is_empty(self) -> bool:
        """Whether it is complete before it begins."""
        return not self._name.count

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """As many as there is room for."""
        size = self._name.size
        count = min(limit, max(1, max_bytes // size), self._name.count - position)
        behind = position + count
        run = elements.numbers(position + 1, count, size)
        return Page(run, behind, PageEnd.END if behind == self._name.count else PageEnd.MORE)

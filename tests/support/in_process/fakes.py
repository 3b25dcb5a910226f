"""Fakes of the neighbors of the part under test: feeds on lists, a reply that records its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from connectivity.errors import LinkError
from connectivity.subscriptions.feed import Feed, Page, PageEnd
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Delivery, Done, OutboundMessage, Readers, ignore_reader_status
from mappings.model.signals import Next, Outbound


class Link:
    """A link that confirms messages when the test calls `confirm`."""

    lost: asyncio.Future[LinkError]
    condition = None
    throttled = 0
    target_faults: Mapping[int, str] = MappingProxyType({})

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.readers: Readers = ignore_reader_status
        self.published: list[OutboundMessage] = []
        self._done: list[Done] = []

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        raise AssertionError("nothing is consumed from this link")

    async def close(self) -> None:
        """Do nothing: there is no link to close."""

    def publish(self, message: OutboundMessage, done: Done) -> None:
        self.published.append(message)
        self._done.append(done)

    def confirm(self, count: int | None = None, error: Any = None) -> None:
        """Confirm the oldest `count` messages, by default all."""
        ready, self._done[:] = self._done[:count], self._done[count:] if count is not None else []
        for done in ready:
            done(error)


class KeepingReply:
    """A reply that records its signals.

    While `is_stalled`, the broker accepts no message; with `confirms`, it confirms each immediately.
    """

    def __init__(self, connection_id: str = "c-1", *, terminal_needs_request: bool = True) -> None:
        self.connection_id = connection_id
        self.terminal_needs_request = terminal_needs_request
        self.signals: list[Outbound] = []
        self.postings: list[PendingPublish] = []
        self.is_stalled = False
        self.confirms = True

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        self.signals.append(signal)
        posting = PendingPublish(1, ended)
        self.postings.append(posting)
        if not self.is_stalled:
            posting.take()
            if self.confirms:
                posting.confirm(None)
        return posting

    @property
    def elements(self) -> list[Any]:
        return [element for signal in self.signals if isinstance(signal, Next) for element in signal.elements]

    @property
    def names(self) -> list[str]:
        return [type(signal).__name__ for signal in self.signals]


class Element(int):
    """A numbered element of zero bytes."""

    def __len__(self) -> int:
        return 0


class ListFeed(Feed):
    """A finite feed over a list; raises `error` at its position."""

    def __init__(self, elements: Sequence[int], error: Exception | None = None, error_at: int = 0) -> None:
        self._elements = [Element(element) for element in elements]
        self._error, self._error_at = error, error_at
        self.pages: list[tuple[int, int]] = []
        self.is_closed = False

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        self.pages.append((position, limit))
        if self._error is not None:
            if position >= self._error_at:
                raise self._error
            limit = min(limit, self._error_at - position)
        end = position + limit
        then = PageEnd.END if end >= len(self._elements) and self._error is None else PageEnd.MORE
        return Page(self._elements[position:end], min(end, len(self._elements)), then)

    def wake(self, ready: Callable[[], None]) -> None:
        raise AssertionError("a finite feed never waits")

    def close(self) -> None:
        self.is_closed = True


class LiveFeed(Feed):
    """An endless feed of the elements that a test puts in; without a new one, a page ends with WAIT."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self._ready: list[Callable[[], None]] = []

    @property
    def is_awaited(self) -> bool:
        return bool(self._ready)

    def put(self, *elements: Any) -> None:
        self.elements.extend(elements)
        ready, self._ready = self._ready, []
        for wake in ready:
            wake()

    async def page(self, position: int, limit: int, max_bytes: int) -> Page:
        found = self.elements[position : position + limit]
        return Page(found, position + len(found), PageEnd.MORE if found else PageEnd.WAIT)

    def wake(self, ready: Callable[[], None]) -> None:
        self._ready.append(ready)

    def close(self) -> None:
        self._ready.clear()

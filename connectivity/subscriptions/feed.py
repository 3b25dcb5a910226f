"""Feeds: the sources of a subscription's elements, read page by page.

Nothing stays open between two pages, so a subscription without demand costs only its object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

from mappings.errors import INTERNAL_ERROR, Fault


class PageEnd(Enum):
    """Whether there are further pages.

    UNDECIDED: perhaps no element follows. A page with a limit of 0 has no elements, and looks further.
    """

    MORE = "ask again"
    UNDECIDED = "ask again, even without demand"
    WAIT = "nothing yet"
    END = "that was all"


FeedPosition: TypeAlias = Any
"""Where a page begins: 0 at the beginning, otherwise a value of the feed, such as a number or a key."""


class Page(NamedTuple):
    """Elements in order, the next position, and whether there are further pages. May be empty.

    `fault`: the feed is known to fail behind these elements, so that no demand is needed to find out.
    """

    elements: Sequence[Any]
    position: FeedPosition
    then: PageEnd
    fault: Fault | None = None


class FeedFailed(Exception):
    """A feed that cannot supply more elements; `fault` is sent to the subscriber."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault = fault


class Feed(ABC):
    """A sequence of elements with positions. Only a live feed answers WAIT."""

    __slots__ = ()
    has_timeout: ClassVar[bool] = False
    """Whether its pages have a timeout of their own: waiting for one is not idleness."""

    @property
    def is_prompt(self) -> bool:
        """Whether the first element is to come within `open_timeout`."""
        return False

    @property
    def store_fault(self) -> Fault:
        """The fault that the subscriber gets if the store is unavailable."""
        return INTERNAL_ERROR

    @abstractmethod
    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:
        """Return at most `limit` elements and about `max_bytes` from `position` on. Raises FeedFailed."""

    async def prepare(self) -> None:  # noqa: B027 - most feeds read their first page as any other
        """Do what takes long before the first page, such as a Spark query; no page is charged meanwhile.

        Raises FeedFailed, StoreError.
        """

    def wake(self, ready: Callable[[], None]) -> None:
        """Call `ready` once when there are elements, after a page that ended with WAIT."""
        ready()

    def close(self) -> None:  # noqa: B027 - most feeds have nothing to stop
        """Stop running queries; no further page will be requested."""


class _EmptyFeed(Feed):
    """A feed without elements."""

    async def page(self, position: FeedPosition, limit: int, max_bytes: int) -> Page:  # noqa: ARG002
        return Page((), position, PageEnd.END)


NOTHING: Feed = _EmptyFeed()
"""An empty feed; some protocols end such a stream before the first request."""

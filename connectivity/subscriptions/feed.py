"""Where a subscription's elements come from, page by page.

Nothing stays open between two pages, so a subscription without demand costs no more than its object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from mappings.errors import Fault


class PageEnd(Enum):
    """What follows a page."""

    MORE = "ask again"
    WAIT = "nothing yet"
    END = "that was all"


Position: TypeAlias = Any
"""Where a page begins; 0 is the beginning of every feed. What else it can be is the feed's own business: a number, a key."""


class Page(NamedTuple):
    """Elements in order, the position behind them, and what follows. A page that scanned without a match is empty."""

    elements: Sequence[Any]
    position: Position
    then: PageEnd


class FeedFailed(Exception):
    """A feed has no more elements, for a reason that is its subscriber's to know: `fault` says it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault = fault


class Feed(ABC):
    """Elements with a position each. A feed that is finished one day never answers WAIT; a live one does."""

    __slots__ = ()

    @abstractmethod
    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:
        """At most `limit` elements and about `max_bytes` from `position` on. Raises FeedFailed."""

    def wake(self, ready: Callable[[], None]) -> None:
        """Call `ready` once when there is more, after a page that ended with WAIT."""
        ready()

    def close(self) -> None:  # noqa: B027 - most feeds have nothing to stop
        """Stop what is being looked up: no further page will be asked for."""


class _Nothing(Feed):
    """The feed without elements."""

    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:  # noqa: ARG002
        return Page((), position, PageEnd.END)


NOTHING: Feed = _Nothing()
"""What is known to be empty: where a protocol lets a stream end before the first request, this one does."""

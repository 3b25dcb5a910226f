"""Where a subscription's elements come from.

A feed is a question with fixed bounds; `page` answers a part of it, from a position on. Nothing stays open between two
pages, so a subscription that nobody asks costs no more than its object. A live feed has the same face: it answers "nothing
yet" and wakes whoever asked when there is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

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


class Feed(Protocol):
    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:
        """At most `limit` elements and about `max_bytes` from `position` on. Raises FeedFailed."""

    def wake(self, ready: Callable[[], None]) -> None:
        """Call `ready` once, when a feed that said WAIT has more."""

    def close(self) -> None:
        """Nobody asks any more: what is looked for at this moment need not be found."""


class _Nothing:
    """The feed without elements."""

    async def page(self, position: Position, limit: int, max_bytes: int) -> Page:  # noqa: ARG002
        return Page((), position, PageEnd.END)

    def wake(self, ready: Callable[[], None]) -> None:
        ready()

    def close(self) -> None:
        """There is nothing to stop."""


NOTHING: Feed = _Nothing()
"""What is known to be empty: where a protocol lets a stream end before the first request, this one does."""

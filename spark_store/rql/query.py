"""What a search asks and what it is answered: the words that the index, the lake and whoever serves a search share.

A `ThingQuery` is a filter that was read and bound, an order and the namespaces it is about. It is answered in pages by key:
nothing stays open between two of them, and a page is asked for with the `Place` behind the last thing of the one before.
Who asks has `ReadRights`: what of a thing he may read is a matter of its policy, so this package is told by whoever knows
policies. A field that he may not read takes part neither in the filter nor in the order (Ditto search, permissions).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from spark_store.rql.ast import Field, Predicate

Thing: TypeAlias = Mapping[str, Any]
"""A thing as JSON values, with `_revision`, `_created`, `_modified` and, where it has any, `_metadata`."""


@dataclass(frozen=True, slots=True)
class SortField:
    """One field that orders the answer."""

    field: Field
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class ThingQuery:
    """Which things are wanted, and in which order.

    `predicate` of None matches every thing; its `time:` literals have been resolved. `order` ends with the id of the thing,
    always. No `namespaces` means all of them.
    """

    predicate: Predicate | None
    order: Sequence[SortField]
    namespaces: frozenset[str] = frozenset()


class SortValue(NamedTuple):
    """A place in the total order of values: the rank of its type, and what is compared within it (None for a null)."""

    rank: int
    value: Any


Place: TypeAlias = tuple[SortValue, ...]
"""Behind which thing a page begins: its values of `ThingQuery.order`, as whoever asks may see them."""


class Access(Protocol):
    """What somebody may read of the things of one policy in one namespace."""

    is_whole: bool
    """Whether he may read everything, whatever such a thing holds."""

    def may(self, path: Sequence[str]) -> bool:
        """Whether he may read the place itself, such as `("attributes", "room")`."""

    def view(self, thing: Thing) -> Thing | None:
        """The thing as far as he may read it; None for one that does not exist for him."""


class ReadRights(Protocol):
    """What somebody may read."""

    subjects: frozenset[str]

    def access(self, policy: str, namespace: str) -> Access | None:
        """What he may read of the things of a policy; None for nothing at all."""


class ThingMetadata(NamedTuple):
    """What stands beside a thing's document: its revision, and when it was made and last changed (UTC text)."""

    revision: int
    created: str
    modified: str


class SearchHit:
    """One thing of an answer, as the requester may see it.

    `text` is the document as JSON, without the fields beside it, where that is at hand: it then need not be parsed and
    written again for somebody who wants all of it.
    """

    __slots__ = ("_hidden", "_thing", "text", "thing_id")

    def __init__(
        self,
        thing_id: str,
        thing: Thing | None = None,
        *,
        text: bytes | None = None,
        hidden: ThingMetadata | None = None,
    ) -> None:
        """Either a `thing`, with the fields beside its document, or a `text` and what is `hidden` beside it."""
        self.thing_id = thing_id
        self.text = text
        self._thing = thing
        self._hidden = hidden

    @property
    def thing(self) -> Thing:
        """The document with the fields beside it."""
        if self._thing is None:
            assert self.text is not None
            assert self._hidden is not None
            self._thing = with_hidden(msgspec.json.decode(self.text), self._hidden)
        return self._thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchHit) and self.thing_id == other.thing_id and self.thing == other.thing

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Hit({self.thing_id!r}, {self.thing!r})"


def with_hidden(document: dict[str, Any], hidden: ThingMetadata) -> dict[str, Any]:
    """A document that was just parsed, with the fields beside it."""
    document["_revision"], document["_created"], document["_modified"] = hidden
    return document


class ThingPage(NamedTuple):
    """A page: things in order, the place behind them, and whether nothing follows.

    A page may have fewer things than were asked for, or none, although more follows, when looking took its time or their
    bytes were enough: ask again from its place.
    """

    hits: Sequence[SearchHit]
    place: Place | None
    is_last: bool


@dataclass(slots=True)
class Budget:
    """What one search may cost: seconds of looking, in all its pages since the last one that found something."""

    seconds: float = 5.0
    spent: float = field(default=0.0)

    def left(self) -> float:
        return self.seconds - self.spent

    def spend(self, since: float) -> None:
        """`since`: `time.perf_counter()` when the looking began."""
        self.spent += time.perf_counter() - since


PAGE_BYTES: Final = 1 << 20
"""How many bytes of JSON a page has at most if nobody says otherwise."""


class ThingSearch(Protocol):
    """Whoever answers questions. Synchronous: not for an event loop."""

    def page(
        self,
        question: ThingQuery,
        rights: ReadRights,
        after: Place | None,
        limit: int,
        budget: Budget,
        max_bytes: int = PAGE_BYTES,
    ) -> ThingPage:
        """Up to `limit` things behind `after`, whose states have up to `max_bytes` of JSON together, but at least one.

        Raises BudgetExceeded, StoreUnavailable.
        """

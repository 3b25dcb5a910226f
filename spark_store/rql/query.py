"""Queries for things and their pages: the interface of index, lake and service.

A `ThingQuery` is a bound filter, an order and namespaces. Pages are by key: nothing stays open between them, and a page
begins after the `Place` of the one before. `ReadRights` say what the requester can read, by policies that this package does
not know. Unreadable fields take part neither in the filter nor in the order (Ditto search, permissions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from mappings.json_values import decode_state
from spark_store.rql.ast import Field, Predicate

Thing: TypeAlias = Mapping[str, Any]
"""A thing as JSON values, with `_revision`, `_created`, `_modified` and perhaps `_metadata`."""


@dataclass(frozen=True, slots=True)
class SortField:
    """One field of the order."""

    field: Field
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class ThingQuery:
    """A query for things.

    `predicate` of None matches every thing; its `time:` literals have been resolved. `order` always ends with the ID of the
    thing. No `namespaces` means all.
    """

    predicate: Predicate | None
    order: Sequence[SortField]
    namespaces: frozenset[str] = frozenset()


class SortValue(NamedTuple):
    """A place in the total order: the rank of a type, and the comparable value (None for null)."""

    rank: int
    value: Any


SortKey: TypeAlias = tuple[SortValue, ...]
"""The place after which a page begins: its readable values of `ThingQuery.order`."""


class Access(Protocol):
    """The readable part of the things of one policy in one namespace."""

    is_whole: bool
    """Whether they may read everything, whatever such a thing contains."""

    def may(self, path: Sequence[str]) -> bool:
        """Whether they may read the place itself, such as `("attributes", "room")`."""

    def view(self, thing: Thing) -> Thing | None:
        """Return the readable part of the thing; None if it is invisible."""


class ReadRights(Protocol):
    """The permissions of a requester."""

    subjects: frozenset[str]

    def access(self, policy: str, namespace: str) -> Access | None:
        """Return what they can read of the things of a policy; None for nothing."""


class ThingMetadata(NamedTuple):
    """The fields beside a thing's document: revision, and times of creation and change (UTC text)."""

    revision: int
    created: str
    modified: str


class SearchHit:
    """One thing of a page, as the requester can read it.

    `text` is the document as JSON, without the fields beside it, if it is at hand: it is not parsed and encoded again for a
    full reader.
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
        """Either a `thing`, with the fields beside its document, or a `text` and the `hidden` fields."""
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
            self._thing = with_hidden(decode_state(self.text), self._hidden)
        return self._thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchHit) and self.thing_id == other.thing_id and self.thing == other.thing

    __hash__ = None  # type: ignore[assignment]


def with_hidden(document: dict[str, Any], hidden: ThingMetadata) -> dict[str, Any]:
    """A document that was just parsed, with the fields beside it."""
    document["_revision"], document["_created"], document["_modified"] = hidden
    return document


class ThingPage(NamedTuple):
    """A page: things in order, the place after them, and whether it is the last one.

    A page may have fewer things, or none, although more follow, if the search took long or the bytes were enough: continue
    from its place. `places`: that of each thing, if there may be several.
    """

    hits: Sequence[SearchHit]
    place: SortKey | None
    is_last: bool
    places: Sequence[SortKey] = ()


@dataclass(slots=True)
class Budget:
    """The budget of one search: seconds, in all its pages since the last one with things."""

    seconds: float = 5.0
    spent: float = field(default=0.0)

    def left(self) -> float:
        return self.seconds - self.spent


PAGE_BYTES: Final = 1 << 20
"""The default limit of a page's JSON in bytes."""


class ThingSearch(Protocol):
    """Searches things. Synchronous: not for an event loop."""

    def page(
        self,
        question: ThingQuery,
        rights: ReadRights,
        after: SortKey | None,
        limit: int,
        budget: Budget,
        max_bytes: int = PAGE_BYTES,
    ) -> ThingPage:
        """Return up to `limit` things after `after`, with up to `max_bytes` of JSON, but at least one.

        Raises BudgetExceeded, StoreUnavailable.
        """

"""What an operator may ask of things: the words that the HTTP API and whoever searches have in common.

The same filter, options and rights as over a broker (Ditto search), and one answer instead of a subscription: a page of
things with a cursor that leads to the next one, or their number.

Everything refuses with OperationRefused and nothing else; what it says is meant for the one who asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mappings.selection import Selection


@dataclass(frozen=True, slots=True)
class Inquiry:
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


class Findings(NamedTuple):
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

    async def things(self, inquiry: Inquiry) -> Findings:
        """The things that match, in order."""

    async def count(self, inquiry: Inquiry) -> int:
        """How many there are. Options do not matter."""

    async def plan(self, inquiry: Inquiry) -> Mapping[str, Any]:
        """How the first page would be come by now: `way`, `order`, `things`, `candidates`, `isIndexed`, `text`.

        It tells how many things there are, whoever may see them.
        """

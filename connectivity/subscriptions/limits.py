"""The limits of subscriptions, and the fault of a subscribe beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connectivity.authorization.quotas import Quantity, QuotaKey, Quotas, growth_by_one
from connectivity.fair_share import PeerShare
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import HistoryQuery, Query, SearchQuery, SessionQuery, SubscriptionKind

SHARED = 3
"""How many times the subscriptions of a single user all users of a connection share."""

MOST_TEXT = SHARED * 8 << 20
"""The length of the queries that all users of a connection share.

Each character of a query takes up to 14 bytes of memory.
"""

_ITEM = 10
"""How much each item of a list counts beside its characters: it takes as much memory as these."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """The timers (in seconds) and sizes of subscriptions.

    `max_per_user`: the open subscriptions of one user at a connection; `SHARED` times as many are shared by all its users.
    """

    idle_timeout: float = 60.0
    open_timeout: float = 15.0
    after_life: float = 10.0
    max_per_user: int = 10_000
    page_items: int = 500
    page_bytes: int = 1 << 20


def limit_fault(kind: SubscriptionKind, place: PeerShare, text: PeerShare | None) -> Fault:
    """Return the fault of a subscribe by a peer one of whose shares is used up.

    `place` is its share of the subscriptions, `text` that of the length of their queries, if this one has a length.
    """
    share, used, unit = place, "it has", "open subscriptions at this connection"
    if text is not None and place.has_room:
        share, used, unit = text, "its open subscriptions have queries of", "characters at this connection"
    return Fault(
        429,
        _code(kind),
        f"This user has used up its share: {used} {share.user.used} {unit}, {share.used} of "
        f"them in this session; all users together have {share.total.used} of at most {share.total.most}.",
        "Cancel subscriptions that you no longer need, or wait until some end.",
    )


def query_length(query: Query) -> int:
    """Return the length of a query's filter and other parameters."""
    match query:
        case HistoryQuery(filter=text):
            return len(text or "")
        case SearchQuery():
            plain = len(query.filter or "") + len(query.aggregation or b"")
            lists = [length_of_lists(text) for text in (query.options, query.fields) if text is not None]
            return plain + sum(lists) + sum([_ITEM + len(name) for name in query.namespaces])
        case SessionQuery():
            return query.length
        case _:
            return 0


def length_of_lists(text: str) -> int:
    """Return the length of a text that may have lists, whose items are behind commas."""
    return len(text) + _ITEM * text.count(",")


class SubscriptionQuotas:
    """The quotas of open subscriptions, by subject and by the namespace of an entity."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def take(self, kind: SubscriptionKind, entity: EntityId | None, subjects: Sequence[str]) -> Fault | None:
        """Add a subscription to the use of these; return the fault, and add nothing, if a quota is exceeded."""
        if self._quotas.is_empty or (exceeded := self._quotas.take(_growth(entity, subjects))) is None:
            return None
        message = f"A quota of subscriptions is used up: {exceeded}."
        return Fault(429, _code(kind), message, "Cancel subscriptions, or ask the operator for a larger quota.")

    def give_back(self, entity: EntityId | None, subjects: Sequence[str]) -> None:
        """Subtract a subscription that has ended."""
        if not self._quotas.is_empty:
            self._quotas.give_back(_growth(entity, subjects))


def _growth(entity: EntityId | None, subjects: Sequence[str]) -> dict[QuotaKey, int]:
    return growth_by_one(Quantity.SUBSCRIPTIONS, subjects, () if entity is None else (entity.namespace,))


def _code(kind: SubscriptionKind) -> str:
    return "thing-search:subscription.limit" if kind is SubscriptionKind.SEARCH else "streaming.subscription.limit"

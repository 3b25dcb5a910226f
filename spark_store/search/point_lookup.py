"""Searches for one named thing: `eq(thingId,…)`, perhaps with further conditions.

They are answered from the present states at once, like a retrieve of the thing, unless the filter could take long. Queries
that name several things use the index: they may be large, and many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.json_values import encode_value
from spark_store.records import Snapshot
from spark_store.rql.ast import And, Compare, Field, FieldKind, In, Literal, LiteralKind, Operator, Predicate
from spark_store.rql.evaluator import MOST_BYTES, weight
from spark_store.rql.query import PAGE_BYTES, Budget, ReadRights, SearchHit, SortKey, ThingPage, ThingQuery
from spark_store.rql.search_evaluator import holds

_ID: Final = Field(FieldKind.DOCUMENT, ("thingId",))


def named_thing(predicate: Predicate | None) -> EntityId | None:
    """Return the only thing that a predicate can match; None if it names none, or several."""
    match predicate:
        case Compare(Operator.EQ, field, literal) if field == _ID:
            return _entity(literal)
        case In(field, (literal,)) if field == _ID:
            return _entity(literal)
        case And(parts):
            return next((found for part in parts if (found := named_thing(part)) is not None), None)
        case _:
            return None


def _entity(literal: Literal) -> EntityId | None:
    return parse_entity_id(EntityType.THING, str(literal.value)) if literal.kind is LiteralKind.TEXT else None


def thing_of(snapshot: Snapshot) -> dict[str, Any]:
    """A thing that is there, as a search has it. Raises ValueError for a deleted one."""
    if snapshot.state is None:
        raise ValueError(f"found {snapshot.entity} deleted, expected a thing")
    return {
        **snapshot.state,
        "_revision": snapshot.revision,
        "_created": snapshot.created,
        "_modified": snapshot.modified,
    }


class PointLookup:
    """Answers one query with this `named_thing`; `snapshot` returns the newest states."""

    __slots__ = ("_entity", "_snapshot")

    def __init__(self, entity: EntityId, snapshot: Callable[[EntityId], Snapshot | None]) -> None:
        self._entity = entity
        self._snapshot = snapshot

    def is_quick(self, question: ThingQuery) -> bool:
        """Whether the filter cannot hold other work for long: each part compares the whole thing at most."""
        predicate, snapshot = question.predicate, self._snapshot(self._entity)
        if isinstance(predicate, Compare | In) or predicate is None or snapshot is None or snapshot.state is None:
            return True
        return weight(predicate) * len(encode_value(snapshot.state)) <= MOST_BYTES

    def page(
        self,
        question: ThingQuery,
        rights: ReadRights,
        after: SortKey | None,
        limit: int,  # noqa: ARG002 - there is one thing at most
        budget: Budget,  # noqa: ARG002 - what takes a moment has no budget
        max_bytes: int = PAGE_BYTES,  # noqa: ARG002 - one thing is found however large it is
    ) -> ThingPage:
        """As `SqliteSearch.page`."""
        hit = self._visible_hit(question, rights) if after is None else None
        return ThingPage([] if hit is None else [hit], after, is_last=True)

    def _visible_hit(self, question: ThingQuery, rights: ReadRights) -> SearchHit | None:
        """Return the thing, if it matches, for a requester that sees it."""
        entity = self._entity
        if question.namespaces and entity.namespace not in question.namespaces:
            return None
        snapshot = self._snapshot(entity)
        if snapshot is None or snapshot.state is None or snapshot.policy is None:
            return None
        access = rights.access(snapshot.policy, entity.namespace)
        if access is None or (thing := access.view(whole := thing_of(snapshot))) is None:
            return None
        may = None if access.is_whole else access.may
        predicate = question.predicate
        # The filter on the ID alone is satisfied.
        if not isinstance(predicate, Compare | In) and predicate is not None and not holds(predicate, whole, may):
            return None
        return SearchHit(entity.id, thing)

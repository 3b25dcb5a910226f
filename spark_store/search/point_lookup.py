"""A search about one thing that it names itself: `eq(thingId,…)`, and this with further conditions.

There is nothing to look for then. Whoever knows the present states answers such a question at once, as he answers a retrieve
of the thing. What names several things is looked for like anything else: they may be large, and many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mappings.ids import EntityId, EntityType, parse_entity_id
from spark_store.records import Snapshot
from spark_store.rql.ast import And, Compare, Field, FieldKind, In, Literal, LiteralKind, Operator, Predicate
from spark_store.rql.query import PAGE_BYTES, Budget, Place, ReadRights, SearchHit, ThingPage, ThingQuery
from spark_store.rql.search_evaluator import holds

_ID: Final = Field(FieldKind.DOCUMENT, ("thingId",))


def named_thing(predicate: Predicate | None) -> EntityId | None:
    """The only thing that a predicate can hold for; None where it names none, or several."""
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
        raise ValueError(f"found {snapshot.entity} deleted, expected it to be there")
    return {
        **snapshot.state,
        "_revision": snapshot.revision,
        "_created": snapshot.created,
        "_modified": snapshot.modified,
    }


class PointLookup:
    """Answers one question, whose `named_thing` this is; `snapshot` knows the newest states."""

    __slots__ = ("_entity", "_snapshot")

    def __init__(self, entity: EntityId, snapshot: Callable[[EntityId], Snapshot | None]) -> None:
        self._entity = entity
        self._snapshot = snapshot

    def page(
        self,
        question: ThingQuery,
        rights: ReadRights,
        after: Place | None,
        limit: int,  # noqa: ARG002 - there is one thing at most
        budget: Budget,  # noqa: ARG002 - what takes a moment has no budget
        max_bytes: int = PAGE_BYTES,  # noqa: ARG002 - one thing is found however large it is
    ) -> ThingPage:
        """As `Search.page`."""
        hit = self._seen(question, rights) if after is None else None
        return ThingPage([] if hit is None else [hit], after, is_last=True)

    def _seen(self, question: ThingQuery, rights: ReadRights) -> SearchHit | None:
        """The thing, if it matches, for somebody who sees it."""
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
        # One that is about the id alone has named this thing.
        if not isinstance(predicate, Compare | In) and predicate is not None and not holds(predicate, whole, may):
            return None
        return SearchHit(entity.id, thing)

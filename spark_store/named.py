"""A search among things that it names itself: `eq(thingId,…)`, `in(thingId,…)`, and these with further conditions.

There is nothing to look for then. Whoever knows the present states answers such a question at once, in the order in which a
search answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from mappings.ids import EntityId, EntityType, parse_entity_id
from spark_store.asking import PAGE_BYTES, Budget, Found, Hit, Place, Question, Rights, Thing
from spark_store.records import Snapshot
from spark_store.rql.ast import And, Compare, Field, FieldKind, In, Literal, LiteralKind, Operator, Predicate
from spark_store.rql.order import compare, key_of, place_of
from spark_store.rql.search import May, holds

MOST: Final = 25
"""Of so many things the states are read in about a millisecond."""

_ID: Final = Field(FieldKind.DOCUMENT, ("thingId",))
_size: Final = msgspec.json.Encoder().encode


def named_things(predicate: Predicate | None) -> list[EntityId] | None:
    """The only things that a predicate can hold for; None where it names none, or too many."""
    match predicate:
        case Compare(Operator.EQ, field, literal) if field == _ID:
            return _entities([literal])
        case In(field, literals) if field == _ID and len(literals) <= MOST:
            return _entities(literals)
        case And(parts):
            return next((found for part in parts if (found := named_things(part)) is not None), None)
        case _:
            return None


def _entities(literals: Sequence[Literal]) -> list[EntityId]:
    ids = dict.fromkeys(str(literal.value) for literal in literals if literal.kind is LiteralKind.TEXT)
    found = (parse_entity_id(EntityType.THING, id) for id in ids)
    return [entity for entity in found if entity is not None]


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


class NamedThings:
    """Answers one question, whose `named_things` these are; `snapshot` knows the newest states."""

    __slots__ = ("_entities", "_snapshot")

    def __init__(self, entities: Sequence[EntityId], snapshot: Callable[[EntityId], Snapshot | None]) -> None:
        self._entities = entities
        self._snapshot = snapshot

    def page(
        self,
        question: Question,
        rights: Rights,
        after: Place | None,
        limit: int,
        budget: Budget,  # noqa: ARG002 - what takes a millisecond has no budget
        max_bytes: int = PAGE_BYTES,
    ) -> Found:
        """As `Search.page`."""
        if len(self._entities) == 1:
            # What most of these searches are: nothing has to be brought into order, and nothing is behind it.
            one = self._seen(self._entities[0], question, rights) if after is None else None
            return Found([] if one is None else [one.hit], after, is_last=True)
        order = question.order
        found: list[tuple[Place, Hit]] = []
        for entity in self._entities:
            if (seen := self._seen(entity, question, rights)) is not None:
                place = place_of(seen.whole, order, seen.may)
                if after is None or compare(place, after, order) > 0:
                    found.append((place, seen.hit))
        by = key_of(order)
        found.sort(key=lambda each: by(each[0]))
        taken = found[: _fitting(found[:limit], max_bytes)]
        behind = taken[-1][0] if taken else after
        return Found([hit for _, hit in taken], behind, len(taken) == len(found))

    def _seen(self, entity: EntityId, question: Question, rights: Rights) -> _Seen | None:
        """A thing that matches, for somebody who sees it."""
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
        return _Seen(whole, Hit(entity.id, thing), may)


class _Seen(NamedTuple):
    """A thing as it is and as it is shown, and what of it may be read; None for everything."""

    whole: Thing
    hit: Hit
    may: May | None


def _fitting(found: Sequence[tuple[Place, Hit]], max_bytes: int) -> int:
    """How many of these have so many bytes of JSON together; one has in any case."""
    if len(found) < 2:
        return len(found)
    left = max_bytes
    for number, (_, hit) in enumerate(found):
        left -= len(_size(hit.thing))
        if left < 0:
            return max(1, number)
    return len(found)

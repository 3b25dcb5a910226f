"""Decides on its state whether a thing matches a query for a requester, and its place in the order.

`spark_store.rql.search_evaluator` decides about the match, and the policy about the readable part. Of completely readable
states only the needed fields are parsed (`spark_store.rql.projection`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from mappings.ids import namespace_of
from mappings.json_values import decode_state
from mappings.model.metadata import METADATA_KEY
from spark_store.rql.ast import FieldKind
from spark_store.rql.evaluator import MOST_BYTES, weight
from spark_store.rql.order import TypeRank, sort_key
from spark_store.rql.partial_evaluator import fields
from spark_store.rql.projection import needles, reader
from spark_store.rql.query import (
    Access,
    ReadRights,
    SearchHit,
    SortField,
    SortKey,
    SortValue,
    ThingMetadata,
    ThingQuery,
    with_hidden,
)
from spark_store.rql.search_evaluator import holds
from spark_store.search.candidates import CachedCandidates
from spark_store.search.read_view import CandidateRow, ReadView, SearchTimeout


class Match(NamedTuple):
    """A thing and its place; without a thing, a place up to which nothing more was found."""

    place: SortKey
    hit: SearchHit | None
    size: int = 0
    """The size of its state in bytes."""


class Matcher:
    """Judges things for one page. `order` ends with the id."""

    def __init__(
        self,
        read_view: ReadView,
        question: ThingQuery,
        rights: ReadRights,
        order: Sequence[SortField],
        known: CachedCandidates,
    ) -> None:
        self._read_view = read_view
        self._rights = rights
        self._predicate = question.predicate
        self._weight = 0 if question.predicate is None else weight(question.predicate)
        self._namespaces = question.namespaces
        self._order = order
        self._sorts_by_id = len(order) == 1
        self._is_plain = self._sorts_by_id and self._predicate is None
        asked = [] if self._predicate is None else list(fields(self._predicate))
        asked += [sorting.field for sorting in self._order]
        self._needs_hidden = any(field.kind in (FieldKind.HIDDEN, FieldKind.INSTANT) for field in asked)
        if known.read is None:
            known.read = reader(asked)
        self._read_fields = known.read
        self._needles = needles(self._predicate)
        self._accesses: dict[tuple[str | None, str], Access | None] = {}

    def access(self, policy: str | None, thing_id: str) -> Access | None:
        place = (policy, namespace_of(thing_id))
        if place not in self._accesses:
            self._accesses[place] = None if policy is None else self._rights.access(policy, place[1])
        return self._accesses[place]

    def _tick(self) -> None:
        if self._read_view.clock.tick():
            raise SearchTimeout

    def match_row(self, row: CandidateRow) -> Match | None:
        """Return the thing of a row, or None if it does not match.

        Raises SearchTimeout: a few long texts may take as long as a search may.
        """
        self._tick()
        _, thing_id, revision, created, modified, policy, state = row
        for needle in self._needles:
            if needle not in state:
                return None
        if self._namespaces and namespace_of(thing_id) not in self._namespaces:
            return None
        access = self.access(policy, thing_id)
        if access is None:
            return None
        hidden = ThingMetadata(revision, created, modified)
        # Many comparisons of a large thing may take seconds; for others, calls of the clock would take longer.
        tick = self._tick if self._weight * len(state) > MOST_BYTES else None
        if access.is_whole and METADATA_KEY not in state:
            if not self._is_plain:
                seen = self._read_fields(state)
                if self._needs_hidden:
                    with_hidden(seen, hidden)
                if self._predicate is not None and not holds(self._predicate, seen, None, tick):
                    return None
            place = (SortValue(TypeRank.TEXT, thing_id),) if self._sorts_by_id else sort_key(seen, self._order)
            return Match(place, SearchHit(thing_id, text=state, hidden=hidden), len(state))
        thing = with_hidden(decode_state(state), hidden)
        may = None if access.is_whole else access.may
        if self._predicate is not None and not holds(self._predicate, thing, may, tick):
            return None
        shown = thing if access.is_whole else access.view(thing)
        if shown is None:
            return None
        return Match(sort_key(thing, self._order, may), SearchHit(thing_id, shown), len(state))

    def sees_everything(self, policies: Collection[str] | None) -> bool:
        """Whether the requester may certainly read everything of every visible thing of these policies."""
        namespaces = self._read_view.namespaces()
        if policies is None or namespaces is None:
            return False
        accesses = (self.access(policy, f"{name}:") for policy in policies for name in namespaces)
        return all(access is None or access.is_whole for access in accesses)

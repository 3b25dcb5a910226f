"""Searches for things by their IDs: how they are recognized, and their results."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from spark_store.records import Snapshot
from spark_store.rql.options import read_options
from spark_store.rql.query import Budget, Thing, ThingQuery
from spark_store.rql.search_evaluator import read
from spark_store.search.point_lookup import PointLookup, named_thing, thing_of
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, tzinfo=UTC)
STAMP = "2030-01-15T00:00:00.000000Z"


def thing(name: str, **attributes: Any) -> Snapshot:
    entity = EntityId(EntityType.THING, "acme", name)
    state = {"thingId": str(entity), "policyId": "acme:pol", "attributes": attributes}
    return Snapshot(entity, 1, STAMP, STAMP, state, "acme:pol")


class Everything:
    """A reader of everything except the policies in `hidden`."""

    subjects = frozenset({"acme:reader"})
    is_whole = True
    hidden: frozenset[str] = frozenset()

    def access(self, policy: str, namespace: str) -> Everything | None:
        return None if policy in self.hidden else self

    def may(self, path: Any) -> bool:
        return True

    def view(self, thing: Thing) -> Thing | None:
        return thing


@each_row(
    ("filter", "id"),
    [
        ('eq(thingId,"acme:a")', "acme:a"),
        ('in(thingId,"acme:a")', "acme:a"),
        ('in(thingId,"acme:a","acme:b")', None),
        ('eq(thingId,"no id")', None),
        ("eq(thingId,1)", None),
        ('and(exists(attributes/x),eq(thingId,"acme:a"))', "acme:a"),
        ('and(in(thingId,"acme:a","acme:b"),eq(thingId,"acme:b"))', "acme:b"),
        ('and(exists(attributes/x),and(eq(thingId,"acme:a"),exists(attributes/y)))', "acme:a"),
        ('eq(namespace,"acme")', None),
        ('ne(thingId,"acme:a")', None),
        ('like(thingId,"acme:*")', None),
        ('or(eq(thingId,"acme:a"),eq(thingId,"acme:b"))', None),
        ('not(eq(thingId,"acme:a"))', None),
        ('eq(attributes/thingId,"acme:a")', None),
    ],
)
def test_a_predicate_names_a_thing_or_does_not(filter: str, id: str | None) -> None:
    found = named_thing(read(filter, NOW))
    assert (None if found is None else found.id) == id


def test_no_predicate_names_nothing() -> None:
    assert named_thing(None) is None


def query(filter: str, options: str | None = None, *namespaces: str) -> ThingQuery:
    return ThingQuery(read(filter, NOW), read_options(options).order, frozenset(namespaces))


THINGS = {each.entity: each for each in (thing("a", n=2), thing("b", n=1))}


def search(question: ThingQuery, after: Any = None, snapshot: Any = THINGS.get) -> list[str]:
    entity = named_thing(question.predicate)
    assert entity is not None
    found = PointLookup(entity, snapshot).page(question, Everything(), after, 1, Budget(), 1)
    assert found.is_last
    return [hit.thing_id for hit in found.hits]


def test_the_thing_is_found_once_if_it_matches() -> None:
    question = query('and(eq(thingId,"acme:a"),gt(attributes/n,1))')
    assert search(question) == ["acme:a"]
    assert search(question, ("behind",)) == []
    assert search(query('and(eq(thingId,"acme:b"),gt(attributes/n,1))')) == []
    assert search(query('eq(thingId,"acme:none")')) == []


def test_a_point_lookup_returns_the_thing_with_its_metadata_fields() -> None:
    entity = EntityId(EntityType.THING, "acme", "a")
    question = query('eq(thingId,"acme:a")')
    (hit,) = PointLookup(entity, THINGS.get).page(question, Everything(), None, 1, Budget()).hits
    assert hit.thing == thing_of(THINGS[entity])


def test_namespaces_and_rights_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    question = 'eq(thingId,"acme:a")'
    assert search(query(question, None, "other")) == []
    assert search(query(question, None, "other", "acme")) == ["acme:a"]
    monkeypatch.setattr(Everything, "hidden", frozenset({"acme:pol"}))
    assert search(query(question)) == []


def test_a_deleted_thing_does_not_exist() -> None:
    gone = Snapshot(EntityId(EntityType.THING, "acme", "a"), 2, STAMP, STAMP, None, "acme:pol")
    assert search(query('eq(thingId,"acme:a")'), None, lambda _: gone) == []
    with pytest.raises(ValueError, match="deleted"):
        thing_of(gone)

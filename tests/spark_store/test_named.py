"""Searches among things that they name themselves: which those are, and what is answered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from spark_store.asking import Budget, Question, Thing
from spark_store.named import MOST, NamedThings, named_things, thing_of
from spark_store.records import Snapshot
from spark_store.rql.options import read_options
from spark_store.rql.search import read

NOW = datetime(2030, 1, 15, tzinfo=UTC)
STAMP = "2030-01-15T00:00:00.000000Z"


def thing(name: str, **attributes: Any) -> Snapshot:
    entity = EntityId(EntityType.THING, "acme", name)
    state = {"thingId": str(entity), "policyId": "acme:pol", "attributes": attributes}
    return Snapshot(entity, 1, STAMP, STAMP, state, "acme:pol")


class Everything:
    """Somebody who may read everything, but nothing of the policies in `hidden`."""

    subjects = frozenset({"acme:reader"})
    is_whole = True
    hidden: frozenset[str] = frozenset()

    def access(self, policy: str, namespace: str) -> Everything | None:
        return None if policy in self.hidden else self

    def may(self, path: Any) -> bool:
        return True

    def view(self, thing: Thing) -> Thing | None:
        return thing


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ('eq(thingId,"acme:a")', ["acme:a"]),
        ('in(thingId,"acme:a","acme:b","acme:a")', ["acme:a", "acme:b"]),
        ('in(thingId,"acme:a",1,null)', ["acme:a"]),
        ('eq(thingId,"no id")', []),
        ("eq(thingId,1)", []),
        ('and(exists(attributes/x),eq(thingId,"acme:a"))', ["acme:a"]),
        ('and(exists(attributes/x),and(eq(thingId,"acme:a"),exists(attributes/y)))', ["acme:a"]),
        ('eq(namespace,"acme")', None),
        ('ne(thingId,"acme:a")', None),
        ('like(thingId,"acme:*")', None),
        ('or(eq(thingId,"acme:a"),eq(thingId,"acme:b"))', None),
        ('not(eq(thingId,"acme:a"))', None),
        ('eq(attributes/thingId,"acme:a")', None),
        (f"in(thingId,{','.join(['1'] * (MOST + 1))})", None),
    ],
)
def test_a_predicate_names_things_or_does_not(filter: str, ids: list[str] | None) -> None:
    found = named_things(read(filter, NOW))
    assert (None if found is None else [entity.id for entity in found]) == ids


def test_no_predicate_names_nothing() -> None:
    assert named_things(None) is None


def asked(filter: str, options: str | None = None, *namespaces: str) -> Question:
    return Question(read(filter, NOW), read_options(options).order, frozenset(namespaces))


THINGS = {each.entity: each for each in (thing("a", n=2), thing("b", n=1), thing("c", n=2), thing("d"))}
ALL = 'in(thingId,"acme:a","acme:b","acme:c","acme:d","acme:e")'


def search(question: Question, limit: int = 100, after: Any = None, **options: Any) -> Any:
    return over(question, THINGS.get).page(question, Everything(), after, limit, Budget(), **options)


def over(question: Question, snapshot: Any) -> NamedThings:
    named = named_things(question.predicate)
    assert named is not None
    return NamedThings(named, snapshot)


def test_things_that_match_are_found_in_order() -> None:
    found = search(asked(f"and({ALL},exists(attributes/n))", "sort(-attributes/n)"))
    assert [hit.thing_id for hit in found.hits] == ["acme:a", "acme:c", "acme:b"]
    assert found.is_last
    assert found.hits[0].thing == thing_of(THINGS[EntityId(EntityType.THING, "acme", "a")])


def test_pages_follow_each_other_without_a_gap_or_a_repeat() -> None:
    question, after, ids = asked(ALL, "sort(+attributes/n)"), None, []
    while True:
        found = search(question, 1, after)
        ids += [hit.thing_id for hit in found.hits]
        after = found.place
        if found.is_last:
            break
    assert ids == ["acme:d", "acme:b", "acme:a", "acme:c"]


def test_a_page_ends_with_its_bytes_but_has_a_thing() -> None:
    one = search(asked(ALL), max_bytes=1)
    assert ([hit.thing_id for hit in one.hits], one.is_last) == (["acme:a"], False)
    assert len(search(asked(ALL), max_bytes=450).hits) == 2


def test_namespaces_and_rights_leave_things_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(asked(ALL, None, "other")).hits == []
    assert len(search(asked(ALL, None, "other", "acme")).hits) == 4
    monkeypatch.setattr(Everything, "hidden", frozenset({"acme:pol"}))
    assert search(asked(ALL)).hits == []


def test_a_thing_that_is_deleted_is_not_there() -> None:
    gone = Snapshot(EntityId(EntityType.THING, "acme", "a"), 2, STAMP, STAMP, None, "acme:pol")
    for question in (asked('eq(thingId,"acme:a")'), asked(ALL)):
        assert over(question, lambda _: gone).page(question, Everything(), None, 1, Budget()).hits == []
    with pytest.raises(ValueError, match="deleted"):
        thing_of(gone)


def test_one_thing_is_found_once() -> None:
    question = asked('and(eq(thingId,"acme:a"),gt(attributes/n,1))')
    first = search(question, 1)
    assert ([hit.thing_id for hit in first.hits], first.is_last) == (["acme:a"], True)
    assert search(asked('and(eq(thingId,"acme:b"),gt(attributes/n,1))')).hits == []
    assert search(question, 1, ("behind",)).hits == []

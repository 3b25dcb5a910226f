"""Results of a search."""

from __future__ import annotations

from spark_store.rql.query import Budget, SearchHit, ThingMetadata

_HIDDEN = ThingMetadata(3, "2024-05-01T10:00:00.000000Z", "2024-05-02T10:00:00.000000Z")


def test_an_index_hit_has_the_thing_of_its_text() -> None:
    hit = SearchHit("acme:a", text=b'{"thingId":"acme:a"}', hidden=_HIDDEN)
    assert hit.thing == {
        "thingId": "acme:a",
        "_revision": 3,
        "_created": _HIDDEN.created,
        "_modified": _HIDDEN.modified,
    }
    assert hit == SearchHit("acme:a", hit.thing)
    assert hit != SearchHit("acme:b", hit.thing)
    assert hit != SearchHit("acme:a", {"thingId": "acme:a"})


def test_a_budget_returns_the_unspent_time() -> None:
    assert Budget(seconds=1.0, spent=3.0).left() == -2.0

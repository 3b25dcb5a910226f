"""The readable parts of things for a search, by the table of the permissions of searches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from connectivity.authorization.enforcer import Enforcer
from connectivity.twins.access import ThingRights
from connectivity.twins.incarnations import WithoutPast
from mappings.ids import EntityId
from spark_store.records import Snapshot
from spark_store.rql.options import read_options
from spark_store.rql.order import sort_key
from spark_store.rql.parser import parse
from spark_store.rql.query import Access
from spark_store.rql.search_evaluator import holds
from spark_store.search.aggregation import GroupAccumulator, read_aggregation
from tests.support.table import each_row

READER = "acme:reader"
GRANT, REVOKE = {"grant": ["READ"], "revoke": []}, {"grant": [], "revoke": ["READ"]}
THING = {
    "thingId": "acme:lamp",
    "policyId": "acme:pol",
    "attributes": {"a": 1, "b": 1},
    "features": {"lamp": {"properties": {"on": True}}},
    "_revision": 3,
    "_created": "2030-01-15T00:00:00.000000Z",
    "_modified": "2030-01-15T00:00:00.000000Z",
    "_metadata": {"attributes": {"a": {"unit": "A"}, "b": {"unit": "B"}}},
}


class OnePolicy(WithoutPast):
    """A state lookup with one policy, which grants and revokes READ on resources."""

    def __init__(self, resources: Mapping[str, Any]) -> None:
        entry = {"subjects": {READER: {"type": "test"}}, "resources": resources}
        self._enforcer = Enforcer({"entries": {"reader": entry}})
        self.requests: list[tuple[str, str | None]] = []

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        raise AssertionError(f"nobody needs the state of {entity}")

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:
        self.requests.append((policy_id, namespace))
        return self._enforcer if policy_id == "acme:pol" else None


def access(**resources: Any) -> Access | None:
    """Return the reader's access by a policy with these resources, `__` for `/`."""
    found = {"thing:/" + path.replace("__", "/"): permissions for path, permissions in resources.items()}
    return ThingRights(OnePolicy(found), (READER,)).access("acme:pol", "acme")


ROOT = {"": GRANT}
ONLY_A = {"attributes__a": GRANT}
NO_LAMP = {"": GRANT, "features__lamp": REVOKE}
NO_ATTRIBUTES_BUT_A = {"": GRANT, "attributes": REVOKE, "attributes__a": GRANT}


@each_row(
    ("resources", "filter", "found"),
    [
        (ROOT, "eq(attributes/a,1)", True),
        (ROOT, "eq(attributes/a,2)", False),
        (ONLY_A, "eq(attributes/a,1)", True),
        (ONLY_A, "eq(attributes/b,1)", False),
        (ONLY_A, "and(eq(attributes/a,1),eq(attributes/b,1))", False),
        (ONLY_A, "or(eq(attributes/a,1),eq(attributes/b,1))", True),
        (ONLY_A, "not(eq(attributes/b,1))", True),
        (ONLY_A, "gt(_revision,0)", False),
        (ONLY_A, 'eq(policyId,"acme:pol")', False),
        (ONLY_A, 'eq(thingId,"acme:lamp")', True),
        (ONLY_A, 'eq(namespace,"acme")', True),
        (ONLY_A, "exists(features/*)", True),
        (ONLY_A, 'eq(_metadata/attributes/a/unit,"A")', True),
        (ONLY_A, 'eq(_metadata/attributes/b/unit,"B")', False),
        (NO_LAMP, "exists(features/lamp)", False),
        (NO_LAMP, "eq(features/*/properties/on,true)", False),
        (NO_LAMP, "empty(features/lamp)", False),
        (NO_LAMP, "gt(_revision,0)", True),
        (NO_ATTRIBUTES_BUT_A, "eq(attributes/a,1)", True),
        (NO_ATTRIBUTES_BUT_A, "eq(attributes/b,1)", False),
        (NO_ATTRIBUTES_BUT_A, 'eq(_metadata/attributes/b/unit,"B")', False),
    ],
)
def test_a_predicate_matches_only_readable_fields(resources: dict[str, Any], filter: str, found: bool) -> None:
    granted = access(**resources)
    assert granted is not None
    assert granted.view(THING) is not None
    assert holds(parse(filter), THING, granted.may) is found


WITH_PARTS = {
    **THING,
    "attributes": {"parts": [{"name": "pump", "worn": 1}, {"1": {"worn": 2}}], "rooms": {"1": {"worn": 3}}},
    "features": {"lamp": {"properties": {"parts": [{"worn": 1}]}}},
}
NOT_WORN = {
    "": GRANT,
    "attributes__parts__worn": REVOKE,
    "attributes__parts__1__worn": REVOKE,
    "features__lamp__properties__parts__worn": REVOKE,
}
ONE_ROOM = {"attributes__rooms__1": GRANT}


@each_row(
    ("resources", "filter", "found"),
    [
        (ROOT, "eq(attributes/parts/0/worn,1)", True),
        (NOT_WORN, 'eq(attributes/parts/0/name,"pump")', True),
        (NOT_WORN, "eq(attributes/parts/worn,1)", False),
        (NOT_WORN, "eq(attributes/parts/0/worn,1)", False),
        (NOT_WORN, "exists(attributes/parts/0/worn)", False),
        (NOT_WORN, "in(attributes/parts/1/1/worn,2)", False),
        (NOT_WORN, "eq(features/lamp/properties/parts/0/worn,1)", False),
        (NOT_WORN, "eq(features/*/properties/parts/0/worn,1)", False),
        (NOT_WORN, "eq(attributes/rooms/1/worn,3)", True),
        (ONE_ROOM, "eq(attributes/rooms/1/worn,3)", True),
        (ONE_ROOM, "eq(attributes/parts/0/worn,1)", False),
    ],
)
def test_the_number_of_an_element_leads_to_nothing_that_may_not_be_read(
    resources: dict[str, Any], filter: str, found: bool
) -> None:
    granted = access(**resources)
    assert granted is not None
    assert holds(parse(filter), WITH_PARTS, granted.may) is found


@pytest.mark.parametrize(("resources", "place"), [(ROOT, 1), (NOT_WORN, None)])
def test_an_order_or_a_sum_does_not_reveal_unreadable_array_items(resources: dict[str, Any], place: int | None) -> None:
    granted = access(**resources)
    assert granted is not None
    order = read_options("sort(+attributes/parts/0/worn)").order
    assert sort_key(WITH_PARTS, order, granted.may)[0].value == place
    tally = GroupAccumulator(
        read_aggregation(
            {
                "groupBy": {"own": "attributes/parts/0/worn"},
                "measures": {"any": {"max": "features/*/properties/parts/0/worn"}},
            }
        )
    )
    tally.add(WITH_PARTS, granted.may)
    assert tally.rows() == [{"own": place, "count": 1, "any": place}]


def test_a_subject_without_read_permission_sees_no_thing() -> None:
    assert access() is None
    assert access(**{"": REVOKE}) is None
    assert access(attributes={"grant": ["READ"], "revoke": ["READ"]}) is None
    assert ThingRights(OnePolicy({"thing:/": GRANT}), ("acme:stranger",)).access("acme:pol", "acme") is None
    assert ThingRights(OnePolicy({"thing:/": GRANT}), (READER,)).access("acme:other", "acme") is None


@pytest.mark.parametrize(
    ("resources", "is_seen"),
    [
        (ONLY_A, True),
        ({"attributes__none": GRANT}, False),
        ({"attributes__a__none": GRANT}, False),
        ({"thingId": GRANT}, True),
        ({"features__lamp__properties__on": GRANT}, True),
        ({"": GRANT, "attributes": REVOKE, "features": REVOKE, "policyId": REVOKE, "thingId": REVOKE}, True),
    ],
)
def test_a_thing_is_visible_if_an_existing_part_is_readable(resources: dict[str, Any], is_seen: bool) -> None:
    granted = access(**resources)
    assert granted is not None
    assert (granted.view(THING) is not None) is is_seen


def test_a_view_contains_the_readable_fields_and_the_public_fields() -> None:
    granted = access(**ONLY_A)
    assert granted is not None
    assert granted.view(THING) == {
        "thingId": "acme:lamp",
        "attributes": {"a": 1},
        "_revision": 3,
        "_created": THING["_created"],
        "_modified": THING["_modified"],
        "_metadata": {"attributes": {"a": {"unit": "A"}}},
    }


def test_a_subject_with_full_read_permission_sees_the_thing_itself() -> None:
    granted = access(**ROOT)
    assert granted is not None
    assert granted.is_whole
    assert granted.view(THING) is THING
    partly = access(**NO_LAMP)
    assert partly is not None
    assert not partly.is_whole


def test_a_tilde_in_a_name_is_a_tilde() -> None:
    granted = access(**{"": GRANT, "attributes__a~0b": REVOKE})
    assert granted is not None
    assert not granted.may(("attributes", "a~b"))
    assert granted.may(("attributes", "a~0b"))


def test_a_policy_is_looked_up_once_for_each_namespace() -> None:
    lookup = OnePolicy({"thing:/": GRANT})
    rights = ThingRights(lookup, (READER,))
    for namespace in ("acme", "acme", "lab"):
        rights.access("acme:pol", namespace)
    assert lookup.requests == [("acme:pol", "acme"), ("acme:pol", "lab")]

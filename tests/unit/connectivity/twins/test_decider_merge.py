"""Merging into things."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.table import each_row
from tests.support.twin_harness import (
    MERGE_PATCH,
    OWNER,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
    answer,
    entry,
    granting,
    last,
    revoking,
    twin_harness,
)


@pytest.mark.parametrize("content_type", [None, "application/json", 5])
def test_case_41_a_merge_needs_its_content_type(content_type: Any) -> None:
    refused = twin_harness().refused("merge", "/attributes", {"a": 1}, content_type=content_type)
    assert refused == (415, "mediatype.unsupported")


def test_case_42_a_merge_sets_and_deletes() -> None:
    harness = twin_harness(attributes={"b": 2, "c": {"d": 3, "e": 4}})
    patch = {"a": 1, "b": None, "c": {"d": None}}
    decision = harness.send("merge", "/attributes", patch)
    assert (decision.response.action, decision.response.status, decision.response.value) == ("merge", 204, None)
    assert decision.response.headers["content-type"] == MERGE_PATCH
    assert last(harness) == ("merged", "/attributes", patch, 2)
    assert harness.get("/attributes") == {"a": 1, "c": {"e": 4}}


def test_case_43_a_merge_creates_missing_parents() -> None:
    harness = twin_harness()
    assert harness.status("merge", "/features/new/properties/p", 1) == 204
    assert last(harness) == ("merged", "/features/new/properties/p", 1, 2)
    assert harness.get("/features") == {"new": {"properties": {"p": 1}}}


def test_case_44_a_merge_into_a_missing_thing_creates_it_without_nulls() -> None:
    harness = TwinHarness()
    decision = harness.send("merge", "/", {"attributes": {"a": 1, "b": None, "c": [None, {"d": None}]}})
    assert (decision.response.action, decision.response.status) == ("create", 201)
    assert decision.response.headers["content-type"] == "application/json"
    assert answer(decision)["attributes"] == {"a": 1, "c": [{}]}
    assert last(harness)[:2] == ("created", "/")
    assert TwinHarness().refused("merge", "/attributes", {"a": 1}) == (404, "things:thing.notfound")


@each_row(
    ("path", "patch", "code"),
    [
        ("/", {}, "things:merge.invalid"),
        ("/", None, "things:merge.invalid"),
        ("/", {"thingId": None}, "things:id.notdeletable"),
        ("/", {"thingId": "acme.plant:other"}, "things:id.notsettable"),
        ("/", {"policyId": None}, "things:policyId.notdeletable"),
        ("/", {"{{ ~thing.*~ }}": None}, "things:id.notdeletable"),
        ("/", {"{{ /policy.*/ }}": None}, "json.key.invalid"),
        ("/", {"{{ ~policy.*~ }}": None}, "things:policyId.notdeletable"),
        ("/", {"attributes": 5}, "json.invalid"),
        ("/", {"definition": 5}, "json.invalid"),
        ("/", [1], "json.invalid"),
        ("/attributes", "x", "json.invalid"),
        ("/definition", 5, "json.invalid"),
        ("/policyId", None, "things:policyId.notdeletable"),
        ("/attributes", {"a/b": 1}, "json.key.invalid"),
        ("/features/f", {"definition": []}, "things:feature.definition.empty"),
        ("/attributes", {"{{ ~(~ }}": None}, "things:merge.invalid"),
        ("/attributes", {"{{ ~(a+)+~ }}": None}, "things:merge.invalid"),
    ],
)
def test_case_45_patches_that_are_refused(path: str, patch: Any, code: str) -> None:
    assert twin_harness(attributes={"a": 1}).refused("merge", path, patch) == (400, code)


def test_case_46_a_delete_pattern_takes_the_keys_that_it_matches() -> None:
    harness = twin_harness(attributes={"2029-01": 1, "2029-02": 2, "2030-01": 3})
    patch = {"{{ ~2029-.*~ }}": None, "2030-02": 4}
    harness.send("merge", "/attributes", patch)
    assert harness.get("/attributes") == {"2030-01": 3, "2030-02": 4}
    assert last(harness)[2] == patch


def test_a_delete_pattern_takes_features_and_members() -> None:
    harness = twin_harness(
        attributes={"a": 1}, features={"f1": {}, "f2": {}, "g": {"properties": {}, "desiredProperties": {}}}
    )
    harness.send("merge", "/", {"{{ ~attr.*~ }}": None, "features": {"{{ ~f.~ }}": None, "g": {"{{ ~des.*~ }}": None}}})
    assert harness.get() == {"thingId": THING, "policyId": POLICY, "features": {"g": {"properties": {}}}}


def test_case_47_a_pattern_with_a_value_is_a_key() -> None:
    harness = twin_harness()
    harness.send("merge", "/attributes", {"{{ ~a~ }}": 1})
    assert harness.get("/attributes") == {"{{ ~a~ }}": 1}


def test_case_49_deleting_a_missing_value_succeeds() -> None:
    harness = twin_harness()
    before = harness.get()
    assert harness.status("merge", "/attributes/none", None) == 204
    assert last(harness) == ("merged", "/attributes/none", None, 2)
    assert harness.get() == before


def test_null_at_a_path_deletes_it() -> None:
    harness = twin_harness(attributes={"a": 1}, definition="a:b:1")
    for path in ("/attributes", "/definition"):
        headers = harness.send("merge", path, None).response.headers
        assert "etag" not in headers
    assert harness.get() == {"thingId": THING, "policyId": POLICY}


def test_nulls_are_stripped_at_every_depth_where_an_object_is_new() -> None:
    """Decided: according to RFC 7396, at every level."""
    harness = twin_harness()
    harness.send("merge", "/attributes", {"a": {"b": {"c": None, "d": 1}}})
    assert harness.get("/attributes") == {"a": {"b": {"d": 1}}}


def test_unknown_members_of_a_patch_are_dropped_from_its_event() -> None:
    harness = twin_harness()
    harness.send("merge", "/", {"foo": 1, "attributes": {"a": 1}, "features": {"f": {"odd": 1, "properties": {}}}})
    assert last(harness)[2] == {"attributes": {"a": 1}, "features": {"f": {"properties": {}}}}


def harness_with_parts() -> TwinHarness:
    harness = twin_harness(attributes={"serial": "B7", "lock": 1})
    harness.write_policy(
        {"WRITE": entry([VIEWER], {"thing:/": granting("READ", "WRITE"), "thing:/attributes/lock": revoking("WRITE")})}
    )
    return harness


@each_row(
    ("path", "patch", "is_allowed"),
    [
        ("/attributes", {"serial": "Z"}, True),
        ("/attributes", {"lock": 2}, False),
        ("/attributes", {"lock": None}, False),
        ("/attributes", {"lock": {"below": 1}}, False),
        ("/attributes", None, False),
        ("/attributes", {}, False),
        ("/", {"attributes": {"serial": 1}}, True),
        ("/", {"attributes": {"serial": 1, "lock": 1}}, False),
        ("/attributes", {"{{ ~serial~ }}": None}, False),
        ("/features", {"{{ ~f~ }}": None}, True),
    ],
)
def test_case_50_a_merge_needs_write_wherever_it_writes(path: str, patch: Any, is_allowed: bool) -> None:
    harness = harness_with_parts()
    if is_allowed:
        assert harness.status("merge", path, patch, by=[VIEWER]) == 204
    else:
        assert harness.refused("merge", path, patch, by=[VIEWER]) == (403, "things:thing.notmodifiable")


def test_merging_elsewhere_is_forbidden_without_any_write_there() -> None:
    harness = twin_harness()
    assert harness.refused("merge", "/definition", "a:b:1", by=[VIEWER]) == (404, "things:thing.notfound")
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/": granting("READ")})})
    assert harness.refused("merge", "/definition", "a:b:1", by=[VIEWER]) == (403, "things:thing.notmodifiable")
    assert harness.status("merge", "/definition", "a:b:1", by=[VIEWER, OWNER]) == 204


def test_case_87_a_minimized_merge_keeps_only_the_changed_values() -> None:
    harness = twin_harness(attributes={"a": 1, "b": {"c": 2, "d": 3}, "old": 0})
    patch = {"a": 1, "b": {"c": 2, "d": 4, "e": None}, "new": True, "{{ ~none~ }}": None, "{{ ~old~ }}": None}
    harness.send("merge", "/attributes", patch, if_equal="skip-minimizing-merge")
    assert last(harness)[2] == {"b": {"d": 4}, "new": True, "{{ ~old~ }}": None}
    assert harness.refused("merge", "/attributes", {"a": 1}, if_equal="skip-minimizing-merge") == (
        412,
        "things:precondition.failed",
    )


@pytest.mark.parametrize(
    ("path", "patch", "is_skipped"),
    [
        ("/attributes", {"a": 1}, True),
        ("/attributes", {"none": None}, True),
        ("/attributes/none", None, True),
        ("/attributes", {"a": True}, False),
        ("/attributes", {"b": {}}, False),
        ("/attributes/a", 1, True),
        ("/attributes/a", None, False),
    ],
)
def test_if_equal_skip_refuses_a_merge_that_changes_nothing(path: str, patch: Any, is_skipped: bool) -> None:
    harness = twin_harness(attributes={"a": 1})
    if is_skipped:
        assert harness.refused("merge", path, patch, if_equal="skip") == (412, "things:precondition.failed")
    else:
        assert harness.status("merge", path, patch, if_equal="skip") == 204


# --- conditions for parts of a patch ---


def _power(harness: TwinHarness, condition: Any, *, path: str = "features/burner/properties/power") -> int:
    patch = {"features": {"burner": {"properties": {"power": 4, "on": True}}}}
    return harness.status("merge", "/", patch, merge_thing_patch_conditions={path: condition})


def test_case_48_a_part_of_a_patch_whose_condition_fails_is_skipped() -> None:
    harness = twin_harness(features={"burner": {"properties": {"power": 3}}})
    assert _power(harness, "gt(features/burner/properties/power,5)") == 204
    assert last(harness) == ("merged", "/", {"features": {"burner": {"properties": {"on": True}}}}, 2)
    assert harness.get("/features/burner/properties") == {"power": 3, "on": True}
    assert _power(harness, "gt(features/burner/properties/power,2)", path="/features/burner/properties/power/") == 204
    assert harness.get("/features/burner/properties/power") == 4


def test_conditions_of_a_patch_are_relative_to_its_path_and_see_the_thing_before_it() -> None:
    harness = twin_harness(attributes={"a": 1, "b": 1})
    conditions = {"a": "eq(attributes/b,1)", "b": "eq(attributes/a,1)", "none/at/all": "eq(attributes/a,7)"}
    harness.send("merge", "/attributes", {"a": 2, "b": 2}, merge_thing_patch_conditions=conditions)
    assert harness.get("/attributes") == {"a": 2, "b": 2}
    harness.send(
        "merge",
        "/attributes",
        {"a": None, "c": {"d": 1}},
        merge_thing_patch_conditions={
            "a": "eq(attributes/a,1)",
            "c/d": "exists(attributes/none)",
        },
    )
    assert last(harness) == ("merged", "/attributes", {"c": {}}, 3)
    assert harness.status("merge", "/attributes/a", 5, merge_thing_patch_conditions={"x": "eq(attributes/a,7)"}) == 204
    assert harness.get("/attributes/a") == 5


def test_a_patch_keeps_its_spelling_where_nothing_is_left_out() -> None:
    harness = twin_harness(attributes={"a": 1})
    harness.send("merge", "/attributes", b'{"a":1.50}', merge_thing_patch_conditions={"a": "eq(attributes/a,1)"})
    assert harness.events[-1].value == b'{"a":1.50}'


@pytest.mark.parametrize(
    ("conditions", "refusal"),
    [
        ({"a": "gt("}, (400, "rql.expression.invalid")),
        ({"a": 5}, (400, "header.invalid")),
        ({"a//b": "exists(attributes/a)"}, (400, "header.invalid")),
        ({"/": "exists(attributes/a)"}, (400, "header.invalid")),
        ("a", (400, "header.invalid")),
        ({"a": "eq(attributes/secret,1)"}, (412, "things:condition.failed")),
    ],
)
def test_conditions_of_a_patch_that_cannot_be_evaluated(conditions: Any, refusal: tuple[int, str]) -> None:
    harness = twin_harness(attributes={"a": 1, "secret": 1})
    harness.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ", "WRITE"), "thing:/attributes/secret": revoking("READ")})}
    )
    found = harness.refused("merge", "/attributes", {"a": 1}, by=[VIEWER], merge_thing_patch_conditions=conditions)
    assert found == refusal


def test_conditions_of_a_patch_do_not_apply_to_a_created_thing() -> None:
    conditions = {"attributes/a": "exists(attributes/none)"}
    harness = TwinHarness()
    assert harness.status("merge", "/", {"attributes": {"a": 1}}, merge_thing_patch_conditions=conditions) == 201
    assert harness.get("/attributes/a") == 1


def test_a_patch_whose_parts_are_all_skipped_equals_the_current_state() -> None:
    harness = twin_harness(attributes={"a": 1})
    asked = {"if_equal": "skip", "merge_thing_patch_conditions": {"a": "eq(attributes/a,7)"}}
    assert harness.refused("merge", "/attributes", {"a": 2}, **asked) == (412, "things:precondition.failed")

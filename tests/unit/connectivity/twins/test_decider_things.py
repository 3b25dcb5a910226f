"""Things as a whole and their parts, as conversations: command in, answer and event out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from connectivity.twins.context import TwinLimits
from mappings.ids import EntityId, EntityType
from tests.support.table import each_row
from tests.support.twin_harness import OWNER, POLICY, THING, TwinHarness, answer, last, policy, thing, twin_harness

OTHER = "acme.plant:boiler-08"


def test_case_01_create_with_a_readable_policy() -> None:
    harness = TwinHarness()
    harness.write_policy({})
    decision = harness.send("create", "/", {"policyId": POLICY, "attributes": {"serial": "B7"}})
    whole = {"thingId": THING, "policyId": POLICY, "attributes": {"serial": "B7"}}
    assert (decision.response.status, answer(decision)) == (201, whole)
    assert decision.response.headers["etag"] == '"rev:1"'
    assert decision.response.headers["entity-revision"] == 1
    assert decision.response.headers["content-type"] == "application/json"
    assert decision.response.headers["correlation-id"] == "c-1"
    assert last(harness) == ("created", "/", whole, 1)


def test_case_02_create_of_an_existing_thing_with_policy_is_a_conflict() -> None:
    assert twin_harness().refused("create", "/", {"policyId": POLICY}) == (409, "things:thing.conflict")


def test_case_03_create_of_an_existing_thing_without_policy_meets_its_implicit_policy() -> None:
    harness = TwinHarness()
    harness.send("create", "/", {})
    assert harness.refused("create", "/", {}) == (400, "things:thing.notcreatable")


def test_create_without_policy_of_a_thing_under_another_policy_is_a_conflict() -> None:
    """The implicit policy could be made; it is not left behind."""
    assert twin_harness().refused("create", "/", {}) == (409, "things:thing.conflict")


def test_case_04_modify_of_a_missing_thing_creates_it() -> None:
    harness = TwinHarness()
    decision = harness.send("modify", "/", {"attributes": {"a": 1}})
    assert (decision.response.action, decision.response.status) == ("create", 201)
    assert last(harness)[:2] == ("created", "/")


def test_case_05_modify_removes_the_fields_that_it_does_not_mention() -> None:
    harness = twin_harness(attributes={"a": 1}, features={"burner": {}})
    decision = harness.send("modify", "/", {"attributes": {"b": 2}})
    whole = {"thingId": THING, "policyId": POLICY, "attributes": {"b": 2}}
    assert (decision.response.status, decision.response.value) == (204, None)
    assert decision.response.headers["etag"] == '"rev:2"'
    assert last(harness) == ("modified", "/", whole, 2)
    assert harness.get() == whole


def test_case_06_modify_without_policy_id_keeps_it() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/", {}) == 204
    assert harness.get("/policyId") == POLICY


@pytest.mark.parametrize("action", ["create", "modify", "merge"])
def test_case_07_another_thing_id_in_the_value_is_refused(action: str) -> None:
    harness = TwinHarness() if action == "create" else twin_harness()
    assert harness.refused(action, "/", {"thingId": OTHER}) == (400, "things:id.notsettable")


@pytest.mark.parametrize(
    ("action", "path", "value"),
    [("modify", "/attributes/a", 1), ("delete", "/", ...), ("retrieve", "/", ...), ("merge", "/attributes", {"a": 1})],
)
def test_case_08_09_a_command_on_a_missing_thing_returns_not_found(action: str, path: str, value: Any) -> None:
    assert TwinHarness().refused(action, path, value) == (404, "things:thing.notfound")


def test_case_10_delete() -> None:
    harness = twin_harness()
    decision = harness.send("delete")
    assert (decision.response.status, decision.response.value) == (204, None)
    assert decision.response.headers["entity-revision"] == 2
    assert "etag" not in decision.response.headers
    assert last(harness) == ("deleted", "/", None, 2)
    assert harness.refused("retrieve") == (404, "things:thing.notfound")


def test_case_11_a_command_on_a_deleted_thing_returns_not_found() -> None:
    harness = twin_harness()
    harness.send("delete")
    assert harness.refused("delete") == (404, "things:thing.notfound")
    assert harness.refused("modify", "/attributes/a", 1) == (404, "things:thing.notfound")


def test_case_12_a_thing_created_again_continues_counting() -> None:
    harness = twin_harness()
    harness.send("delete")
    harness.now = "2031-01-01T00:00:00.000000Z"
    assert harness.status("create", "/", {"policyId": POLICY}) == 201
    assert last(harness)[3] == 3
    assert harness.get(fields="_created,_revision") == {"_created": "2031-01-01T00:00:00Z", "_revision": 3}


def test_case_13_create_after_delete_meets_the_implicit_policy() -> None:
    harness = TwinHarness()
    harness.send("create", "/", {})
    harness.send("delete")
    assert harness.refused("create", "/", {}) == (400, "things:thing.notcreatable")


def test_case_15_a_thing_may_have_an_empty_namespace() -> None:
    assert TwinHarness().status("create", "/", {}, to=EntityId(EntityType.THING, "", "n")) == 201


@each_row(
    ("value", "code"),
    [
        ({"attributes": []}, "json.invalid"),
        ({"features": {"f": 1}}, "json.invalid"),
        ({"features": {"f": {"properties": 1}}}, "json.invalid"),
        ({"features": {"f": {"definition": 1}}}, "json.invalid"),
        ({"policyId": 5}, "json.invalid"),
        ({"policyId": "bad id/"}, "policies:id.invalid"),
        ({"definition": 5}, "json.format.invalid"),
        ({"definition": "bad"}, "things:definition.identifier.invalid"),
        ([1], "json.format.invalid"),
        (..., "json.invalid"),
        (b"{", "json.invalid"),
        (b"1e999", "json.invalid"),
        (b"[" * 3000 + b"]" * 3000, "json.invalid"),
        (b'{"attributes":{"a":' + b"[" * 198 + b"]" * 198 + b"}}", None),
        (b'{"attributes":{"a":' + b"[" * 199 + b"]" * 199 + b"}}", "json.invalid"),
        (b'{"attributes":{"a":"x\\u0000"}}', "json.invalid"),
        (b'{"attributes":{"a":[{"x\\u0000":1}]}}', "json.key.invalid"),
    ],
)
def test_case_16_values_of_the_wrong_form(value: Any, code: str | None) -> None:
    if code is None:
        assert TwinHarness().status("create", "/", value) == 201
    else:
        assert TwinHarness().refused("create", "/", value) == (400, code)


def test_case_16_unknown_members_are_dropped() -> None:
    harness = TwinHarness()
    given = {"foo": 1, "_revision": 7, "features": {"f": {"properties": {"p": 1}, "odd": 2}}}
    assert answer(harness.send("create", "/", given)) == {
        "thingId": THING,
        "policyId": THING,
        "features": {"f": {"properties": {"p": 1}}},
    }


@pytest.mark.parametrize(("spare", "status"), [(0, 201), (1, 413)])
def test_case_17_the_largest_thing(spare: int, status: int) -> None:
    """Exactly the limit is accepted, one more is not."""
    limits = TwinLimits()
    frame = len(msgspec.json.encode({"thingId": THING, "policyId": POLICY, "attributes": {"a": ""}}))
    harness = TwinHarness(limits)
    harness.write_policy({})
    value = {"policyId": POLICY, "attributes": {"a": "x" * (limits.thing - frame + spare)}}
    if status == 201:
        assert harness.status("create", "/", value) == 201
    else:
        assert harness.refused("create", "/", value) == (413, "things:thing.toolarge")


@pytest.mark.parametrize(("letters", "status"), [(100_000, 201), (102_400, 413)])
def test_the_size_of_a_new_thing_does_not_depend_on_escapes(letters: int, status: int) -> None:
    text = b"\\u0061" * 1_000 + b"a" * (letters - 1_000)
    value = b'{"policyId": "%s", "attributes": {"a": "%s"}}' % (POLICY.encode(), text)
    harness = TwinHarness()
    harness.write_policy({})
    if status == 201:
        assert harness.status("create", "/", value) == 201
    else:
        assert harness.refused("create", "/", value) == (413, "things:thing.toolarge")


@pytest.mark.parametrize("action", ["modify", "merge"])
def test_case_18_a_part_may_not_make_the_thing_too_large(action: str) -> None:
    harness = twin_harness(attributes={"a": "x" * 100_000})
    assert harness.refused(action, "/attributes/b", "y" * 3_000) == (413, "things:thing.toolarge")


@pytest.mark.parametrize(
    ("to", "code"), [(thing(THING), "things:thing.toolarge"), (policy(POLICY), "policies:policy.toolarge")]
)
def test_a_value_that_no_thing_has_with_its_policy_is_refused_unread(to: EntityId, code: str) -> None:
    """To read many small values takes longer than other clients should wait."""
    unreadable = b"{" * 204_800
    assert TwinHarness().refused("create", "/", unreadable, to=to) == (400, "json.invalid")
    assert TwinHarness().refused("create", "/", unreadable + b"{", to=to) == (413, code)


@pytest.mark.parametrize("path", ["/", "/attributes/a"])
def test_escaped_characters_of_a_value_count_as_what_they_are_in_the_thing(path: str) -> None:
    """Many clients escape all letters outside of ASCII, which makes a value up to six times as long."""
    text = b'"%b"' % (rb"\u044f" * 50_000)
    harness = twin_harness()
    assert harness.status("merge", path, text if path != "/" else b'{"attributes":{"a":%b}}' % text) in (201, 204)


def test_case_19_headers_that_are_too_large() -> None:
    assert twin_harness().refused("modify", "/attributes/a", 1, custom="x" * 8_192) == (431, "headers.too.large")
    assert twin_harness().refused("modify", "/attributes/a", 1, by=[f"edge:{n}" for n in range(101)])[0] == 431


def test_case_20_several_things_come_once_in_the_order_of_the_request() -> None:
    harness = twin_harness(attributes={"a": 1})
    harness.send("create", "/", {"policyId": POLICY}, to=OTHER)
    several = EntityId(EntityType.THING, "acme.plant", "_")
    asked = {"thingIds": [OTHER, "acme.plant:none", THING]}
    found = harness.send("retrieve", "/", asked, to=several, fields="thingId,attributes/a")
    assert answer(found) == [{"thingId": OTHER}, {"thingId": THING, "attributes": {"a": 1}}]
    asked_again = {"thingIds": [*asked["thingIds"], OTHER, THING]}
    assert answer(harness.send("retrieve", "/", asked_again, to=several, fields="thingId,attributes/a")) == answer(
        found
    )
    assert answer(harness.send("retrieve", "/", {"thingIds": ["acme.plant:none"]}, to=several)) == []
    assert answer(harness.send("retrieve", "/", asked, to=several, by=["edge:nobody"])) == []
    assert harness.refused("retrieve", "/", {"thingIds": []}, to=several) == (400, "things:things.ids.missing")
    assert harness.refused("retrieve", "/", {"thingIds": ["x"]}, to=several) == (400, "things:id.invalid")
    assert harness.refused("retrieve", "/", {"thingIds": ["b:x"]}, to=several) == (400, "things:id.invalid")
    assert harness.refused("retrieve", "/", {}, to=several) == (400, "json.field.missing")
    assert harness.refused("modify", "/", {}, to=several) == (400, "things:id.invalid")


def test_case_21_fields_choose_members() -> None:
    harness = twin_harness(attributes={"serial": "B7", "site": {"hall": 4}})
    assert harness.get(fields="thingId,_revision") == {"thingId": THING, "_revision": 1}
    assert harness.get(fields="attributes(serial,site/none),nothing") == {"attributes": {"serial": "B7"}}
    assert harness.get("/attributes", fields="site/hall") == {"site": {"hall": 4}}
    assert harness.get("/attributes", fields="none") == {}
    assert harness.get(fields="thingId,_lifecycle") == {"thingId": THING, "_lifecycle": "ACTIVE"}
    assert "_lifecycle" not in harness.get()
    for path in ("/", "/attributes"):
        assert harness.get(path, fields="") == {}
    assert harness.refused("retrieve", "/", fields="a(") == (400, "json.fieldselector.invalid")


def test_fields_may_ask_for_the_policy() -> None:
    harness = twin_harness()
    chosen = harness.get(fields="thingId,_policy", if_none_match='"rev:1"')
    assert chosen["_policy"]["policyId"] == POLICY


@each_row(
    ("action", "path", "code"),
    [
        ("modify", "/features/f/properties/a//b", "json.pointer.invalid"),
        ("modify", "/foo", "protocoladapter:unknown.path"),
        ("modify", "/features/f/other", "protocoladapter:unknown.path"),
        ("modify", "/features/f/definition/x", "protocoladapter:unknown.path"),
        ("modify", "/attributes/\x07", "json.key.invalid"),
        ("modify", "/attributes/" + "k" * 257, "json.key.invalid"),
        ("modify", "/attributes" + "/k" * 300, "json.invalid"),
        ("patch", "/", "protocoladapter:unknown.topicpath"),
        ("create", "/attributes", "protocoladapter:unknown.topicpath"),
        ("delete", "/policyId", "protocoladapter:unknown.topicpath"),
    ],
)
def test_case_23_24_40_paths_and_actions_that_do_not_exist(action: str, path: str, code: str) -> None:
    assert twin_harness().refused(action, path, 1) == (400, code)


def test_case_25_an_attribute_is_created_then_modified() -> None:
    harness = twin_harness()
    first = harness.send("modify", "/attributes/a", 5)
    assert (first.response.status, answer(first)) == (201, 5)
    assert last(harness) == ("created", "/attributes/a", 5, 2)
    second = harness.send("modify", "/attributes/a", 6)
    assert (second.response.status, second.response.value) == (204, None)
    assert last(harness) == ("modified", "/attributes/a", 6, 3)


def test_case_26_missing_parents_become_objects() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/attributes/x/y/z", 1) == 201
    assert harness.get("/attributes") == {"x": {"y": {"z": 1}}}
    harness.send("modify", "/attributes/x", "text")
    assert harness.status("modify", "/attributes/x/y", 2) == 201
    assert harness.get("/attributes") == {"x": {"y": 2}}


def test_case_27_null_is_a_value() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/attributes/a", None) == 201
    assert harness.status("modify", "/attributes/a", None) == 204
    assert harness.get("/attributes/a") is None


def test_case_28_attributes_as_a_whole() -> None:
    harness = twin_harness(attributes={"a": 1})
    assert harness.status("modify", "/attributes", {}) == 204
    assert harness.get("/attributes") == {}
    assert harness.status("delete", "/attributes") == 204
    assert harness.refused("delete", "/attributes") == (404, "things:attributes.notfound")
    assert harness.refused("retrieve", "/attributes/a") == (404, "things:attributes.notfound")


def test_case_29_deleting_attributes() -> None:
    harness = twin_harness(attributes={"x": {"y": 1}})
    assert harness.refused("delete", "/attributes/none") == (404, "things:attribute.notfound")
    assert harness.status("delete", "/attributes/x/y") == 204
    assert last(harness) == ("deleted", "/attributes/x/y", None, 2)
    assert harness.get("/attributes") == {"x": {}}


def test_case_30_features_may_be_null() -> None:
    harness = twin_harness(features={"x": {}})
    assert harness.status("modify", "/features", None) == 204
    assert harness.get("/features") is None
    assert harness.refused("delete", "/features/x") == (404, "things:feature.notfound")
    assert harness.status("modify", "/features/x", {}) == 201
    assert harness.get("/features") == {"x": {}}


def test_case_31_a_feature_may_be_null() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/features/f", None) == 201
    assert harness.get("/features/f") is None
    harness.send("modify", "/features/f", {"properties": None})
    assert harness.get("/features/f") == {"properties": None}


@each_row("part", ["properties/p", "definition", "properties", "desiredProperties"])
@each_row("action", ["modify", "retrieve", "delete"])
def test_case_32_below_a_missing_feature_nothing_is(part: str, action: str) -> None:
    value = None if action == "modify" else ...
    assert twin_harness().refused(action, f"/features/f/{part}", value) == (404, "things:feature.notfound")


@pytest.mark.parametrize(("part", "one"), [("properties", "property"), ("desiredProperties", "desiredProperty")])
def test_case_33_34_properties(part: str, one: str) -> None:
    harness = twin_harness(features={"f": {}})
    path = f"/features/f/{part}"
    assert harness.refused("retrieve", f"{path}/p") == (404, f"things:feature.{part}.notfound")
    assert harness.status("modify", path, {"a": 1}) == 201
    assert harness.status("modify", path, {"a": 2}) == 204
    assert harness.refused("retrieve", f"{path}/p") == (404, f"things:feature.{one}.notfound")
    assert harness.status("delete", path) == 204
    assert harness.refused("delete", path) == (404, f"things:feature.{part}.notfound")
    assert harness.refused("delete", f"{path}/p") == (404, f"things:feature.{one}.notfound")


def test_case_35_the_definition_of_a_feature() -> None:
    harness = twin_harness(features={"f": {}})
    path = "/features/f/definition"
    assert harness.refused("modify", path, []) == (400, "things:feature.definition.empty")
    assert harness.refused("modify", path, ["bad"]) == (400, "things:definition.identifier.invalid")
    assert harness.refused("modify", path, [5]) == (400, "json.invalid")
    assert harness.refused("modify", path, 5) == (400, "json.format.invalid")
    assert harness.status("modify", path, ["acme:tank:1.0.0"]) == 201
    assert harness.status("modify", path, None) == 204
    assert harness.get(path) is None


def test_case_36_the_definition_of_a_thing() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/definition", "a:b:1") == 201
    assert harness.status("modify", "/definition", "https://host/model.json") == 204
    assert harness.status("delete", "/definition") == 204
    assert harness.refused("delete", "/definition") == (404, "things:definition.notfound")
    assert harness.refused("modify", "/definition", None) == (400, "json.format.invalid")
    assert harness.refused("modify", "/definition", "https://") == (400, "things:definition.identifier.invalid")


def test_case_37_the_last_feature_leaves_an_empty_object() -> None:
    harness = twin_harness(features={"f": {}})
    assert harness.status("delete", "/features/f") == 204
    assert harness.get("/features") == {}
    assert harness.status("delete", "/features") == 204
    assert harness.refused("retrieve", "/features") == (404, "things:features.notfound")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/features", {"a/b": {}}),
        ("/features", {"a\x07": {}}),
        ("/attributes", {"k" * 257: 1}),
        ("/attributes/a", {"b": {"ä": 1}}),
        ("/features/f", {"properties": {"x": {"": 1}}}),
    ],
)
def test_case_38_keys_in_values(path: str, value: Any) -> None:
    assert twin_harness().refused("modify", path, value) == (400, "json.key.invalid")


def test_case_39_keys_inside_arrays_are_free() -> None:
    assert twin_harness().status("modify", "/attributes/a", [{"a/b": 1}]) == 201


def test_the_policy_of_a_thing_may_be_replaced_by_a_missing_one() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/policyId", "acme.plant:none") == 204
    assert last(harness) == ("modified", "/policyId", "acme.plant:none", 2)
    assert harness.refused("retrieve") == (404, "things:thing.notfound")
    assert harness.refused("modify", "/attributes/a", 1) == (404, "things:thing.notfound")


def test_numbers_keep_the_spelling_they_came_with() -> None:
    harness = TwinHarness()
    decision = harness.send("create", "/", b'{"features":{"f":{"properties":{"p":1.50}}},"attributes":{"a":1E5}}')
    assert decision.response.value is not None
    assert decision.response.value.endswith(b'"attributes":{"a":1E5},"features":{"f":{"properties":{"p":1.50}}}}')
    harness.send("modify", "/attributes/b", b"2.00")
    assert harness.events[-1].value == b"2.00"


def test_create_with_null_is_create_with_nothing() -> None:
    assert TwinHarness().status("create", "/", None) == 201
    assert twin_harness().refused("modify", "/", None) == (400, "json.format.invalid")


@pytest.mark.parametrize(
    ("path", "value"), [("/attributes", 1), ("/features", "x"), ("/features/f", []), ("/policyId", 5)]
)
def test_correction_a_wrong_type_at_the_path_is_a_format_error(path: str, value: Any) -> None:
    assert twin_harness().refused("modify", path, value) == (400, "json.format.invalid")


def test_time_never_runs_backwards_in_one_entity() -> None:
    harness = twin_harness()
    harness.now = "2029-01-01T00:00:00.000000Z"
    harness.send("modify", "/attributes/a", 1)
    assert harness.events[-1].timestamp == "2030-01-15T07:30:00.250000Z"


def test_an_event_keeps_the_headers_that_the_operator_names() -> None:
    harness = twin_harness()
    harness.limits = TwinLimits(historical_headers=("ditto-originator", "correlation-id", "custom", "absent"))
    harness.send("modify", "/attributes/a", 1, ditto_originator="edge:forged", custom=["x"])
    assert msgspec.json.decode(harness.events[-1].headers) == {
        "ditto-originator": OWNER,
        "correlation-id": "c-1",
        "custom": ["x"],
    }


def test_answers_carry_custom_headers_and_the_originator() -> None:
    headers = (
        twin_harness().send("modify", "/attributes/a", 1, custom="x", ditto_originator="edge:forged").response.headers
    )
    assert (headers["custom"], headers["ditto-originator"]) == ("x", OWNER)


def test_a_path_without_slash_means_the_same() -> None:
    harness = twin_harness()
    assert harness.send("modify", "attributes/a/", 1).response.path == "/attributes/a"
    assert last(harness)[1] == "/attributes/a"


@pytest.mark.parametrize(
    ("action", "header", "refusal"),
    [
        ("modify", "get_metadata", (400, "header.notsupported")),
        ("retrieve", "put_metadata", (400, "header.notsupported")),
        ("modify", "merge_thing_patch_conditions", (400, "header.notsupported")),
        ("modify", "live_channel_condition", (405, "things:live.channelcondition.notallowed")),
        ("delete", "live_channel_condition", (405, "things:live.channelcondition.notallowed")),
    ],
)
def test_headers_that_would_change_the_meaning_are_refused(action: str, header: str, refusal: tuple[int, str]) -> None:
    assert twin_harness().refused(action, "/attributes", {}, **{header: "x"}) == refusal


def test_refusals_of_policies_are_reported_among_policies() -> None:
    harness = TwinHarness()
    assert harness.refusal("create", "/", {"policyId": POLICY}) == (404, "policies:policy.notfound", "policies")
    assert harness.refusal("retrieve", to=policy(POLICY)) == (404, "policies:policy.notfound", "policies")
    assert harness.refusal("merge", "/", {}, to=policy(POLICY)) == (
        400,
        "protocoladapter:unknown.topicpath",
        "policies",
    )
    assert harness.refusal("retrieve", to=thing(THING)) == (404, "things:thing.notfound", "things")

"""Conditions, entity tags, and commands that would change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cpu_budget import at_most
from tests.support.table import each_row
from tests.support.twin_harness import (
    POLICY,
    VIEWER,
    TwinHarness,
    answer,
    entry,
    granting,
    last,
    revoking,
    twin_harness,
)


def test_case_79_if_match_on_the_whole_thing() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/", {}, if_match='"rev:1"') == 204
    assert harness.revision() == 2
    assert harness.refused("modify", "/", {}, if_match='"rev:1"') == (412, "things:precondition.failed")


@pytest.mark.parametrize("action", ["modify", "create"])
def test_case_80_create_only_and_update_only(action: str) -> None:
    harness = TwinHarness()
    harness.write_policy({})
    value = {"policyId": POLICY}
    assert harness.refused(action, "/", value, if_match="*") == (412, "things:precondition.failed")
    assert harness.status(action, "/", value, if_none_match="*") == 201
    assert harness.refused(action, "/", value, if_none_match="*") == (412, "things:precondition.failed")


def test_case_81_if_none_match_on_a_retrieve_returns_not_modified_for_a_matching_tag() -> None:
    harness = twin_harness()
    assert harness.refused("retrieve", if_none_match='"rev:1"') == (304, "things:precondition.notmodified")
    assert harness.refused("retrieve", if_none_match='"rev:9", W/"rev:1"') == (304, "things:precondition.notmodified")
    assert harness.get(if_none_match='"rev:9"')
    assert harness.refused("retrieve", if_match='"rev:9"') == (412, "things:precondition.failed")
    for header in ({"if_match": "*"}, {"if_none_match": "*"}):
        assert TwinHarness().refused("retrieve", **header) == (404, "things:thing.notfound")
        assert harness.refused("retrieve", "/attributes/none", **header)[0] == 404
        assert harness.refused("delete", "/attributes/none", **header)[0] == 404


def test_case_82_if_match_on_a_delete_and_tags_that_are_invalid() -> None:
    harness = twin_harness()
    assert harness.refused("delete", if_match='"rev:9"') == (412, "things:precondition.failed")
    assert harness.refused("delete", if_match='W/"rev:1"') == (412, "things:precondition.failed")
    for garbage in ("rev:1", '"a', '"a" "b"', '"a*"', "", 5, '"a",'):
        assert harness.refused("delete", if_match=garbage) == (400, "header.invalid")
    assert harness.status("delete", if_match='"rev:9", "rev:1"') == 204


def test_the_tag_of_a_part_is_a_hash_of_its_content() -> None:
    harness = twin_harness(attributes={"a": {"x": 1, "y": 2}, "b": {"y": 2, "x": 1}, "c": {"x": 1}})
    tags = [harness.send("retrieve", f"/attributes/{key}").response.headers["etag"] for key in "abc"]
    assert tags[0] == tags[1] != tags[2]
    assert tags[0].startswith('"hash:')
    assert harness.refused("modify", "/attributes/a", 1, if_match='"rev:1"')[0] == 412
    written = harness.send("modify", "/attributes/a", {"x": 1}, if_match=tags[0]).response
    assert written.headers["etag"] == tags[2]
    merged = harness.send("merge", "/attributes/a", {"y": 2}, if_match=tags[2]).response
    assert merged.headers["etag"] == tags[0]


def test_412_comes_before_the_404_of_a_part_only_for_if_match_on_a_write() -> None:
    harness = twin_harness()
    assert harness.refused("modify", "/features/f/properties/p", 1, if_match="*")[0] == 412
    assert harness.refused("modify", "/features/f/properties/p", 1, if_none_match="*") == (
        404,
        "things:feature.notfound",
    )
    assert harness.status("modify", "/attributes/x", 1, if_none_match="*") == 201
    assert harness.refused("modify", "/attributes/x", 1, if_none_match="*")[0] == 412


def test_case_83_a_condition() -> None:
    harness = twin_harness(attributes={"maker": "ACME"})
    assert harness.status("modify", "/attributes/a", 1, condition='eq(attributes/maker,"ACME")') == 201
    other = 'eq(attributes/maker,"OTHER")'
    for action in ("modify", "merge", "delete", "retrieve"):
        value = 1 if action in ("modify", "merge") else ...
        assert harness.refused(action, "/attributes/a", value, condition=other) == (412, "things:condition.failed")
    assert harness.refused("modify", "/attributes/a", 1, condition="eq(") == (400, "things:condition.invalid")
    assert harness.refused("modify", "/attributes/a", 1, condition="eq(foo,1)") == (400, "rql.expression.invalid")
    assert harness.refused("modify", "/attributes/a", 1, condition=5) == (400, "header.invalid")


@pytest.mark.parametrize("condition", ["eq(", "eq(foo,1)", "eq(attributes/a,1)"])
def test_a_condition_is_not_evaluated_if_the_thing_does_not_exist_for_the_sender(condition: str) -> None:
    harness = TwinHarness()
    harness.write_policy({})
    for action, value in (("modify", 1), ("merge", 1), ("delete", ...), ("retrieve", ...)):
        assert harness.refused(action, "/attributes/a", value, condition=condition) == (404, "things:thing.notfound")
    assert harness.status("modify", "/", {"policyId": POLICY}, condition=condition) == 201
    for action, value in (("modify", 1), ("merge", 1), ("delete", ...), ("retrieve", ...)):
        refusal = harness.refused(action, "/attributes/a", value, by=["edge:nobody"], condition=condition)
        assert refusal == (404, "things:thing.notfound")


def test_case_84_a_condition_on_a_missing_field() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/attributes/a", 1, condition='ne(attributes/none,"x")') == 201
    assert harness.refused("modify", "/attributes/a", 1, condition="exists(attributes/none)")[0] == 412


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("and(eq(_revision,1),not(gt(_modified,time:now)))", True),
        ('gt(_modified,"2031-01-01T00:00:00Z")', False),
        ("or(exists(attributes/none),in(attributes/a,1,2))", True),
    ],
)
def test_a_condition_sees_revision_and_time(condition: str, holds: bool) -> None:
    harness = twin_harness(attributes={"a": 1})
    if holds:
        assert harness.get("/attributes/a", condition=condition) == 1
    else:
        assert harness.refused("retrieve", "/attributes/a", condition=condition)[0] == 412


def test_a_condition_needs_read_on_every_field_before_the_permission_of_the_command() -> None:
    harness = twin_harness(attributes={"a": 1, "b": 2}, features={"f": {}})
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/attributes/a": granting("READ", "WRITE")})})
    assert harness.get("/attributes/a", by=[VIEWER], condition="eq(attributes/a,1)") == 1
    assert harness.get("/attributes/a", by=[VIEWER], condition="eq(_revision,1)") == 1
    unreadable = ("or(eq(attributes/a,1),eq(attributes/b,2))", "not(exists(features/*/properties))")
    for condition in unreadable:
        for action in ("modify", "merge", "delete", "retrieve"):
            value = 2 if action in ("modify", "merge") else ...
            refused = harness.refused(action, "/attributes/a", value, by=[VIEWER], condition=condition)
            assert refused == (412, "things:condition.failed")
            refused = harness.refused(action, "/attributes/b", value, by=[VIEWER], condition=condition)
            assert refused == (412, "things:condition.failed")
    assert harness.refused("modify", "/attributes/b", 2, by=[VIEWER], condition="eq(attributes/a,5)")[0] == 403


@pytest.mark.parametrize("features", [{}, {"f": {"properties": {}}}, {"g": {}}])
@each_row(
    ("resources", "is_readable"),
    [
        ({"thing:/": granting("READ")}, True),
        ({"thing:/features": granting("READ"), "thing:/features/f/properties/x": revoking("READ")}, True),
        ({"thing:/features": granting("READ"), "thing:/features/f/properties": revoking("READ")}, False),
        ({"thing:/features": granting("READ"), "thing:/features/f": revoking("READ")}, False),
        ({"thing:/features/f": granting("READ")}, False),
        ({"thing:/features": granting("WRITE")}, False),
    ],
)
def test_a_condition_on_every_feature_needs_read_on_all_possible_features(
    resources: dict[str, Any], is_readable: bool, features: dict[str, Any]
) -> None:
    """Otherwise it would tell which features exist."""
    harness = twin_harness(features=features)
    harness.write_policy({"VIEW": entry([VIEWER], {**resources, "thing:/attributes": granting("READ", "WRITE")})})
    sent: dict[str, Any] = {"by": [VIEWER], "condition": "not(exists(features/*/properties/on))"}
    if is_readable:
        assert harness.status("modify", "/attributes/a", 1, **sent) == 201
    else:
        assert harness.refused("modify", "/attributes/a", 1, **sent) == (412, "things:condition.failed")


WRITER = {
    "WRITE": entry([VIEWER], {"thing:/attributes": granting("WRITE"), "thing:/attributes/seen": granting("READ")})
}


@each_row(
    ("action", "path", "if_equal"),
    [
        ("modify", "/attributes/secret", "skip"),
        ("modify", "/attributes", "skip"),
        ("merge", "/attributes/secret", "skip"),
        ("merge", "/attributes/secret", "skip-minimizing-merge"),
        ("merge", "/attributes", "skip"),
        ("merge", "/attributes", "skip-minimizing-merge"),
    ],
)
def test_if_equal_needs_read_on_what_it_compares(action: str, path: str, if_equal: str) -> None:
    """The same refusal for a right and for a wrong guess, with metadata outside of the patch too."""
    harness = twin_harness(attributes={"secret": 7})
    harness.write_policy(WRITER)
    code = "things:thing.notmodifiable" if action == "merge" else "things:attribute.notmodifiable"
    for guess in (7, 8):
        value = guess if path.endswith("secret") else {"secret": guess}
        expected = (403, "things:attributes.notmodifiable" if (action, path) == ("modify", "/attributes") else code)
        assert harness.refused(action, path, value, by=[VIEWER], if_equal=if_equal) == expected
        put = [{"key": "other/unit", "value": 1}]
        assert harness.refused(action, path, value, by=[VIEWER], if_equal=if_equal, put_metadata=put) == expected
    assert harness.status(action, path, {"secret": 8} if path == "/attributes" else 8, by=[VIEWER]) in (201, 204)


def test_if_equal_needs_read_on_what_a_patch_names_and_nothing_else() -> None:
    harness = twin_harness(attributes={"secret": 7, "seen": 1})
    harness.write_policy(WRITER)
    minimizing = {"by": [VIEWER], "if_equal": "skip-minimizing-merge"}
    assert harness.refused("merge", "/attributes", {"seen": 1}, **minimizing) == (412, "things:precondition.failed")
    assert harness.status("merge", "/attributes", {"seen": 2}, **minimizing) == 204
    assert harness.status("modify", "/attributes/secret", 7, by=[VIEWER], if_equal="update") == 204


def test_a_condition_does_not_apply_to_a_created_thing() -> None:
    assert TwinHarness().status("modify", "/", {}, condition="exists(attributes/none)") == 201


def test_the_condition_comes_before_the_entity_tags() -> None:
    refused = twin_harness().refused("modify", "/", {}, condition="exists(attributes/none)", if_match='"rev:9"')
    assert refused == (412, "things:condition.failed")


def test_case_85_an_equal_value_is_written_again() -> None:
    harness = twin_harness(attributes={"a": 1})
    assert harness.status("modify", "/attributes/a", 1) == 204
    assert last(harness) == ("modified", "/attributes/a", 1, 2)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/attributes/a", {"x": 1, "y": 2}),
        ("/attributes/a", {"y": 2, "x": 1}),
        ("/", {"attributes": {"a": {"x": 1, "y": 2}}}),
    ],
)
def test_case_86_skip_refuses_an_equal_value(path: str, value: Any) -> None:
    harness = twin_harness(attributes={"a": {"x": 1, "y": 2}})
    assert harness.refused("modify", path, value, if_equal="skip") == (412, "things:precondition.failed")
    assert harness.status("modify", path, value, if_equal="skip-minimizing-merge") == 204
    assert harness.status("modify", path, value, if_equal="update") == 204


def test_if_equal_skip_writes_a_value_that_differs_only_in_type() -> None:
    harness = twin_harness(attributes={"a": 1})
    assert harness.status("modify", "/attributes/a", True, if_equal="skip") == 204
    assert harness.refused("modify", "/attributes/a", 1, if_equal="sometimes") == (400, "header.invalid")


def test_answers_name_the_tag_of_the_new_state() -> None:
    harness = twin_harness()
    headers = harness.send("modify", "/", {"attributes": {"a": 1}}).response.headers
    assert (headers["etag"], headers["entity-revision"]) == ('"rev:2"', 2)
    created = TwinHarness().send("create", "/", {})
    assert created.response.headers["etag"] == '"rev:1"'
    assert answer(created)["thingId"]


# --- which check wins ---


GUARDED = {"RULES": entry([VIEWER], {"thing:/attributes/seen": granting("READ")})}


@each_row(
    ("command", "refusal"),
    [
        pytest.param(
            ("modify", "/features/f", 5, {"to": "acme.plant:none"}),
            (400, "json.format.invalid"),
            id="syntax before 404",
        ),
        pytest.param(
            ("merge", "/attributes/a", 1, {"to": "acme.plant:none", "content_type": "text/plain"}),
            (415, "mediatype.unsupported"),
            id="the content type before 404",
        ),
        pytest.param(
            ("modify", "/attributes/a", {"ä": 1}, {"by": [VIEWER]}), (400, "json.key.invalid"), id="syntax before 403"
        ),
        pytest.param(
            ("modify", "/attributes/a", 1, {"by": [VIEWER], "condition": "eq("}),
            (400, "things:condition.invalid"),
            id="a condition's syntax before 403",
        ),
        pytest.param(
            ("modify", "/attributes/a", 1, {"by": [VIEWER], "if_match": "garbage"}),
            (400, "header.invalid"),
            id="a tag's syntax before 403",
        ),
        pytest.param(
            ("modify", "/attributes/a", 1, {"by": ["edge:nobody"], "to": "acme.plant:none"}),
            (404, "things:thing.notfound"),
            id="404 of the thing before 403",
        ),
        pytest.param(
            ("modify", "/features/none/properties/p", 1, {"by": [VIEWER]}),
            (403, "things:feature.property.notmodifiable"),
            id="403 before 404 of a part",
        ),
        pytest.param(
            ("modify", "/attributes/seen", 1, {"by": [VIEWER], "if_match": '"rev:99"'}),
            (403, "things:attribute.notmodifiable"),
            id="403 before 412 of a tag",
        ),
        pytest.param(
            ("modify", "/attributes/seen", 1, {"by": [VIEWER], "condition": "eq(attributes/seen,7)"}),
            (403, "things:attribute.notmodifiable"),
            id="403 before 412 of a condition that may be read",
        ),
        pytest.param(
            ("modify", "/attributes/seen", 1, {"by": [VIEWER], "condition": "eq(attributes/hidden,1)"}),
            (412, "things:condition.failed"),
            id="412 of a condition that may not be read before 403",
        ),
        pytest.param(
            ("modify", "/attributes/seen", 1, {"condition": "eq(attributes/seen,7)", "if_match": '"rev:99"'}),
            (412, "things:condition.failed"),
            id="the condition before the tags",
        ),
        pytest.param(
            ("modify", "/features/none/properties/p", 1, {"if_match": "*"}),
            (412, "things:precondition.failed"),
            id="412 of if-match on a write before 404 of a part",
        ),
        pytest.param(
            ("delete", "/attributes/none", ..., {"if_match": '"rev:99"'}),
            (404, "things:attribute.notfound"),
            id="404 of a part before 412 of if-match on a delete",
        ),
        pytest.param(
            ("retrieve", "/attributes/none", ..., {"if_match": '"rev:99"'}),
            (404, "things:attribute.notfound"),
            id="404 of a part before 412 of if-match on a retrieve",
        ),
        pytest.param(
            ("modify", "/attributes/seen", 1, {"if_match": '"rev:99"', "if_equal": "skip"}),
            (412, "things:precondition.failed"),
            id="the tags before if-equal",
        ),
        pytest.param(
            ("modify", "/attributes/large", "x" * 102_400, {"if_match": '"rev:99"'}),
            (412, "things:precondition.failed"),
            id="the tags before the size",
        ),
        pytest.param(
            ("create", "/", {"policyId": "acme.plant:none"}, {}),
            (404, "policies:policy.notfound"),
            id="404 of the policy before the conflict",
        ),
        pytest.param(
            ("create", "/", {"policyId": POLICY}, {"by": [VIEWER]}),
            (404, "policies:policy.notfound"),
            id="an unreadable policy before the conflict",
        ),
        pytest.param(
            ("create", "/", {"_policy": {"entries": {}}}, {}),
            (400, "things:policy.invalid"),
            id="400 of the policy before the conflict",
        ),
        pytest.param(
            ("create", "/", {"policyId": "acme.plant:readable"}, {}),
            (403, "things:thing.notmodifiable"),
            id="403 under the policy before the conflict",
        ),
    ],
)
def test_which_check_wins(command: tuple[str, str, Any, dict[str, Any]], refusal: tuple[int, str]) -> None:
    harness = twin_harness(attributes={"seen": 1, "hidden": 1})
    harness.write_policy(GUARDED)
    readable = {"policy:/": granting("READ")}
    harness.write_policy(
        {
            "OWNERS": entry(["edge:other"], {"policy:/": granting("READ", "WRITE")}),
            "ALL": entry(["edge:gateway-3"], readable),
        },
        "acme.plant:readable",
        by=["edge:other"],
    )
    action, path, value, more = command
    assert harness.refused(action, path, value, **more) == refusal


@pytest.mark.parametrize(
    ("value", "comparison"),
    [
        ([1] * 45_000, "gt(attributes/a,'z')"),
        ([[1]] * 22_000, "eq(attributes/a,'7')"),
        ([{"b": 1}] * 11_000, "exists(attributes/a/b)"),
        ("ab" * 45_000, "like(attributes/a,'*a?c*')"),
    ],
    ids=["numbers", "arrays", "objects", "a text"],
)
def test_a_condition_that_compares_very_much_is_refused_soon(value: Any, comparison: str) -> None:
    """A hundred comparisons of an array of 90 KB took ten seconds. No other client was served."""
    harness = twin_harness(attributes={"a": value, "b": 1})
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/attributes/b": granting("READ", "WRITE")})})
    many = f"or({','.join([comparison] * 100)})"
    parts = {f"p{number}": comparison for number in range(100)}
    too_expensive = (400, "rql.expression.invalid")
    with at_most(1):
        assert harness.refused("retrieve", "/policyId", condition=many) == too_expensive
        assert harness.refused("retrieve", "/policyId", live_channel_condition=many) == too_expensive
        assert harness.refused("merge", "/attributes/b", {}, merge_thing_patch_conditions=parts) == too_expensive
        unreadable = harness.refused("retrieve", "/attributes/b", by=[VIEWER], condition=many)
        assert unreadable == (412, "things:condition.failed")
    twice = f"or({comparison},{comparison},exists(attributes/b))"
    assert harness.status("modify", "/attributes/b", 2, condition=twice) == 204


@pytest.mark.parametrize(
    "comparison", ["exists(attributes/a)", "not(empty(attributes/a))", "ne(attributes/a,2)", "eq(attributes/a,1)"]
)
def test_a_condition_with_quick_comparisons_of_a_long_array_is_not_refused(comparison: str) -> None:
    harness = twin_harness(attributes={"a": [1] * 45_000, "b": 1})
    many = f"and({','.join([comparison] * 40)})"
    with at_most(1):
        assert harness.status("modify", "/attributes/b", 2, condition=many) == 204


@pytest.mark.parametrize("comparison", ["like(attributes/a,'*error*')", "ilike(attributes/a,'*error*')"])
def test_a_condition_that_searches_a_long_text_for_several_words_is_not_refused(comparison: str) -> None:
    harness = twin_harness(attributes={"a": "all is well; " * 6_900, "b": 1})
    several = f"not(or({','.join([comparison] * 15)}))"
    with at_most(0.3):
        assert harness.status("modify", "/attributes/b", 2, condition=several) == 204

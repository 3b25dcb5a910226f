"""Enforcement of permissions to read and write."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.table import each_row
from tests.support.twin_harness import (
    OWNER,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
    entry,
    granting,
    revoking,
    twin_harness,
)

AUDITOR = "edge:auditor"


def harness_for(resources: dict[str, Any], **members: Any) -> TwinHarness:
    """A harness where VIEWER has these resources, and OWNER all permissions."""
    harness = twin_harness(**members)
    harness.write_policy({"VIEW": entry([VIEWER], resources)})
    return harness


def test_case_70_71_a_reader_of_one_attribute() -> None:
    harness = harness_for(
        {"thing:/attributes/public": granting("READ")},
        attributes={"public": 1, "private": 2},
        features={"f": {}},
    )
    assert harness.get(by=[VIEWER]) == {"thingId": THING, "attributes": {"public": 1}}
    assert harness.get("/attributes", by=[VIEWER]) == {"public": 1}
    assert harness.refused("retrieve", "/features", by=[VIEWER]) == (404, "things:features.notfound")
    assert harness.refused("retrieve", "/attributes/private", by=[VIEWER]) == (404, "things:attribute.notfound")
    assert harness.get(by=[VIEWER], fields="_revision,policyId,attributes") == {
        "_revision": 1,
        "attributes": {"public": 1},
    }


@pytest.mark.parametrize("resources", [{}, {"thing:/": {"grant": ["READ", "WRITE"], "revoke": ["READ", "WRITE"]}}])
def test_a_thing_without_any_permission_on_it_is_missing_also_for_writes(resources: dict[str, Any]) -> None:
    harness = harness_for(resources)
    missing = (404, "things:thing.notfound")
    for path in ("/", "/attributes/a", "/features/f/properties/p"):
        assert harness.refused("retrieve", path, by=[VIEWER]) == missing
        assert harness.refused("modify", path, {}, by=[VIEWER]) == missing
        assert harness.refused("delete", path, by=[VIEWER]) == missing
        assert harness.refused("merge", path, {"attributes": {}}, by=[VIEWER]) == missing


@pytest.mark.parametrize(
    "resources",
    [
        {"thing:/attributes/none": granting("READ")},
        {"thing:/features": granting("WRITE")},
        {"message:/": granting("READ")},
    ],
)
def test_with_any_permission_on_a_thing_a_forbidden_write_is_called_forbidden(resources: dict[str, Any]) -> None:
    harness = harness_for(resources)
    assert harness.refused("retrieve", by=[VIEWER]) == (404, "things:thing.notfound")
    assert harness.refused("modify", "/attributes/a", 1, by=[VIEWER]) == (403, "things:attribute.notmodifiable")
    assert harness.refused("delete", by=[VIEWER]) == (403, "things:thing.notdeletable")
    assert harness.refused("modify", "/", {}, by=[VIEWER]) == (403, "things:thing.notmodifiable")


@each_row(
    ("path", "name"),
    [
        ("/policyId", "policyId"),
        ("/definition", "definition"),
        ("/attributes", "attributes"),
        ("/attributes/a", "attribute"),
        ("/features", "features"),
        ("/features/f", "feature"),
        ("/features/f/definition", "feature.definition"),
        ("/features/f/properties", "feature.properties"),
        ("/features/f/properties/p", "feature.property"),
        ("/features/f/desiredProperties", "feature.desiredProperties"),
        ("/features/f/desiredProperties/p", "feature.desiredProperty"),
    ],
)
def test_the_code_of_a_refusal_names_the_part(path: str, name: str) -> None:
    harness = harness_for({"message:/": granting("READ")})
    value: Any = {}
    if path.endswith("efinition") or name == "policyId":
        value = ["a:b:1"] if "features" in path else "a:b:1" if name == "definition" else POLICY
    assert harness.refused("modify", path, value, by=[VIEWER]) == (403, f"things:{name}.notmodifiable")
    assert harness.refused("retrieve", path, by=[VIEWER]) == (404, f"things:{name}.notfound")
    if name != "policyId":
        assert harness.refused("delete", path, by=[VIEWER]) == (403, f"things:{name}.notmodifiable")


def test_case_73_a_revoke_below_forbids_the_whole() -> None:
    harness = harness_for(
        {"thing:/": granting("READ", "WRITE"), "thing:/attributes/lock": revoking("WRITE")}, attributes={"lock": 1}
    )
    assert harness.refused("modify", "/attributes", {}, by=[VIEWER]) == (403, "things:attributes.notmodifiable")
    assert harness.status("modify", "/attributes/free", 1, by=[VIEWER]) == 201
    assert harness.refused("modify", "/", {}, by=[VIEWER]) == (403, "things:thing.notmodifiable")
    assert harness.refused("delete", by=[VIEWER]) == (403, "things:thing.notdeletable")


def test_case_74_grant_and_revoke_on_one_path_deny() -> None:
    harness = twin_harness()
    both = {"A": entry([VIEWER], {"thing:/attributes": granting("READ", "WRITE")})}
    harness.write_policy({**both, "B": entry([VIEWER], {"thing:/attributes": revoking("WRITE")})})
    assert harness.refused("modify", "/attributes/a", 1, by=[VIEWER])[0] == 403


def test_case_75_a_grant_below_a_revoke_applies() -> None:
    harness = harness_for({"thing:/attributes": revoking("WRITE"), "thing:/attributes/ok": granting("WRITE")})
    assert harness.status("modify", "/attributes/ok", 1, by=[VIEWER]) == 201
    assert harness.refused("modify", "/attributes", {}, by=[VIEWER])[0] == 403


def test_case_76_the_policy_id_can_be_kept_from_a_writer() -> None:
    harness = harness_for({"thing:/": granting("WRITE"), "thing:/policyId": revoking("WRITE")})
    refused = harness.refused("modify", "/policyId", POLICY, by=[VIEWER])
    assert refused == (403, "things:policyId.notmodifiable")


def test_case_77_a_changed_policy_holds_for_the_next_command() -> None:
    harness = twin_harness(attributes={"a": 1})
    assert harness.refused("retrieve", "/attributes/a", by=[VIEWER])[0] == 404
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/": granting("READ")})})
    assert harness.get("/attributes/a", by=[VIEWER]) == 1


def test_case_78_a_deeper_revoke_of_one_subject_beats_a_grant_of_another() -> None:
    harness = twin_harness()
    harness.write_policy(
        {
            "A": entry([VIEWER], {"thing:/": granting("WRITE")}),
            "B": entry([AUDITOR], {"thing:/attributes": revoking("WRITE")}),
        }
    )
    assert harness.refused("modify", "/attributes/a", 1, by=[VIEWER, AUDITOR])[0] == 403
    assert harness.status("modify", "/attributes/a", 1, by=[VIEWER]) == 201


def test_a_grant_that_is_revoked_for_another_subject_of_the_sender_shows_nothing() -> None:
    harness = twin_harness(attributes={"a": 1})
    harness.write_policy(
        {
            "A": entry([VIEWER], {"thing:/attributes": granting("READ")}),
            "B": entry([AUDITOR], {"thing:/attributes": revoking("READ")}),
        }
    )
    assert harness.get(by=[VIEWER]) == {"thingId": THING, "attributes": {"a": 1}}
    assert harness.refused("retrieve", by=[VIEWER, AUDITOR]) == (404, "things:thing.notfound")


def test_the_example_of_a_contract_that_a_viewer_may_not_see() -> None:
    harness = harness_for(
        {"thing:/": granting("READ"), "thing:/attributes/contract": revoking("READ")},
        attributes={"serial": "B7", "contract": "x"},
    )
    assert harness.get(by=[VIEWER])["attributes"] == {"serial": "B7"}
    assert harness.refused("retrieve", "/attributes/contract", by=[VIEWER]) == (404, "things:attribute.notfound")
    assert harness.refused("modify", "/attributes/serial", 1, by=[VIEWER]) == (403, "things:attribute.notmodifiable")
    condition = 'eq(attributes/contract,"x")'
    refused = harness.refused("retrieve", "/attributes/serial", by=[VIEWER], condition=condition)
    assert refused == (412, "things:condition.failed")
    for action, value in (("modify", 1), ("delete", ...)):
        refused = harness.refused(action, "/attributes/serial", value, by=[VIEWER], condition=condition)
        assert refused == (412, "things:condition.failed")


def test_entity_tags_reveal_nothing_about_unreadable_parts() -> None:
    """The tag of a part is that of its readable part, so it does not confirm a guess about the rest."""
    harness = harness_for(
        {"thing:/": granting("READ", "WRITE"), "thing:/attributes/contract": revoking("READ")},
        attributes={"serial": "B7", "contract": "x"},
    )
    seen = harness.send("retrieve", "/attributes", by=[VIEWER]).response.headers["etag"]
    whole = harness.send("retrieve", "/attributes").response.headers["etag"]
    assert seen != whole
    assert harness.refused("retrieve", "/attributes", by=[VIEWER], if_none_match=seen)[0] == 304
    assert harness.get("/attributes", by=[VIEWER], if_none_match=whole) == {"serial": "B7"}
    assert harness.status("modify", "/attributes", {}, by=[VIEWER], if_match=seen) == 204
    hidden = harness.send("modify", "/attributes/contract", "y", by=[VIEWER]).response
    assert "etag" not in hidden.headers


def test_a_part_without_readable_content_looks_like_a_missing_one() -> None:
    harness = harness_for({"thing:/features/f": granting("READ")}, features={"g": {}})
    missing = (404, "things:features.notfound")
    assert harness.refused("retrieve", "/features", by=[VIEWER]) == missing
    assert harness.refused("retrieve", by=[VIEWER]) == (404, "things:thing.notfound")
    harness.send("delete", "/features")
    assert harness.refused("retrieve", "/features", by=[VIEWER]) == missing
    harness.send("modify", "/features", {"f": {}, "g": {}})
    assert harness.get("/features", by=[VIEWER]) == {"f": {}}
    assert harness.get(by=[VIEWER]) == {"thingId": THING, "features": {"f": {}}}


def test_several_subjects_add_up() -> None:
    harness = harness_for({"thing:/": granting("READ")})
    assert harness.refused("modify", "/attributes/a", 1, by=[VIEWER])[0] == 403
    assert harness.status("modify", "/attributes/a", 1, by=[VIEWER, OWNER]) == 201


def test_no_message_shows_a_value() -> None:
    """IDs and paths are reported, values never."""
    from connectivity.errors import TwinError

    harness = twin_harness(attributes={"contract": "secret-value"})
    for action, path in (("retrieve", "/attributes/contract"), ("modify", "/attributes"), ("delete", "/attributes")):
        with pytest.raises(TwinError) as refused:
            harness.send(action, path, {"contract": "secret-value"}, by=[VIEWER])
        assert THING in refused.value.fault.message
        assert "secret-value" not in f"{refused.value.fault}"

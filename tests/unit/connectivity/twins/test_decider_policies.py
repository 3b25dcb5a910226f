"""Whole policies, and the policies that come with new things."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.errors import TwinError
from connectivity.twins.context import TwinLimits
from connectivity.twins.errors import refusal
from spark_store.records import Snapshot
from tests.support.table import each_row
from tests.support.twin_harness import (
    ALL,
    OWNER,
    OWNERS,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
    answer,
    entry,
    granting,
    last,
    policy,
    revoking,
    thing,
    twin_harness,
)

P = policy(POLICY)


def a_policy(*others: Any, **members: Any) -> dict[str, Any]:
    return {"policyId": POLICY, "entries": {f"E{n}": other for n, other in enumerate(others)}, **members}


def test_case_51_create_writes_out_the_defaults() -> None:
    harness = TwinHarness()
    decision = harness.send("create", "/", a_policy(OWNERS), to=P)
    full = {"policyId": POLICY, "imports": {}, "entries": {"E0": {**OWNERS, "importable": "implicit"}}}
    assert (decision.response.status, answer(decision)) == (201, full)
    assert decision.response.headers["etag"] == '"rev:1"'
    assert last(harness) == ("created", "/", full, 1)
    assert harness.refused("create", "/", a_policy(OWNERS), to=P) == (409, "policies:policy.conflict")
    assert harness.get(to=P) == full


def test_case_52_modify_creates_or_replaces() -> None:
    harness = TwinHarness()
    decision = harness.send("modify", "/", {"entries": {"A": OWNERS}}, to=P)
    assert (decision.response.action, decision.response.status) == ("create", 201)
    again = harness.send("modify", "/", {"policyId": "other:id", "entries": {"B": OWNERS}}, to=P)
    assert (again.response.action, again.response.status, again.response.value) == ("modify", 204, None)
    assert last(harness)[0] == "modified"
    assert harness.get(to=P)["policyId"] == POLICY


def test_case_53_a_policy_without_an_administrator_is_not_created() -> None:
    """The creator is checked first; only where he passes, the policy itself is."""
    reading = a_policy(entry([OWNER], {"policy:/": granting("READ")}))
    assert TwinHarness().refused("create", "/", reading, to=P) == (403, "policies:policy.notcreatable")
    assert TwinHarness().refused("create", "/", reading, to=P, allow_policy_lockout=True) == (
        403,
        "policies:policy.modificationinvalid",
    )
    expiring = a_policy(entry([], {"policy:/": ALL}))
    expiring["entries"]["E0"]["subjects"] = {OWNER: {"type": "t", "expiry": "2031-01-01T00:00:00Z"}}
    assert TwinHarness().refused("create", "/", expiring, to=P) == (403, "policies:policy.modificationinvalid")
    harness = TwinHarness()
    harness.write_policy({})
    assert harness.refused("modify", "/", reading, to=P) == (403, "policies:policy.modificationinvalid")


def test_a_revoke_in_any_entry_removes_the_administrator() -> None:
    both = a_policy(OWNERS, entry([OWNER], {"policy:/": revoking("WRITE")}))
    refused = TwinHarness().refused("create", "/", both, to=P, allow_policy_lockout=True)
    assert refused == (403, "policies:policy.modificationinvalid")


def test_case_54_a_policy_that_only_others_can_change() -> None:
    other = a_policy(entry([VIEWER], {"policy:/": ALL}))
    assert TwinHarness().refused("create", "/", other, to=P) == (403, "policies:policy.notcreatable")
    assert TwinHarness().status("create", "/", other, to=P, allow_policy_lockout="true") == 201


def test_callers_may_remove_their_own_rights_from_a_policy() -> None:
    harness = TwinHarness()
    harness.write_policy({})
    assert harness.status("modify", "/", a_policy(entry([VIEWER], {"policy:/": ALL})), to=P) == 204
    assert harness.refused("modify", "/", a_policy(OWNERS), to=P) == (404, "policies:policy.notfound")


def _with(path: list[str], value: Any) -> dict[str, Any]:
    """The policy with one place of its first entry changed; `...` removes it."""
    whole: dict[str, Any] = json.loads(json.dumps(a_policy(OWNERS)))
    place = whole
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


E0 = ["entries", "E0"]
PERMISSIONS = [*E0, "resources", "thing:/"]
ODD_ANNOUNCEMENTS: list[dict[str, Any]] = [
    {"beforeExpiry": "soon"},
    {"beforeExpiry": 3600},
    {"beforeExpiry": "999999999999999999d"},
    {"whenDeleted": "yes"},
    {"requestedAcks": {}},
    {"requestedAcks": {"labels": ["no label"]}},
    {"requestedAcks": {"labels": [], "timeout": "-1s"}},
    {"randomizationInterval": []},
]


@each_row(
    ("path", "value", "code"),
    [
        ([*PERMISSIONS, "revoke"], ..., "json.field.missing"),
        ([*PERMISSIONS, "grant"], ..., "json.field.missing"),
        ([*PERMISSIONS, "grant"], "READ", "json.invalid"),
        ([*PERMISSIONS], 1, "json.invalid"),
        ([*E0, "subjects", OWNER, "type"], ..., "json.field.missing"),
        ([*E0, "subjects", OWNER], 1, "json.invalid"),
        ([*E0, "subjects", OWNER, "expiry"], "soon", "policies:subjectexpiry.invalid"),
        ([*E0, "subjects", OWNER, "expiry"], "2031-01-01T00:00:00", "policies:subjectexpiry.invalid"),
        ([*E0, "subjects", OWNER, "expiry"], "9999-12-31T23:59:59Z", "policies:subjectexpiry.invalid"),
        ([*E0, "subjects", OWNER, "expiry"], 5, "policies:subjectexpiry.invalid"),
        ([*E0, "subjects", OWNER, "announcement"], 5, "policies:subjectannouncement.invalid"),
        *(
            ([*E0, "subjects", OWNER, "announcement"], value, "policies:subjectannouncement.invalid")
            for value in ODD_ANNOUNCEMENTS
        ),
        ([*E0, "subjects", "nobody"], {"type": "t"}, "policies:subjectid.invalid"),
        ([*E0, "subjects", ""], {"type": "t"}, "policies:subjectid.invalid"),
        ([*E0, "subjects", "a:b\n"], {"type": "t"}, "policies:subjectid.invalid"),
        ([*E0, "subjects", ":x"], {"type": "t"}, "policies:subjectid.invalid"),
        ([*E0, "subjects", "http://host"], {"type": "t"}, "policies:subjectid.invalid"),
        ([*E0, "subjects", "a:" + "x" * 255], {"type": "t"}, "policies:subjectid.invalid"),
        ([*E0, "subjects", "{{ request:other }}"], {"type": "t"}, "placeholder:unresolved"),
        ([*E0, "resources", "thing"], ALL, "policies:entry.invalid"),
        ([*E0, "resources", "thing:/a//b"], ALL, "policies:entry.invalid"),
        ([*E0, "resources", "thing:/a\tb"], ALL, "policies:entry.invalid"),
        ([*E0, "resources", ""], ALL, "policies:entry.invalid"),
        ([*E0, "resources"], 5, "json.invalid"),
        ([*E0, "subjects"], [], "json.invalid"),
        ([*E0, "importable"], "maybe", "policies:entry.invalid"),
        ([*E0, "namespaces"], ["acme*"], "policies:entry.invalid"),
        ([*E0, "namespaces"], [5], "json.invalid"),
        ([*E0, "references"], [{"entry": "B"}], "policies:entry.invalid"),
        ([*E0, "references"], [{"entry": "E0"}], "policies:entry.invalid"),
        ([*E0, "references"], [{"entry": 5}], "json.invalid"),
        ([*E0, "references"], [{}], "json.field.missing"),
        ([*E0, "references"], [{"entry": "imported-x"}], "policies:label.invalid"),
        ([*E0, "references"], [{"entry": "B", "import": None}], "json.invalid"),
        ([*E0, "references"], [{"entry": "B", "import": "b"}], "policies:id.invalid"),
        ([*E0, "references"], [{"entry": "B", "import": "a:b"}], "policies:import.invalid"),
        ([*E0, "references"], [{"entry": "B", "import": 5}], "json.invalid"),
        ([*E0, "references"], {}, "json.invalid"),
        ([*E0, "allowedAdditions"], "x", "json.invalid"),
        ([*E0, "allowedAdditions"], ["labels"], "policies:entry.invalid"),
        (["entries", "imported-x"], OWNERS, "policies:label.invalid"),
        (["entries", "nsimported"], OWNERS, "policies:label.invalid"),
        (["entries", "a/b"], OWNERS, "policies:entry.invalid"),
        (["entries", ""], OWNERS, "policies:entry.invalid"),
        (["entries", "a\nb"], OWNERS, "policies:entry.invalid"),
        (["entries", "a" * 257], OWNERS, "policies:entry.invalid"),
        (["entries", "x"], 5, "json.invalid"),
        (["entries"], [], "json.invalid"),
        (["imports"], {f"acme:p{n}": {} for n in range(11)}, "policies:imports.toolarge"),
        (["imports"], {POLICY: {}}, "policies:import.invalid"),
        (["imports"], 5, "json.invalid"),
        (["imports"], {"a:b": 5}, "json.invalid"),
        (["imports"], {"a:b": {"entries": "X"}}, "json.invalid"),
        (["imports"], {"a:b": {"entries": ["imported-x"]}}, "policies:label.invalid"),
        (["imports"], {"a:b": {"entries": ["a/b"]}}, "policies:entry.invalid"),
        (["imports"], {"a:b": {"transitiveImports": [POLICY]}}, "policies:import.invalid"),
        (["imports"], {"a:b": {"transitiveImports": [f"a:{n}" for n in range(11)]}}, "policies:imports.toolarge"),
        (["imports"], {"ab": {}}, "policies:id.invalid"),
        (["policyId"], ..., "policies:id.invalid"),
        (["policyId"], "acme.plant:other", "policies:id.notsettable"),
    ],
)
def test_case_58_59_60_68_policies_that_are_no_policies(path: list[str], value: Any, code: str) -> None:
    assert TwinHarness().refused("create", "/", _with(path, value), to=P) == (400, code)


def test_case_60_an_expiry_is_rounded_up_and_is_in_the_future() -> None:
    harness = TwinHarness()
    with_expiry = _with([*E0, "subjects", VIEWER], {"type": "t", "expiry": "2030-01-15T07:40:00+00:00"})
    harness.send("create", "/", with_expiry, to=P)
    assert harness.get(to=P)["entries"]["E0"]["subjects"][VIEWER]["expiry"] == "2030-01-15T08:00:00Z"
    past = _with([*E0, "subjects", VIEWER], {"type": "t", "expiry": "2030-01-15T06:59:00Z"})
    assert harness.refused("modify", "/", past, to=P) == (400, "policies:subjectexpiry.invalid")


def test_an_expiry_in_the_last_hour_of_the_calendar_is_refused_with_its_reason() -> None:
    last = _with([*E0, "subjects", VIEWER], {"type": "t", "expiry": "9999-12-31T23:59:59Z"})
    with pytest.raises(TwinError) as caught:
        TwinHarness().send("create", "/", last, to=P)
    assert "at most the year 9999 when it is rounded up" in caught.value.fault.message


def test_an_expired_subject_has_no_rights_any_more() -> None:
    harness = twin_harness(attributes={"a": 1})
    viewing = entry([], {"thing:/": granting("READ")})
    viewing["subjects"] = {VIEWER: {"type": "t", "expiry": "2030-01-15T08:00:00Z"}}
    harness.write_policy({"VIEW": viewing})
    assert harness.get("/attributes", by=[VIEWER]) == {"a": 1}
    harness.now = "2030-01-15T08:00:00.000000Z"
    assert harness.refused("retrieve", "/attributes", by=[VIEWER]) == (404, "things:thing.notfound")


def test_case_61_a_thing_without_policy_gets_one() -> None:
    harness = TwinHarness()
    decision = harness.send("create", "/", {}, by=[OWNER, VIEWER])
    assert [(event.entity, event.action, event.revision) for event in decision.events] == [
        (policy(THING), "created", 1),
        (harness.events[-1].entity, "created", 1),
    ]
    assert harness.get(to=policy(THING)) == {
        "policyId": THING,
        "imports": {},
        "entries": {
            "DEFAULT": {
                "subjects": {OWNER: {"type": "generated"}},
                "resources": {"policy:/": ALL, "thing:/": ALL, "message:/": ALL},
                "importable": "implicit",
            }
        },
    }
    assert harness.status("modify", "/attributes/a", 1) == 201


def test_a_default_policy_made_again_continues_counting() -> None:
    harness = TwinHarness()
    harness.send("create", "/", {})
    harness.send("delete")
    harness.send("delete", to=policy(THING))
    decision = harness.send("create", "/", {})
    assert [event.revision for event in decision.events] == [3, 3]


def test_case_62_inline_and_copied_policy_conflict() -> None:
    value = {"_policy": a_policy(OWNERS), "_copyPolicyFrom": POLICY}
    assert TwinHarness().refused("create", "/", value) == (400, "things:policy.conflicting")


def test_case_63_a_policy_is_copied() -> None:
    harness = TwinHarness()
    harness.write_policy({"VIEW": entry([VIEWER], {"policy:/": granting("READ"), "thing:/": ALL})})
    value = {"_copyPolicyFrom": POLICY}
    assert answer(harness.send("create", "/", value)) == {"thingId": THING, "policyId": THING}
    assert harness.get(to=policy(THING))["entries"] == harness.get(to=P)["entries"]
    other = "acme.plant:boiler-09"
    assert harness.refused("create", "/", value, to=other, by=["edge:nobody"]) == (404, "policies:policy.notfound")
    assert harness.refused("create", "/", value, to=other, by=[VIEWER]) == (403, "things:thing.notcreatable")
    assert harness.status("create", "/", value, to=other, by=[VIEWER], allow_policy_lockout=True) == 201


def test_a_policy_copy_without_a_permanent_administrator_is_refused() -> None:
    """In another namespace the entry of the owner does not apply; the copying subject expires."""
    guest = entry([], {"policy:/": ALL, "thing:/": ALL})
    guest["subjects"] = {VIEWER: {"type": "t", "expiry": "2030-01-15T09:00:00Z"}}
    harness = TwinHarness()
    entries = {"OWNERS": {**OWNERS, "namespaces": ["acme.plant"]}, "GUEST": guest}
    harness.send("create", "/", {"policyId": POLICY, "entries": entries}, to=P)
    value = {"_copyPolicyFrom": POLICY}
    assert harness.refused("create", "/", value, to="other:lamp", by=[VIEWER]) == (400, "things:policy.invalid")
    assert harness.status("create", "/", value, by=[VIEWER]) == 201


OTHER = "acme.plant:other"


def test_case_64_the_policy_of_another_thing_is_copied() -> None:
    harness = twin_harness()
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/policyId": granting("READ"), "policy:/": ALL})})
    value = {"_copyPolicyFrom": f"{{{{ ref:things/{THING}/policyId }}}}"}
    assert harness.status("create", "/", value, to=OTHER) == 201
    assert harness.get(to=policy(OTHER))["entries"] == harness.get(to=P)["entries"]
    third = "acme.plant:third"
    # VIEWER may read where the policy is named, and the policy; but not write a thing under its copy.
    assert harness.refused("create", "/", value, to=third, by=[VIEWER]) == (403, "things:thing.notmodifiable")
    assert harness.refused("create", "/", value, to=third, by=["edge:nobody"]) == (404, "things:thing.notfound")
    assert harness.refused("create", "/", {"_copyPolicyFrom": "{{ ref:things/a:none/policyId }}"}, to=third) == (
        404,
        "things:thing.notfound",
    )


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("{{ ref:things/x/foo }}", "reference.unknown.field"),
        (f"{{{{ ref:things/{THING}/attributes }}}}", "reference.unknown.field"),
        ("{{ ref:things/x/policyId }}", "reference.notsupported"),
        (f"{{{{ ref:policies/{POLICY}/policyId }}}}", "reference.notsupported"),
        ("{{ request:subjectId }}", "reference.notsupported"),
    ],
)
def test_case_64_references_that_cannot_be_followed(reference: str, code: str) -> None:
    refused = twin_harness().refused("create", "/", {"_copyPolicyFrom": reference}, to=OTHER)
    assert refused == (400, f"placeholder:placeholder.{code}")


def test_an_inline_policy_becomes_a_policy() -> None:
    harness = TwinHarness()
    resources = {"thing:/": ALL, "policy:/": ALL}
    inline = {"entries": {"OWNER": entry(["{{ request:subjectId }}", "${request.subjectId}x"], resources)}}
    decision = harness.send("create", "/", {"attributes": {}, "_policy": inline})
    assert answer(decision) == {"thingId": THING, "policyId": THING, "attributes": {}}
    assert set(harness.get(to=policy(THING))["entries"]["OWNER"]["subjects"]) == {OWNER, OWNER + "x"}


@pytest.mark.parametrize(
    ("members", "policy_id"),
    [
        ({}, THING),
        ({"policyId": "acme.plant:mine"}, "acme.plant:mine"),
        ({"_policy": {"policyId": "acme.plant:own"}}, "acme.plant:own"),
    ],
)
def test_the_id_of_an_inline_policy(members: dict[str, Any], policy_id: str) -> None:
    inline = {"entries": {"A": OWNERS}, **members.get("_policy", {})}
    created = TwinHarness().send("create", "/", {**members, "_policy": inline})
    assert answer(created)["policyId"] == policy_id


@pytest.mark.parametrize(
    ("inline", "refusal"),
    [
        ({"entries": {"A": entry([OWNER], {"thing:/": ALL})}}, (400, "things:policy.invalid")),
        ({"entries": {"A": entry([VIEWER], {"policy:/": ALL, "thing:/": ALL})}}, (403, "things:thing.notcreatable")),
        ({"entries": {"A": OWNERS}, "policyId": POLICY}, (400, "things:thing.notcreatable")),
        ({"entries": {"A": OWNERS}, "policyId": "bad"}, (400, "policies:id.invalid")),
        ({"entries": {"A": OWNERS}, "imports": {"a:b": {}}}, (404, "things:thing.notcreatable")),
        (5, (400, "json.invalid")),
    ],
)
def test_inline_policies_that_are_refused(inline: Any, refusal: tuple[int, str]) -> None:
    harness = TwinHarness()
    harness.write_policy({})
    assert harness.refused("create", "/", {"_policy": inline}) == refusal


def test_an_inline_policy_that_gives_the_creator_no_thing_is_not_kept() -> None:
    """Both or neither: the refusal leaves no policy behind."""
    inline = {"entries": {"A": entry([OWNER], {"policy:/": ALL})}}
    assert TwinHarness().refused("create", "/", {"_policy": inline}) == (403, "things:thing.notmodifiable")


def test_case_65_an_unknown_policy_is_reported_among_policies() -> None:
    refusal = TwinHarness().refusal("create", "/", {"policyId": POLICY})
    assert refusal == (404, "policies:policy.notfound", "policies")


def test_case_66_a_thing_under_a_policy_without_write_is_not_created() -> None:
    harness = TwinHarness()
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "policy:/": granting("READ")})})
    assert harness.refused("create", "/", {"policyId": POLICY}, by=[VIEWER]) == (403, "things:thing.notmodifiable")


def test_case_67_a_policy_used_by_things_is_neither_deleted_nor_created_again() -> None:
    """The creator of the policy decides who can read these things."""
    harness = twin_harness()
    harness.send("create", "/", {"policyId": POLICY}, to="acme.plant:boiler-08")
    refused = refusal("policies:policy.referenceconflict", P, "/", "deleted: 2 things name it").fault
    with pytest.raises(TwinError) as error:
        harness.send("delete", to=P)
    assert error.value.fault == refused
    assert refused.status == 409
    assert refused.message == f"The policy '{POLICY}' cannot be deleted: 2 things name it."
    # An operator has erased the policy.
    harness.snapshots[P] = Snapshot(P, 1, harness.now, harness.now, None, None)
    assert harness.refused("retrieve") == (404, "things:thing.notfound")
    assert harness.refused("modify", "/attributes/a", 1) == (404, "things:thing.notfound")
    assert harness.refused("delete", to=P) == (404, "policies:policy.notfound")
    created = {"policyId": POLICY, "entries": {"E": entry([VIEWER], {"policy:/": ALL, "thing:/": ALL})}}
    assert harness.refused("create", "/", created, to=P, by=[VIEWER]) == (409, "policies:policy.referenceconflict")
    new = {"policyId": POLICY, "_policy": created}
    assert harness.refused("create", "/", new, to="acme.plant:trap", by=[VIEWER]) == (409, "things:thing.notcreatable")
    for thing_id in (THING, "acme.plant:boiler-08"):
        harness.snapshots.pop(thing(thing_id))
    assert harness.status("create", "/", created, to=P, by=[VIEWER]) == 201


def test_a_policy_is_deleted_once_no_thing_names_it() -> None:
    harness = twin_harness()
    assert harness.refused("delete", to=P) == (409, "policies:policy.referenceconflict")
    assert harness.refused("delete", to=P, by=[VIEWER]) == (404, "policies:policy.notfound")
    harness.write_policy({}, to="acme.plant:others")
    harness.send("modify", "/policyId", "acme.plant:others")
    assert harness.status("delete", to=P) == 204
    harness.send("delete")
    assert harness.status("delete", to=policy("acme.plant:others")) == 204


def test_a_policy_that_others_import_is_not_deleted() -> None:
    """The creator of the policy adds entries to the policies that import it."""
    harness = TwinHarness()
    harness.write_policy({}, to="acme.plant:shared")
    harness.write_policy({})
    harness.send("modify", "/imports/acme.plant:shared", {}, to=P)
    with pytest.raises(TwinError) as error:
        harness.send("delete", to=policy("acme.plant:shared"))
    assert error.value.fault.message == "The policy 'acme.plant:shared' cannot be deleted: 1 policy imports it."
    harness.send("delete", "/imports/acme.plant:shared", to=P)
    assert harness.status("delete", to=policy("acme.plant:shared")) == 204


def test_case_69_the_largest_policy_and_a_merge() -> None:
    whole = a_policy(OWNERS, entry([], {f"thing:/attributes/{'x' * 100}{n}": ALL for n in range(800)}))
    assert TwinHarness().refused("create", "/", whole, to=P) == (413, "policies:policy.toolarge")
    assert TwinHarness(TwinLimits(policy=200_000)).status("create", "/", whole, to=P) == 201
    assert TwinHarness().refused("merge", "/", {}, to=P) == (400, "protocoladapter:unknown.topicpath")


def test_a_policy_is_read_as_far_as_it_may_be() -> None:
    harness = TwinHarness()
    harness.write_policy({"VIEW": entry([VIEWER], {"policy:/entries/VIEW": granting("READ")})})
    assert harness.get(to=P, by=[VIEWER], fields="policyId,_revision,entries") == {
        "policyId": POLICY,
        "_revision": 1,
        "entries": {"VIEW": harness.get(to=P)["entries"]["VIEW"]},
    }
    assert harness.refused("retrieve", to=P, by=["edge:nobody"]) == (404, "policies:policy.notfound")


def test_a_reader_of_one_resource_sees_that_resource_of_a_policy() -> None:
    """Keys of resources have slashes in them, and so have the paths that guard them."""
    harness = TwinHarness()
    guarded = "policy:/entries/OWNERS/resources/thing:/"
    harness.write_policy({"VIEW": entry([VIEWER], {guarded: granting("READ")})})
    assert harness.get(to=P, by=[VIEWER])["entries"] == {"OWNERS": {"resources": {"thing:/": ALL}}}


def test_a_policy_needs_unrestricted_write() -> None:
    harness = TwinHarness()
    harness.write_policy({})
    harness.write_policy({"X": entry([OWNER], {"policy:/entries/X": revoking("WRITE")})})
    assert harness.refused("modify", "/", a_policy(OWNERS), to=P) == (403, "policies:policy.notmodifiable")
    assert harness.refused("delete", to=P) == (403, "policies:policy.notmodifiable")


def test_entity_tags_and_if_equal_hold_for_policies_and_conditions_do_not() -> None:
    harness = TwinHarness()
    harness.send("create", "/", a_policy(OWNERS), to=P)
    assert harness.refused("modify", "/", a_policy(OWNERS), to=P, if_equal="skip") == (
        412,
        "policies:precondition.failed",
    )
    assert harness.refused("modify", "/", a_policy(OWNERS), to=P, if_match='"rev:9"')[0] == 412
    assert harness.refused("retrieve", to=P, if_none_match='"rev:1"') == (304, "policies:precondition.notmodified")
    assert harness.status("modify", "/", a_policy(OWNERS), to=P, if_match='"rev:1"', condition="eq(") == 204


def test_the_description_of_a_refused_policy_or_key_lists_every_possible_cause() -> None:
    description = refusal("things:thing.notcreatable", policy(THING), detail=THING).fault.description or ""
    assert "'policy:/'" in description
    assert "size" in description
    assert "U+00FF" in (refusal("json.key.invalid", policy(THING), detail="'\u00e4'").fault.description or "")

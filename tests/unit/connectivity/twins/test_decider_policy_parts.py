"""Commands on the parts of a policy: the values, effects and refusals of each path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.twins.context import TwinLimits
from mappings.model.json_pointer import get
from tests.support.cpu_budget import at_most
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
    twin_harness,
)

P = policy(POLICY)
SHARED = "acme.shared:roles"
AUDITOR = {"type": "auditor"}
VIEW = entry([VIEWER], {"thing:/": granting("READ")})
BY_PATH = "/entries/VIEW/resources/thing:/features/burner"


def policy_harness(**entries: Any) -> TwinHarness:
    """A harness where OWNERS have all permissions and VIEWER reads things, with a policy to import."""
    harness = TwinHarness()
    harness.write_policy({"OPS": {**VIEW, "importable": "explicit"}}, to=SHARED)
    harness.write_policy({"VIEW": VIEW, **entries})
    harness.events.clear()
    return harness


# --- every path: its values and responses --------------------------------------------------------------------------------

WRITES = [
    ("/entries", {"OWNERS": OWNERS, "B": VIEW}, 204, "modified"),
    ("/entries/NEW", VIEW, 201, "created"),
    ("/entries/VIEW", VIEW, 204, "modified"),
    ("/entries/VIEW/subjects", {"edge:other": AUDITOR}, 204, "modified"),
    ("/entries/VIEW/subjects/edge:auditor", AUDITOR, 201, "created"),
    (f"/entries/VIEW/subjects/{VIEWER}", AUDITOR, 204, "modified"),
    ("/entries/VIEW/subjects/https://id.acme/:a/b", AUDITOR, 201, "created"),
    ("/entries/VIEW/resources", {"thing:/": ALL}, 204, "modified"),
    (BY_PATH, ALL, 201, "created"),
    ("/entries/VIEW/resources/thing:/", ALL, 204, "modified"),
    ("/entries/VIEW/importable", "never", 204, "modified"),
    ("/entries/VIEW/namespaces", ["acme.*"], 204, "modified"),
    ("/entries/VIEW/allowedAdditions", ["subjects"], 204, "modified"),
    ("/entries/VIEW/references", [{"entry": "OWNERS"}], 201, "modified"),
    ("/imports", {SHARED: {"entries": ["OPS"]}}, 204, "modified"),
    (f"/imports/{SHARED}", {"entries": ["OPS"]}, 201, "created"),
]


@each_row(("path", "value", "status", "action"), WRITES)
def test_a_part_is_written(path: str, value: Any, status: int, action: str) -> None:
    """201 with the value for a new part, else 204; the event has the same path and value."""
    harness = policy_harness()
    decision = harness.send("modify", path, value, to=P)
    assert decision.response.status == status
    stored = harness.get(path, to=P)
    assert answer(decision) == (stored if status == 201 else None)
    assert last(harness) == (action, path, stored, 2)
    assert decision.response.path == path
    assert decision.response.headers["entity-revision"] == 2
    tag = decision.response.headers["etag"]
    assert tag == harness.send("retrieve", path, to=P).response.headers["etag"]
    assert tag.startswith('"hash:')
    again = harness.send("modify", path, value, to=P)
    assert again.response.status == 204
    assert last(harness)[0] == "modified"
    assert harness.refused("modify", path, value, to=P, if_equal="skip") == (412, "policies:precondition.failed")


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("/entries/VIEW", VIEW, "entry"),
        (f"/entries/VIEW/subjects/{VIEWER}", AUDITOR, "subject"),
        ("/entries/VIEW/resources/thing:/", ALL, "resource"),
        (f"/imports/{SHARED}", {}, "import"),
    ],
)
def test_a_part_is_deleted_once(path: str, value: Any, name: str) -> None:
    harness = policy_harness()
    harness.send("modify", path, value, to=P)
    assert harness.status("delete", path, to=P) == 204
    assert last(harness)[:3] == ("deleted", path, None)
    assert harness.refused("delete", path, to=P) == (404, f"policies:{name}.notfound")
    assert harness.refused("retrieve", path, to=P) == (404, f"policies:{name}.notfound")


@pytest.mark.parametrize(("name", "value"), [("allowedAdditions", ["subjects"]), ("references", [{"entry": "OWNERS"}])])
def test_an_optional_part_is_an_empty_list_where_it_is_absent(name: str, value: Any) -> None:
    harness = policy_harness()
    path = f"/entries/VIEW/{name}"
    assert harness.get(path, to=P) == []
    for _ in range(2):
        assert harness.status("delete", path, to=P) == 204
        assert last(harness)[:3] == ("deleted", path, None)
    harness.send("modify", path, value, to=P)
    assert harness.get(path, to=P) == value
    harness.send("delete", path, to=P)
    assert (harness.get(path, to=P), name in harness.get("/entries/VIEW", to=P)) == ([], False)
    for action in ("retrieve", "delete"):
        assert harness.refused(action, f"/entries/NONE/{name}", to=P) == (404, "policies:entry.notfound")
    harness.send("modify", "/entries/OTHER", entry(["edge:other"], {"policy:/entries/OTHER": ALL}), to=P)
    assert harness.refused("retrieve", path, to=P, by=["edge:other"]) == (404, "policies:entry.notfound")
    assert harness.refused("delete", path, to=P, by=["edge:other"]) == (403, "policies:entry.notmodifiable")


def test_the_first_references_of_an_entry_are_created() -> None:
    harness = policy_harness(OTHER=VIEW)
    path, value = "/entries/VIEW/references", [{"entry": "OWNERS"}]
    assert harness.status("modify", path, [], to=P) == 204
    for status in (201, 204):
        assert harness.status("modify", path, value, to=P) == status
        assert last(harness)[0] == "modified"
    assert harness.status("modify", path, [{"entry": "OTHER"}], to=P) == 204
    assert harness.status("delete", path, to=P) == 204
    assert harness.status("modify", path, value, to=P) == 201
    assert harness.status("modify", path, [], to=P) == 204
    assert harness.status("modify", path, value, to=P) == 201
    assert harness.refused("modify", path, value * 2, to=P) == (400, "policies:entry.invalid")
    harness.send("modify", "/entries/VIEW", {**VIEW, "references": []}, to=P)
    assert "references" not in harness.get("/entries/VIEW", to=P)


def test_an_entry_without_references_has_neither_the_member_nor_a_tag() -> None:
    harness = policy_harness()
    path, value = "/entries/VIEW/references", [{"entry": "OWNERS"}]
    for _ in range(2):
        emptied = harness.send("modify", path, [], to=P).response
        assert (emptied.status, emptied.value, emptied.headers.get("etag")) == (204, None, None)
        assert last(harness)[:3] == ("deleted", path, None)
        assert "references" not in harness.get("/entries/VIEW", to=P)
        found = harness.send("retrieve", path, to=P, if_none_match="*").response
        assert (found.status, found.headers.get("etag")) == (200, None)
        assert harness.refused("modify", path, value, to=P, if_match="*") == (412, "policies:precondition.failed")
        assert harness.status("modify", path, value, to=P, if_none_match="*") == 201
        assert "etag" in harness.send("retrieve", path, to=P).response.headers


def test_deleting_the_imports_removes_every_import() -> None:
    harness = policy_harness()
    harness.send("modify", "/imports", {SHARED: {}}, to=P)
    assert harness.get("/imports", to=P) == {SHARED: {"entries": []}}
    assert harness.status("delete", "/imports", to=P) == 204
    assert last(harness)[:3] == ("deleted", "/imports", None)
    assert harness.get(to=P)["imports"] == {}


def test_the_parts_of_an_import_are_written() -> None:
    harness = policy_harness()
    for name in ("entries", "transitiveImports"):
        assert harness.refused("modify", f"/imports/{SHARED}/{name}", [], to=P) == (404, "policies:import.notfound")
    harness.send("modify", f"/imports/{SHARED}", {}, to=P)
    assert harness.get(f"/imports/{SHARED}/transitiveImports", to=P) == []
    assert harness.status("modify", f"/imports/{SHARED}/entries", ["OPS"], to=P) == 204
    assert harness.status("modify", f"/imports/{SHARED}/transitiveImports", ["acme.root:base"], to=P) == 204
    assert last(harness)[:2] == ("modified", f"/imports/{SHARED}/transitiveImports")
    assert harness.get("/imports", to=P) == {SHARED: {"entries": ["OPS"], "transitiveImports": ["acme.root:base"]}}


@each_row(
    ("action", "path", "code"),
    [
        ("create", "/entries/A", "protocoladapter:unknown.topicpath"),
        ("merge", "/entries/A", "protocoladapter:unknown.topicpath"),
        ("delete", "/entries", "protocoladapter:unknown.topicpath"),
        ("delete", "/entries/VIEW/subjects", "protocoladapter:unknown.topicpath"),
        ("delete", "/entries/VIEW/importable", "protocoladapter:unknown.topicpath"),
        ("delete", f"/imports/{SHARED}/entries", "protocoladapter:unknown.topicpath"),
        ("modify", "/entries/A/other", "protocoladapter:unknown.path"),
        ("modify", "/entries/A/importable/x", "protocoladapter:unknown.path"),
        ("modify", "/policyId", "protocoladapter:unknown.path"),
        ("modify", "/attributes", "protocoladapter:unknown.path"),
        ("modify", "/entries//x", "json.pointer.invalid"),
        ("modify", "/entries//subjects", "json.pointer.invalid"),
        ("modify", "/imports/no-id", "policies:id.invalid"),
        ("modify", "/entries/a\nb", "policies:entry.invalid"),
        ("modify", f"/entries/{'a' * 257}", "policies:entry.invalid"),
    ],
)
def test_an_unsupported_action_or_path_of_a_policy_is_refused(action: str, path: str, code: str) -> None:
    assert policy_harness().refused(action, path, {}, to=P) == (400, code)


@each_row(
    ("path", "value", "code"),
    [
        ("/entries", [], "json.format.invalid"),
        ("/entries", {"A": 5}, "json.invalid"),
        ("/entries", {"imported-a": VIEW}, "policies:label.invalid"),
        ("/entries/A", 5, "json.format.invalid"),
        ("/entries/A", {"subjects": 5}, "json.invalid"),
        ("/entries/imported-x", VIEW, "policies:label.invalid"),
        ("/entries/nsimported", VIEW, "policies:label.invalid"),
        ("/entries/VIEW/subjects", 5, "json.format.invalid"),
        ("/entries/VIEW/subjects/edge:a", {}, "json.field.missing"),
        ("/entries/VIEW/subjects/edge:a", "x", "json.format.invalid"),
        ("/entries/VIEW/subjects/nobody", AUDITOR, "policies:subjectid.invalid"),
        ("/entries/VIEW/subjects/edge:a\n", AUDITOR, "policies:subjectid.invalid"),
        ("/entries/VIEW/subjects/{{ request:me }}", AUDITOR, "placeholder:unresolved"),
        (
            "/entries/VIEW/subjects/edge:a",
            {"type": "t", "expiry": "2030-01-15T07:00:00Z"},
            "policies:subjectexpiry.invalid",
        ),
        (
            "/entries/VIEW/subjects/edge:a",
            {"type": "t", "announcement": {"whenDeleted": 1}},
            "policies:subjectannouncement.invalid",
        ),
        ("/entries/VIEW/resources", None, "json.format.invalid"),
        (BY_PATH, {"grant": []}, "json.field.missing"),
        (BY_PATH, [], "json.format.invalid"),
        ("/entries/VIEW/resources/thing", ALL, "policies:entry.invalid"),
        ("/entries/VIEW/resources/thing:/a//b", ALL, "policies:entry.invalid"),
        ("/entries/VIEW/resources/thing:/a\x01b", ALL, "policies:entry.invalid"),
        ("/entries/VIEW/importable", "sometimes", "policies:entry.invalid"),
        ("/entries/VIEW/importable", [], "policies:entry.invalid"),
        ("/entries/VIEW/namespaces", "acme", "json.format.invalid"),
        ("/entries/VIEW/namespaces", ["*"], "policies:entry.invalid"),
        ("/entries/VIEW/allowedAdditions", ["all"], "policies:entry.invalid"),
        ("/entries/VIEW/references", {}, "json.format.invalid"),
        ("/entries/VIEW/references", [{"entry": "NONE"}], "policies:entry.invalid"),
        ("/entries/VIEW/references", [{"entry": "A", "import": SHARED}], "policies:entry.invalid"),
        ("/imports", [], "json.format.invalid"),
        ("/imports", {POLICY: {}}, "policies:import.invalid"),
        (f"/imports/{POLICY}", {}, "policies:import.invalid"),
        ("/imports", {f"acme:p{n}": {} for n in range(11)}, "policies:imports.toolarge"),
        (f"/imports/{SHARED}", 5, "json.format.invalid"),
    ],
)
def test_values_that_do_not_fit_their_path(path: str, value: Any, code: str) -> None:
    assert policy_harness().refused("modify", path, value, to=P) == (400, code)


# --- the numbered cases --------------------------------------------------------------------------------------------------


def test_case_55_the_last_administrator_stays() -> None:
    """No change of any part may remove the last administrator."""
    harness = policy_harness()
    refused = (403, "policies:entry.modificationinvalid")
    owners = "/entries/OWNERS"
    assert harness.refused("delete", f"{owners}/subjects/{OWNER}", to=P) == refused
    assert harness.refused("delete", owners, to=P) == refused
    assert harness.refused("delete", f"{owners}/resources/policy:/", to=P) == refused
    assert harness.refused("modify", owners, VIEW, to=P) == refused
    assert harness.refused("modify", f"{owners}/subjects", {}, to=P) == refused
    expiring = {"type": "t", "expiry": "2031-01-01T00:00:00Z"}
    assert harness.refused("modify", f"{owners}/subjects/{OWNER}", expiring, to=P) == refused
    assert harness.refused("modify", f"{owners}/resources", {}, to=P) == refused
    assert harness.refused("modify", f"{owners}/resources/policy:/", granting("READ"), to=P) == refused
    assert harness.refused("modify", "/entries/LOCK", entry([OWNER], {"policy:/": revoking("WRITE")}), to=P) == refused
    assert harness.refused("modify", f"{owners}/namespaces", ["elsewhere"], to=P) == refused
    assert harness.refused("modify", "/entries", {"VIEW": VIEW}, to=P) == (403, "policies:policy.modificationinvalid")
    lockout = {"allow_policy_lockout": True}
    assert harness.refused("delete", owners, to=P, **lockout) == refused
    # An imported policy may change at any time, so an importing one is not checked.
    harness.send("modify", f"/imports/{SHARED}", {}, to=P)
    assert harness.status("delete", owners, to=P) == 204


def test_case_56_a_subject_comes_and_goes() -> None:
    harness = policy_harness()
    path = "/entries/VIEW/subjects/edge:auditor"
    assert [harness.status("modify", path, AUDITOR, to=P) for _ in range(2)] == [201, 204]
    assert harness.status("delete", path, to=P) == 204
    assert harness.refused("delete", path, to=P) == (404, "policies:subject.notfound")
    unknown = "/entries/NONE/subjects/edge:auditor"
    assert harness.refused("modify", unknown, AUDITOR, to=P) == (404, "policies:entry.notfound")
    assert harness.refused("delete", unknown, to=P) == (404, "policies:entry.notfound")
    assert harness.refused("retrieve", unknown, to=P) == (404, "policies:entry.notfound")


def test_case_57_a_resource_is_written() -> None:
    harness = policy_harness()
    assert [harness.status("modify", BY_PATH, ALL, to=P) for _ in range(2)] == [201, 204]
    unknown = BY_PATH.replace("VIEW", "NONE")
    assert harness.refused("modify", unknown, ALL, to=P) == (404, "policies:entry.notfound")


def test_case_60_the_response_shows_the_rounded_expiry() -> None:
    harness = policy_harness()
    in_ten_minutes = {"type": "t", "expiry": "2030-01-15T07:40:00Z"}
    response = harness.send("modify", "/entries/VIEW/subjects/edge:a", in_ten_minutes, to=P)
    assert answer(response) == {"type": "t", "expiry": "2030-01-15T08:00:00Z"}


def test_case_69_parts_apply_to_the_size_of_the_whole() -> None:
    harness = policy_harness()
    many = {f"thing:/attributes/{'x' * 100}{n}": ALL for n in range(800)}
    assert harness.refused("modify", "/entries/VIEW/resources", many, to=P) == (413, "policies:policy.toolarge")
    size = len(json.dumps(harness.get(to=P), separators=(",", ":")))
    harness.limits = TwinLimits(policy=size + 30)
    assert harness.refused("modify", "/entries/VIEW/subjects/edge:a", {"type": "x" * 30}, to=P)[0] == 413
    assert harness.status("modify", "/entries/VIEW/subjects/edge:a", {"type": "x"}, to=P) == 201


def test_case_69_a_thousand_entries_are_too_large_and_the_largest_policy_fits() -> None:
    entries = {f"ENTRY-{n}": VIEW for n in range(1_000)}
    assert TwinHarness().refused("modify", "/", {"entries": {"O": OWNERS, **entries}}, to=P) == (
        413,
        "policies:policy.toolarge",
    )

    def filled(length: int) -> dict[str, Any]:
        return {"entries": {"O": OWNERS, "FILL": entry([], {f"thing:/attributes/{'x' * length}": granting()})}}

    harness = TwinHarness(TwinLimits(policy=10**6))
    harness.send("modify", "/", filled(1), to=P)
    empty = len(json.dumps(harness.get(to=P), separators=(",", ":"))) - 1
    fitting = TwinLimits().policy - empty
    assert TwinHarness().status("modify", "/", filled(fitting), to=P) == 201
    assert TwinHarness().refused("modify", "/", filled(fitting + 1), to=P) == (413, "policies:policy.toolarge")


# --- permissions, and visible parts --------------------------------------------------------------------------------------


@each_row(
    ("path", "value", "name"),
    [
        ("/entries", {}, "policy"),
        ("/entries/VIEW", VIEW, "entry"),
        ("/entries/VIEW/subjects", {}, "subjects"),
        (f"/entries/VIEW/subjects/{VIEWER}", AUDITOR, "subject"),
        ("/entries/VIEW/resources", {}, "resources"),
        ("/entries/VIEW/resources/thing:/", ALL, "resource"),
        ("/entries/VIEW/importable", "never", "entry"),
        ("/entries/VIEW/namespaces", [], "entry"),
        ("/entries/VIEW/allowedAdditions", [], "entry"),
        ("/entries/VIEW/references", [], "entry"),
        ("/imports", {}, "imports"),
        (f"/imports/{SHARED}", {}, "import"),
        (f"/imports/{SHARED}/entries", [], "import"),
    ],
)
def test_the_code_of_a_refusal_names_the_part(path: str, value: Any, name: str) -> None:
    harness = policy_harness(OTHER=entry(["edge:other"], {"policy:/entries/OTHER": ALL}))
    assert harness.refused("modify", path, value, to=P, by=["edge:other"]) == (403, f"policies:{name}.notmodifiable")
    if name != "policy":
        assert harness.refused("retrieve", path, to=P, by=["edge:other"]) == (404, f"policies:{name}.notfound")
    for action in ("modify", "retrieve"):
        assert harness.refused(action, path, value, to=P, by=[VIEWER]) == (404, "policies:policy.notfound")
    harness.send("delete", to=P)
    for action in ("modify", "retrieve"):
        refused = harness.refused(action, path, value, to=P)
        assert refused == (404, "policies:policy.notfound")


def test_permission_on_one_part_is_enough_for_that_part() -> None:
    """Resources guard the parts of a policy like those of a thing, keys with slashes in them too."""
    guarded = f"policy:{BY_PATH}"
    guard = entry(["edge:a"], {guarded: ALL, "policy:/entries/VIEW/subjects": granting("READ")})
    harness = policy_harness(GUARD=guard)
    by: dict[str, Any] = {"to": P, "by": ["edge:a"]}
    assert harness.status("modify", BY_PATH, ALL, **by) == 201
    assert harness.get(BY_PATH, **by) == ALL
    assert harness.get("/entries", **by) == {
        "VIEW": {"subjects": {VIEWER: {"type": "test"}}, "resources": {"thing:/features/burner": ALL}}
    }
    assert harness.get("/entries/VIEW", **by, fields="subjects") == {"subjects": {VIEWER: {"type": "test"}}}
    assert harness.refused("modify", "/entries/VIEW/resources/thing:/", ALL, **by)[0] == 403
    assert harness.refused("retrieve", "/entries/VIEW/importable", **by) == (404, "policies:entry.notfound")
    assert harness.status("delete", BY_PATH, **by) == 204


def test_the_caller_may_name_himself_in_a_path() -> None:
    harness = policy_harness()
    decision = harness.send("modify", "/entries/VIEW/subjects/{{ request:subjectId }}", AUDITOR, to=P)
    assert decision.response.path == f"/entries/VIEW/subjects/{OWNER}"
    assert last(harness)[:2] == ("created", f"/entries/VIEW/subjects/{OWNER}")
    assert harness.get("/entries/VIEW/subjects/{{ request:subjectId }}", to=P) == AUDITOR
    assert harness.status("delete", "/entries/VIEW/subjects/${request.subjectId}", to=P) == 204


@each_row("begin, pause", [("{{", " "), ("{{ ", "\n"), ("${", " "), ("{{", "{{"), ("${", "${")])
def test_a_subject_with_a_placeholder_that_does_not_end_is_refused_at_once(begin: str, pause: str) -> None:
    harness, subjects = policy_harness(), {f"acme:{begin}{pause * 20_000}": AUDITOR}
    with at_most(1):  # years, where each of its blanks may be the end of the name
        assert harness.refused("modify", "/entries/VIEW/subjects", subjects, to=P)[1] == "policies:subjectid.invalid"


def test_keys_that_look_like_paths_are_keys() -> None:
    """Below subjects and resources nothing is unescaped; a label is, and `~1` means nothing."""
    harness = policy_harness()
    for path, keys in (
        ("/entries/VIEW/resources/thing:/attributes/a~1b", ("VIEW", "resources", "thing:/attributes/a~1b")),
        ("/entries/VIEW/resources/thing:/attributes/a~0~1b", ("VIEW", "resources", "thing:/attributes/a~0~1b")),
        ("/entries/VIEW/resources/message:/inbox/messages/x/", ("VIEW", "resources", "message:/inbox/messages/x/")),
        ("/entries/a~0b~1/resources/thing:/", ("a~b~1", "resources", "thing:/")),
    ):
        if keys[0] != "VIEW":
            harness.send("modify", "/entries/a~0b~1", VIEW, to=P)
        harness.send("modify", path, ALL, to=P)
        assert harness.events[-1].path == path.replace("b~1", "b~01") if keys[0] != "VIEW" else path
        assert get(harness.snapshots[P].state, ("entries", *keys)) == ALL
        assert harness.get(path, to=P) == ALL
        harness.send("delete", path, to=P)
        assert harness.refused("retrieve", path, to=P) == (404, "policies:resource.notfound")


def test_streams_are_resources_of_a_policy_as_things_are() -> None:
    harness = policy_harness()
    for id in ("tank-9", "acme.site:tank-9", "site-4/pumps/a~0b", "Kühlung 日本", ""):
        path = f"/entries/VIEW/resources/stream:/{id}"
        assert harness.status("modify", path, granting("READ", "WRITE"), to=P) == 201
        assert last(harness)[:3] == ("created", path, granting("READ", "WRITE"))
        assert harness.get(path, to=P) == granting("READ", "WRITE")
        assert harness.status("delete", path, to=P) == 204


@pytest.mark.parametrize("resource", ["stream:tank-9", "stream:/site//tank", "stream", "/tank-9"])
def test_a_resource_that_no_stream_has_is_refused(resource: str) -> None:
    harness = policy_harness()
    refusal = harness.refused("modify", "/entries/VIEW/resources", {resource: granting("READ")}, to=P)
    assert refusal == (400, "policies:entry.invalid")


def test_a_key_with_a_tilde_obeys_the_resource_that_names_it() -> None:
    harness = policy_harness(GUARD=entry(["edge:a"], {"policy:/entries/VIEW/resources/thing:/a~0b": ALL}))
    harness.send("modify", "/entries/VIEW/resources/thing:/a~0b", ALL, to=P, by=["edge:a"])
    harness.send("modify", "/entries/VIEW/resources/thing:/a~b", ALL, to=P)
    seen = harness.get("/entries/VIEW/resources", to=P, by=["edge:a"])
    assert seen == {"thing:/a~0b": ALL}


def test_entity_tags_hold_for_parts() -> None:
    harness = policy_harness()
    path = "/entries/VIEW/subjects/edge:auditor"
    assert harness.refused("modify", path, AUDITOR, to=P, if_match="*") == (412, "policies:precondition.failed")
    tag = harness.send("modify", path, AUDITOR, to=P, if_none_match="*").response.headers["etag"]
    assert harness.refused("modify", path, AUDITOR, to=P, if_none_match="*")[0] == 412
    assert harness.refused("retrieve", path, to=P, if_none_match=tag) == (304, "policies:precondition.notmodified")
    assert harness.refused("delete", path, to=P, if_match='"rev:2"')[0] == 412
    assert harness.status("delete", path, to=P, if_match=tag) == 204
    assert harness.refused("delete", path, to=P, if_match=tag) == (404, "policies:subject.notfound")


def test_the_tag_of_a_changed_part_is_that_of_what_its_writer_can_read_afterwards() -> None:
    harness = policy_harness()
    hidden = entry([OWNER], {"policy:/entries/VIEW": revoking("READ")})
    entries = {"OWNERS": OWNERS, "VIEW": VIEW, "HIDDEN": hidden}
    tag = harness.send("modify", "/entries", entries, to=P).response.headers["etag"]
    assert tag == harness.send("retrieve", "/entries", to=P).response.headers["etag"]
    assert harness.status("modify", "/entries", {**entries, "HIDDEN": VIEW}, to=P, if_match=tag) == 204
    itself = entry([OWNER], {"policy:/entries/ITSELF": revoking("READ")})
    assert "etag" not in harness.send("modify", "/entries/ITSELF", itself, to=P).response.headers


def test_a_change_of_a_part_applies_to_the_next_command() -> None:
    harness = twin_harness(attributes={"a": 1})
    harness.write_policy({"VIEW": entry([], {"thing:/": granting("READ")})})
    by: dict[str, Any] = {"by": ["edge:auditor"]}
    assert harness.refused("retrieve", **by) == (404, "things:thing.notfound")
    harness.send("modify", "/entries/VIEW/subjects/edge:auditor", AUDITOR, to=P)
    assert harness.get(**by)["thingId"] == THING
    harness.send("modify", "/entries/VIEW/resources/thing:/attributes", revoking("READ"), to=P)
    assert "attributes" not in harness.get(**by)
    harness.send("delete", "/entries/VIEW/subjects/edge:auditor", to=P)
    assert harness.refused("retrieve", **by)[0] == 404


# --- references ----------------------------------------------------------------------------------------------------------


def test_an_entry_that_others_refer_to_stays() -> None:
    harness = policy_harness()
    harness.send("modify", "/entries/OTHER", VIEW, to=P)
    harness.send("modify", "/entries/VIEW/references", [{"entry": "OTHER"}], to=P)
    conflict = (409, "policies:entry.referenceconflict")
    assert harness.refused("delete", "/entries/OTHER", to=P) == conflict
    assert harness.refused("modify", "/entries/OTHER/importable", "never", to=P) == conflict
    assert harness.refused(
        "modify", "/entries", {"OWNERS": OWNERS, "VIEW": {**VIEW, "references": [{"entry": "X"}]}}, to=P
    ) == (
        400,
        "policies:entry.invalid",
    )
    harness.send("delete", "/entries/VIEW/references", to=P)
    assert harness.status("delete", "/entries/OTHER", to=P) == 204


def test_an_import_that_entries_refer_to_stays() -> None:
    harness = policy_harness()
    harness.send("modify", f"/imports/{SHARED}", {}, to=P)
    harness.send("modify", "/entries/VIEW/references", [{"import": SHARED, "entry": "OPS"}], to=P)
    conflict = (409, "policies:import.referenceconflict")
    assert harness.refused("delete", f"/imports/{SHARED}", to=P) == conflict
    assert harness.refused("delete", "/imports", to=P) == conflict
    assert harness.refused("modify", "/imports", {}, to=P) == conflict
    harness.send("delete", "/entries/VIEW/references", to=P)
    assert harness.status("delete", f"/imports/{SHARED}", to=P) == 204

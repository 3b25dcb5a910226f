"""Imports, references, and entries for some namespaces: what they grant, and what of that is kept up to date."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.authorization import policy_imports
from tests.support.twin_world import (
    ALL,
    OWNER,
    OWNERS,
    POLICY,
    THING,
    VIEWER,
    TwinWorld,
    entry,
    granting,
    policy,
    revoking,
)

P = policy(POLICY)
ROLES, BASE = "acme.shared:roles", "acme.root:base"
READING = {"thing:/": granting("READ")}
ADMIN = ["edge:admin"]


def importable(kind: str, *subjects: str, resources: Any = READING, **more: Any) -> dict[str, Any]:
    return {**entry(subjects, resources), "importable": kind, **more}


def a_world_importing(wanted: dict[str, Any], entries: dict[str, Any], **own: Any) -> TwinWorld:
    """A thing under a policy that imports ROLES so; that one has these entries."""
    world = TwinWorld()
    world.write_policy(entries, to=ROLES)
    value = {"entries": {"OWNERS": OWNERS, **own}, "imports": {ROLES: wanted}}
    world.send("modify", "/", value, to=P)
    world.send("create", "/", {"policyId": POLICY, "attributes": {"a": 1}})
    return world


def may_read(world: TwinWorld, *subjects: str, path: str = "/attributes/a") -> bool:
    enforcer = world.world.enforcer(POLICY, "acme.plant")
    assert enforcer is not None
    return enforcer.has(subjects, "READ", f"thing:{path}")


def test_implicit_entries_come_explicit_ones_when_they_are_named_others_never() -> None:
    entries = {
        "A": importable("implicit", "edge:a"),
        "B": importable("explicit", "edge:b"),
        "C": importable("explicit", "edge:c"),
        "D": importable("never", "edge:d"),
    }
    world = a_world_importing({"entries": ["B", "D", "NONE"]}, entries)
    assert [may_read(world, f"edge:{name}") for name in "abcd"] == [True, True, False, False]
    assert world.get("/attributes/a", by=["edge:a"]) == 1
    assert world.refused("retrieve", by=["edge:d"]) == (404, "things:thing.notfound")


def test_a_change_of_the_imported_policy_applies_to_the_next_command() -> None:
    world = a_world_importing({}, {"A": importable("implicit", "edge:a")})
    shared = policy(ROLES)
    assert may_read(world, "edge:a")
    world.send("delete", "/entries/A/subjects/edge:a", to=shared)
    assert not may_read(world, "edge:a")
    world.send("modify", "/entries/A/subjects/edge:a", {"type": "t"}, to=shared)
    assert may_read(world, "edge:a")
    world.send("modify", "/entries/A/importable", "never", to=shared)
    assert not may_read(world, "edge:a")
    world.send("modify", "/entries/A/importable", "implicit", to=shared)
    erased = world.snapshots.pop(shared)
    assert not may_read(world, "edge:a"), "a policy that is missing is skipped"
    world.snapshots[shared] = erased
    assert may_read(world, "edge:a")
    world.send("delete", f"/imports/{ROLES}", to=P)
    assert not may_read(world, "edge:a")


def test_an_imported_policy_is_compiled_once() -> None:
    world = a_world_importing({}, {"A": importable("implicit", "edge:a")})
    assert world.world.enforcer(POLICY) is world.world.enforcer(POLICY)


def test_an_imported_subject_expires_where_it_is_imported_too() -> None:
    expiring = importable("implicit")
    expiring["subjects"] = {"edge:a": {"type": "t", "expiry": "2030-01-15T08:00:00Z"}}
    world = a_world_importing({}, {"A": expiring})
    assert may_read(world, "edge:a")
    world.now = "2030-01-15T08:00:00.000000Z"
    assert not may_read(world, "edge:a")


def test_revokes_are_imported_as_well() -> None:
    lock = importable("implicit", VIEWER, resources={"thing:/attributes": revoking("READ")})
    world = a_world_importing({}, {"LOCK": lock}, VIEW=entry([VIEWER], READING))
    assert may_read(world, VIEWER, path="/features")
    assert not may_read(world, VIEWER)


def test_imports_go_further_only_where_they_are_named() -> None:
    world = TwinWorld()
    world.write_policy({"A": importable("implicit", "edge:a"), "B": importable("explicit", "edge:b")}, to=BASE)
    world.write_policy({"R": importable("implicit", "edge:r")}, to=ROLES)
    world.send("modify", f"/imports/{BASE}", {"entries": ["B"]}, to=policy(ROLES))
    world.write_policy({})
    world.send("modify", f"/imports/{ROLES}", {}, to=P)
    assert [may_read(world, f"edge:{name}") for name in "rab"] == [True, False, False]
    world.send("modify", f"/imports/{ROLES}/transitiveImports", [BASE], to=P)
    # An explicit entry is for the policy that names it.
    assert [may_read(world, f"edge:{name}") for name in "rab"] == [True, True, False]
    assert world.world.enforcer(ROLES).has(["edge:b"], "READ", "thing:/")  # type: ignore[union-attr]
    resolved = world.get(to=P, policy_view="resolved")
    assert list(resolved["entries"]) == [
        "OWNERS",
        f"imported-{ROLES}-OWNERS",
        f"imported-{ROLES}-R",
        f"imported-{ROLES}-imported-{BASE}-OWNERS",
        f"imported-{ROLES}-imported-{BASE}-A",
    ]
    assert list(world.get(to=P, policy_view="original")["entries"]) == ["OWNERS"]
    assert list(world.get(to=P, policy_view="  ")["entries"]) == ["OWNERS"]
    assert world.refused("retrieve", to=P, policy_view="other") == (400, "policies:view.invalid")


@pytest.mark.parametrize("view", ["resolved", "RESOLVED", " Resolved "])
def test_the_resolved_view_is_of_the_whole_policy(view: str) -> None:
    world = a_world_importing({}, {"A": importable("implicit", "edge:a")})
    labels = ["OWNERS", f"imported-{ROLES}-OWNERS", f"imported-{ROLES}-A"]
    assert list(world.get(to=P, policy_view=view)["entries"]) == labels
    assert list(world.get("/entries", to=P, policy_view=view)) == ["OWNERS"], "parts are as they are stored"
    one = f"/entries/imported-{ROLES}-A/subjects"
    assert world.refused("retrieve", one, to=P, policy_view=view) == (404, "policies:entry.notfound")


def test_the_resolved_view_has_no_entity_tag_and_is_never_unmodified() -> None:
    """An imported policy changes it without a new revision."""
    world = a_world_importing({}, {"A": importable("implicit", "edge:a")})
    tag = world.send("retrieve", to=P).response.headers["etag"]
    assert world.refused("retrieve", to=P, if_none_match=tag) == (304, "policies:precondition.notmodified")
    for precondition in ({"if_none_match": tag}, {"if_match": '"rev:99"'}):
        response = world.send("retrieve", to=P, policy_view="resolved", **precondition).response
        assert (response.status, response.headers.get("etag")) == (200, None)


def test_a_circle_of_imports_ends() -> None:
    world = TwinWorld()
    for id in (POLICY, ROLES, BASE):
        world.write_policy({"A": importable("implicit", f"edge:{id}")}, to=id)
    for id, other, third in ((POLICY, ROLES, BASE), (ROLES, BASE, POLICY), (BASE, POLICY, ROLES)):
        world.send("modify", f"/imports/{other}", {"transitiveImports": [third]}, to=policy(id))
    assert [may_read(world, f"edge:{id}") for id in (POLICY, ROLES, BASE)] == [True, True, True]
    resolved = world.get(to=P, policy_view="resolved")["entries"]
    assert len(resolved) == 6, "two of each, and none twice"
    world.send("create", "/", {"policyId": POLICY})
    assert world.get(by=[f"edge:{BASE}"])["thingId"] == THING


def test_case_68_an_import_of_an_unreadable_missing_or_invalid_policy_is_refused() -> None:
    world = TwinWorld()
    world.write_policy({"OPEN": importable("implicit", "edge:a"), "SHUT": importable("explicit", "edge:a")}, to=ROLES)
    world.write_policy({"ADMIN": entry(ADMIN, {"policy:/": ALL})})
    own = f"/imports/{ROLES}"
    unknown = (404, "policies:policy.notfound")
    assert world.refused("modify", own, {}, to=P, by=ADMIN) == unknown, "no READ"
    assert world.refused("modify", f"/imports/{BASE}", {}, to=P) == unknown, "not there"
    guard = {"policy:/entries/OPEN": granting("READ"), "policy:/entries/OWNERS": granting("READ")}
    world.send("modify", "/entries/GUARD", importable("never", *ADMIN, resources=guard), to=policy(ROLES))
    assert world.status("modify", own, {}, to=P, by=ADMIN) == 201
    assert world.refused("modify", f"{own}/entries", ["SHUT"], to=P, by=ADMIN) == unknown, "no READ on that entry"
    assert world.status("modify", f"{own}/entries", ["SHUT"], to=P) == 204
    # What is there already is not asked for again.
    assert world.status("modify", "/entries/X", entry([], {}), to=P, by=ADMIN) == 201
    shut = [{"import": ROLES, "entry": "SHUT"}]
    assert world.refused("modify", "/entries/X/references", shut, to=P, by=ADMIN) == unknown
    assert world.refused("modify", f"/imports/{POLICY}", {}, to=P) == (400, "policies:import.invalid")
    eleven: dict[str, Any] = {f"acme:p{n}": {} for n in range(11)}
    assert world.refused("modify", "/imports", eleven, to=P) == (400, "policies:imports.toolarge")
    for number in range(10):
        world.write_policy({}, to=f"acme:p{number}")
    world.send("modify", "/imports", {f"acme:p{n}": {} for n in range(10)}, to=P)
    assert world.refused("modify", own, {}, to=P) == (400, "policies:imports.toolarge")


@pytest.mark.parametrize("kind", ["explicit", "never", None], ids=["explicit", "never", "missing"])
def test_the_labels_of_unreadable_entries_cannot_be_guessed_by_naming_them(kind: str | None) -> None:
    world = TwinWorld()
    guard = {"policy:/entries/OPEN": granting("READ"), "policy:/entries/OWNERS": granting("READ")}
    entries = {"OPEN": importable("implicit"), "GUARD": importable("never", *ADMIN, resources=guard)}
    world.write_policy({**entries, "SHUT": importable(kind)} if kind is not None else entries, to=ROLES)
    world.write_policy({"ADMIN": entry(ADMIN, {"policy:/": ALL})})
    unknown = (404, "policies:policy.notfound")
    own = f"/imports/{ROLES}"
    assert world.refused("modify", own, {"entries": ["SHUT"]}, to=P, by=ADMIN) == unknown
    assert world.status("modify", own, {"entries": ["OPEN"]}, to=P, by=ADMIN) == 201
    referring = {**entry([], {}), "references": [{"import": ROLES, "entry": "SHUT"}]}
    assert world.refused("modify", "/entries/X", referring, to=P, by=ADMIN) == unknown
    referring["references"] = [{"import": ROLES, "entry": "OPEN"}]
    assert world.status("modify", "/entries/X", referring, to=P, by=ADMIN) == 201


def test_a_creator_may_hold_his_rights_by_an_import() -> None:
    world = TwinWorld()
    world.write_policy({}, to=ROLES)
    value = {"policyId": POLICY, "imports": {ROLES: {}}}
    assert world.status("create", "/", value, to=P) == 201
    assert world.status("modify", "/entries/A", entry([], {}), to=P) == 201
    inline: dict[str, Any] = {"_policy": {"imports": {ROLES: {}}}}
    assert world.status("create", "/", inline) == 201
    assert world.status("modify", "/attributes/a", 1) == 201


def test_a_policy_copy_needs_permission_to_import_the_policy() -> None:
    world = a_world_importing(
        {}, {"A": importable("implicit", "edge:a")}, ADMIN=entry(ADMIN, {"policy:/": ALL, "thing:/": ALL})
    )
    value = {"_copyPolicyFrom": POLICY}
    assert world.refused("create", "/", value, to="acme.plant:copy", by=ADMIN) == (404, "things:thing.notcreatable")
    assert world.status("create", "/", value, to="acme.plant:copy") == 201


# --- references ----------------------------------------------------------------------------------------------------------


def test_an_entry_shares_with_the_one_that_it_refers_to() -> None:
    """Its subjects have the other's resources, the other's subjects have its own; one level deep."""
    world = TwinWorld()
    world.write_policy(
        {
            "BASE": entry(["edge:base"], {"thing:/attributes": granting("READ")}),
            "MORE": {**entry(["edge:more"], {"thing:/features": granting("READ")}), "references": [{"entry": "BASE"}]},
            "LAST": {
                **entry(["edge:last"], {"thing:/definition": granting("READ")}),
                "references": [{"entry": "MORE"}],
            },
        }
    )
    paths = ("/attributes", "/features", "/definition")
    seen = {who: [may_read(world, f"edge:{who}", path=path) for path in paths] for who in ("base", "more", "last")}
    assert seen == {
        "base": [True, True, False],
        "more": [True, True, True],
        "last": [False, True, True],
    }


@pytest.mark.parametrize("is_imported", [True, False], ids=["imported", "of the same policy"])
@pytest.mark.parametrize(
    ("allowed", "mine", "theirs"),
    [
        (None, (True, True), (True, True)),
        ([], (False, False), (True, False)),
        (["subjects"], (True, False), (True, False)),
        (["resources"], (False, False), (True, True)),
        (["subjects", "resources"], (True, True), (True, True)),
    ],
)
def test_a_referenced_entry_limits_what_the_referring_one_adds(
    allowed: Any, mine: tuple[bool, bool], theirs: tuple[bool, bool], is_imported: bool
) -> None:
    additions = {} if allowed is None else {"allowedAdditions": allowed}
    shared = importable("explicit", "edge:theirs", resources={"thing:/attributes": granting("READ")}, **additions)
    own = entry(["edge:mine"], {"thing:/features": granting("READ")})
    if is_imported:
        reference = {"import": ROLES, "entry": "OPS"}
        world = a_world_importing({"entries": ["OPS"]}, {"OPS": shared}, OWN={**own, "references": [reference]})
    else:
        world = a_world_importing({}, {}, OWN={**own, "references": [{"entry": "OPS"}]}, OPS=shared)

    def readable(subject: str) -> tuple[bool, bool]:
        return may_read(world, subject, path="/attributes"), may_read(world, subject, path="/features")

    assert (readable("edge:mine"), readable("edge:theirs")) == (mine, theirs)


def test_a_list_of_allowed_additions_that_becomes_shorter_withdraws_permissions() -> None:
    reference = [{"import": ROLES, "entry": "OPS"}]
    writing = {**entry(["edge:mine"], {"thing:/attributes": ALL}), "references": reference}
    shared = importable("implicit", "edge:mine", resources={"thing:/definition": granting("READ")})
    world = a_world_importing({}, {"OPS": shared}, OWN=writing)
    world.send("modify", "/definition", "a:b:1")
    by: dict[str, Any] = {"by": ["edge:mine"]}
    assert world.status("modify", "/attributes/a", 2, **by) == 204
    world.send("modify", "/entries/OPS/allowedAdditions", ["subjects"], to=policy(ROLES))
    assert world.refused("modify", "/attributes/a", 3, **by) == (403, "things:attribute.notmodifiable")
    assert world.refused("retrieve", "/attributes", **by) == (404, "things:attributes.notfound")
    # What has no effect is accepted, and stored.
    assert world.status("modify", "/entries/OWN/resources/thing:/features", ALL, to=P) == 201
    assert world.refused("modify", "/features", {}, **by) == (403, "things:features.notmodifiable")
    world.send("delete", "/entries/OPS/allowedAdditions", to=policy(ROLES))
    assert world.status("modify", "/features", {}, **by) == 201


def test_several_references_limit_by_what_all_of_them_allow() -> None:
    roles = {
        "A": importable("implicit", "edge:a", resources={}, allowedAdditions=["subjects", "resources"]),
        "B": importable("implicit", resources={"thing:/features": granting("READ")}, allowedAdditions=["resources"]),
    }
    references = [{"import": ROLES, "entry": "A"}, {"import": ROLES, "entry": "B"}]
    own = {**entry(["edge:mine"], {"thing:/attributes": granting("READ")}), "references": references}
    world = a_world_importing({}, roles, OWN=own)
    assert not may_read(world, "edge:mine")
    assert (may_read(world, "edge:a"), may_read(world, "edge:a", path="/features")) == (True, True)
    assert world.status("modify", "/entries/OWN/references", references[:1], to=P) == 204
    assert (may_read(world, "edge:mine"), may_read(world, "edge:a", path="/features")) == (True, False)


def test_several_references_are_united() -> None:
    """The subjects of a local entry have the resources of an imported one, and the other way round."""
    who = importable("explicit", "edge:who", resources={})
    own = entry(["edge:own"], {"thing:/definition": granting("READ")})
    references = [{"import": ROLES, "entry": "WHAT"}, {"entry": "WHO"}]
    roles = {"WHAT": importable("implicit", resources={"thing:/attributes": granting("READ")})}
    world = a_world_importing({}, roles, WHO=who, OWN={**own, "references": references})
    for subject in ("edge:who", "edge:own"):
        assert may_read(world, subject, path="/attributes")
        assert may_read(world, subject, path="/definition")
    world.send("modify", "/entries/OWN/references", references[1:], to=P)
    assert [may_read(world, "edge:who", path=path) for path in ("/attributes", "/definition")] == [False, True]
    world.send("modify", "/entries/OWN/references", references[:1], to=P)
    assert not may_read(world, "edge:who", path="/definition")
    assert may_read(world, "edge:own", path="/attributes")


def test_the_first_reference_with_a_subject_decides_about_its_expiry() -> None:
    expiring = importable("implicit", resources={})
    expiring["subjects"] = {"edge:a": {"type": "t", "expiry": "2030-01-15T08:00:00Z"}}
    own = {**entry(["edge:a"], READING), "references": [{"entry": "FIRST"}, {"entry": "SECOND"}]}
    world = a_world_importing({}, {}, OWN=own, FIRST=expiring, SECOND=importable("implicit", "edge:a", resources={}))
    assert may_read(world, "edge:a")
    world.now = "2030-01-15T08:00:00.000000Z"
    assert not may_read(world, "edge:a")
    world.send("modify", "/entries/OWN/references", own["references"][::-1], to=P)
    assert may_read(world, "edge:a")


def test_a_referenced_revoke_cannot_be_lifted() -> None:
    lock = importable("implicit", resources={"thing:/attributes": revoking("READ")})
    own = {**entry([VIEWER], {"thing:/": ALL, "thing:/attributes": ALL}), "references": [{"entry": "LOCK"}]}
    world = a_world_importing({}, {}, OWN=own, LOCK=lock)
    assert not may_read(world, VIEWER)
    assert may_read(world, VIEWER, path="/features")


def test_a_reference_is_followed_through_transitive_imports() -> None:
    """Global roles, a fleet that adds its drivers, and a truck that adds its own: each level refers to the next."""
    world = TwinWorld()
    world.write_policy({"DRIVER": importable("explicit", resources=READING, allowedAdditions=["subjects"])}, to=BASE)
    world.write_policy({}, to=ROLES)
    world.send("modify", f"/imports/{BASE}", {"entries": ["DRIVER"]}, to=policy(ROLES))
    fleet = {**entry(["edge:fleet"], {"thing:/": ALL}), "references": [{"import": BASE, "entry": "DRIVER"}]}
    world.send("modify", "/entries/DRIVER", fleet, to=policy(ROLES))
    world.write_policy({})
    world.send("modify", f"/imports/{ROLES}", {}, to=P)
    truck = {**entry(["edge:truck"], {}), "references": [{"import": ROLES, "entry": "DRIVER"}]}
    world.send("modify", "/entries/DRIVER", truck, to=P)
    world.send("create", "/", {"policyId": POLICY, "attributes": {"a": 1}})
    assert world.status("modify", "/attributes/a", 2, by=["edge:truck"]) == 204, "the roles' limit is not known here"
    world.send("modify", f"/imports/{ROLES}/transitiveImports", [BASE], to=P)
    for subject in ("edge:truck", "edge:fleet"):
        assert world.get("/attributes/a", by=[subject]) == 2
        assert world.refused("modify", "/attributes/a", 3, by=[subject]) == (403, "things:attribute.notmodifiable")
    resolved = world.get(to=P, policy_view="resolved")["entries"]
    assert resolved["DRIVER"] == {
        "subjects": {"edge:fleet": {"type": "test"}, "edge:truck": {"type": "test"}},
        "resources": READING,
        "importable": "implicit",
        "allowedAdditions": ["subjects"],
        "references": [{"import": ROLES, "entry": "DRIVER"}],
    }
    assert resolved[f"imported-{ROLES}-DRIVER"] == {
        "subjects": {"edge:fleet": {"type": "test"}},
        "resources": READING,
        "importable": "implicit",
        "allowedAdditions": ["subjects"],
    }
    # A change at the far end is a change here.
    world.send("modify", "/entries/DRIVER/resources", {"thing:/features": granting("READ")}, to=policy(BASE))
    assert world.refused("retrieve", "/attributes/a", by=["edge:truck"]) == (404, "things:attribute.notfound")


def test_references_end_after_one_level() -> None:
    a, b = entry(["edge:a"], {"thing:/attributes": ALL}), entry(["edge:b"], {"thing:/features": ALL})
    world = a_world_importing(
        {},
        {},
        A={**a, "references": [{"entry": "B"}]},
        B={**b, "references": [{"entry": "A"}]},
        C=entry(["edge:c"], {}),
    )
    world.send("modify", "/entries/C/references", [{"entry": "A"}], to=P)
    paths = ("/attributes", "/features")
    assert [may_read(world, "edge:a", path=path) for path in paths] == [True, True]
    assert [may_read(world, "edge:b", path=path) for path in paths] == [True, True]
    assert [may_read(world, "edge:c", path=path) for path in paths] == [True, False]


def test_a_reference_to_a_deleted_or_never_importable_entry_grants_nothing() -> None:
    own = {**entry(["edge:mine"], {}), "references": [{"import": ROLES, "entry": "OPS"}]}
    world = a_world_importing({"entries": ["OPS"]}, {"OPS": importable("explicit", "edge:a")}, OWN=own)
    assert may_read(world, "edge:mine")
    world.send("modify", "/entries/OPS/importable", "never", to=policy(ROLES))
    assert not may_read(world, "edge:mine")
    world.send("modify", "/entries/OPS/importable", "explicit", to=policy(ROLES))
    assert may_read(world, "edge:mine")
    world.send("delete", "/entries/OPS", to=policy(ROLES))
    assert not may_read(world, "edge:mine")


def test_a_reference_to_an_explicit_entry_needs_it_named_by_the_import() -> None:
    own = {**entry(["edge:mine"], {}), "references": [{"import": ROLES, "entry": "OPS"}]}
    world = a_world_importing({}, {"OPS": importable("explicit", "edge:a")}, OWN=own)
    assert not may_read(world, "edge:mine")
    world.send("modify", f"/imports/{ROLES}/entries", ["OPS"], to=P)
    assert may_read(world, "edge:mine")


@pytest.mark.parametrize("path", ["/", "/entries", "/entries/X", "/entries/X/references"])
def test_a_reference_to_an_entry_that_is_never_importable_is_refused(path: str) -> None:
    entries = {"OPS": importable("never", "edge:a"), "OK": importable("implicit", "edge:a")}
    world = a_world_importing({}, entries, X=entry([], {}), NO=importable("never"))
    for reference, code in (
        ({"import": ROLES, "entry": "OPS"}, "policies:import.invalid"),
        ({"import": ROLES, "entry": "NONE"}, "policies:import.invalid"),
        ({"entry": "NO"}, "policies:entry.invalid"),
        ({"entry": "NONE"}, "policies:entry.invalid"),
        ({"entry": "X"}, "policies:entry.invalid"),
    ):
        value: Any = [{"import": ROLES, "entry": "OK"}, reference]
        if path != "/entries/X/references":
            value = {**entry([], {}), "references": value}
        if path in ("/", "/entries"):
            value = {"OWNERS": OWNERS, "NO": importable("never"), "X": value}
        if path == "/":
            value = {"entries": value, "imports": {ROLES: {}}}
        assert world.refused("modify", path, value, to=P) == (400, code), reference


def test_an_entry_cannot_become_never_importable_while_others_of_its_policy_refer_to_it() -> None:
    world = a_world_importing(
        {}, {}, X={**entry([], {}), "references": [{"entry": "BASE"}]}, BASE=importable("implicit")
    )
    conflict = (409, "policies:entry.referenceconflict")
    assert world.refused("modify", "/entries/BASE/importable", "never", to=P) == conflict
    assert world.refused("modify", "/entries/BASE", importable("never"), to=P) == (400, "policies:entry.invalid")
    assert world.status("modify", "/entries/X", entry([], {}), to=P) == 204
    assert world.status("modify", "/entries/BASE/importable", "never", to=P) == 204


def test_a_reference_to_an_import_that_the_policy_does_not_have_is_unknown() -> None:
    world = a_world_importing({}, {"OPS": importable("implicit")}, X=entry([], {}))
    world.write_policy({"OPS": importable("implicit")}, to=BASE)
    path = "/entries/X/references"
    assert world.refused("modify", path, [{"import": "acme:no", "entry": "OPS"}], to=P) == (
        404,
        "policies:policy.notfound",
    )
    known = [{"import": BASE, "entry": "OPS"}]
    assert world.refused("modify", path, known, to=P) == (400, "policies:entry.invalid")
    assert world.refused("modify", "/", {"entries": {"A": {**OWNERS, "references": known}}}, to=P) == (
        400,
        "policies:import.invalid",
    )


def test_the_list_of_an_import_keeps_the_entries_that_references_name() -> None:
    references = [{"import": ROLES, "entry": "OPS"}]
    world = a_world_importing(
        {"entries": ["OPS", "B"]},
        {"OPS": importable("explicit"), "B": importable("explicit")},
        X={**entry([], {}), "references": references},
    )
    conflict = (409, "policies:import.referenceconflict")
    own = f"/imports/{ROLES}"
    assert world.refused("modify", f"{own}/entries", ["B"], to=P) == conflict
    assert world.refused("modify", own, {"entries": []}, to=P) == conflict
    assert world.refused("modify", "/imports", {ROLES: {}}, to=P) == conflict
    assert world.status("modify", f"{own}/entries", ["OPS"], to=P) == 204
    world.send("delete", "/entries/X/references", to=P)
    assert world.status("modify", f"{own}/entries", [], to=P) == 204


# --- namespaces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "namespace", "holds"),
    [
        ([], "acme.plant", True),
        (["acme.plant"], "acme.plant", True),
        (["acme.plant"], "acme.plant.hall", False),
        (["acme.*"], "acme.plant.hall", True),
        (["acme.*"], "acme", False),
        (["acme.*"], "acmeplant", False),
        (["other", "acme.*"], "acme.plant", True),
    ],
)
def test_an_entry_applies_only_in_its_namespaces(patterns: list[str], namespace: str, holds: bool) -> None:
    world = TwinWorld()
    world.write_policy({"VIEW": {**entry([VIEWER], READING), "namespaces": patterns}})
    thing = f"{namespace}:lamp"
    world.send("create", "/", {"policyId": POLICY}, to=thing)
    if holds:
        assert world.get(to=thing, by=[VIEWER])["thingId"] == thing
    else:
        assert world.refused("retrieve", to=thing, by=[VIEWER]) == (404, "things:thing.notfound")
    assert world.get(to=thing, by=[OWNER])["thingId"] == thing


def test_a_reference_unites_the_namespaces_of_both_entries() -> None:
    world = TwinWorld()
    shared = [{"entry": "A"}]
    world.write_policy(
        {
            "A": {**entry(["edge:a"], READING), "namespaces": ["acme.*", "x"]},
            "B": {**entry(["edge:b"], {}), "namespaces": ["y"], "references": shared},
            "C": {**entry(["edge:c"], {}), "references": shared},
        }
    )

    def readers(namespace: str) -> str:
        enforcer = world.world.enforcer(POLICY, namespace)
        assert enforcer is not None
        return "".join(name for name in "abc" if enforcer.has([f"edge:{name}"], "READ", "thing:/"))

    assert [readers(namespace) for namespace in ("acme.plant", "x", "y", "z")] == ["abc", "abc", "ab", ""]
    world.send("modify", "/entries/A/allowedAdditions", ["subjects"], to=P)
    assert readers("y") == ""


def test_an_administrator_of_another_namespace_does_not_administer_the_policy() -> None:
    world = TwinWorld()
    own = {**OWNERS, "namespaces": ["elsewhere"]}
    assert world.refused("modify", "/", {"entries": {"A": own}}, to=P) == (403, "policies:policy.notcreatable")
    lockout = {"allow_policy_lockout": True}
    assert world.refused("modify", "/", {"entries": {"A": own}}, to=P, **lockout) == (
        403,
        "policies:policy.modificationinvalid",
    )


def test_a_referenced_entry_cannot_lock_all_administrators_out() -> None:
    """What references share is enforced like entries, so it counts where somebody has to be left who may change it."""
    revoked = entry(["edge:x"], {"policy:/": revoking("WRITE")})
    locked = {"entries": {"OWNERS": {**OWNERS, "references": [{"entry": "NO"}]}, "NO": revoked}}
    world = TwinWorld()
    assert world.refused("create", "/", {"policyId": POLICY, **locked}, to=P) == (403, "policies:policy.notcreatable")
    assert world.refused("create", "/", {"_policy": locked}) == (400, "things:policy.invalid")
    world.write_policy({"NO": revoked})
    refused = (403, "policies:entry.modificationinvalid")
    assert world.refused("modify", "/entries/OWNERS/references", [{"entry": "NO"}], to=P) == refused
    assert world.refused("modify", "/", locked, to=P) == (403, "policies:policy.modificationinvalid")
    # Somebody who has his WRITE by a reference is somebody, too.
    base = importable("implicit", resources={"policy:/": ALL})
    shared = {"A": {**entry([OWNER], {}), "references": [{"entry": "BASE"}]}, "BASE": base}
    assert world.status("modify", "/entries", shared, to=P) == 204
    assert world.status("modify", "/entries/A/subjects/edge:y", {"type": "t"}, to=P) == 201


def test_a_repeated_reference_is_resolved_once() -> None:
    """A policy may hold thousands of them; worked out one by one they would keep everybody waiting for half a minute."""
    base = entry([], {f"thing:/attributes/k{number}": granting("READ") for number in range(50)})
    many = {**entry([VIEWER], {}), "references": [{"entry": "BASE"}] * 3_000}
    value = {"policyId": POLICY, "imports": {}, "entries": {"MANY": many, "BASE": {**base, "importable": "implicit"}}}
    found, size = policy_imports.effective(value, lambda _: None)
    assert list(found["entries"]) == ["MANY", "BASE"]
    assert size.permissions < 500


def test_the_resolved_view_merges_what_the_caller_can_read_of_referenced_entries() -> None:
    secret = importable("implicit", "edge:secret", resources={"thing:/secret": ALL})
    imported = [{"entry": "HIDDEN"}, {"import": ROLES, "entry": "A"}]
    reading = {"policy:/": granting("READ"), "policy:/entries/HIDDEN": revoking("READ")}
    own = {
        "VIEW": entry([VIEWER], reading),
        "OPEN": importable("implicit", "edge:open", resources={}),
        "HIDDEN": secret,
        "X": {**entry(["edge:own"], {}), "references": [{"entry": "OPEN"}, *imported]},
    }
    world = a_world_importing({}, {"A": importable("implicit", "edge:a", resources={})}, **own)
    whole, part = (world.get(to=P, by=[by], policy_view="resolved")["entries"] for by in (OWNER, VIEWER))
    assert list(whole["X"]["subjects"]) == ["edge:open", "edge:secret", "edge:a", "edge:own"]
    assert list(whole["X"]["resources"]) == ["thing:/secret"]
    assert list(part["X"]["subjects"]) == ["edge:open", "edge:own"]
    assert not {"HIDDEN", f"imported-{ROLES}-A"} & part.keys()
    assert part["X"]["resources"] == {}


def test_the_resolved_view_hides_imported_entries_that_the_caller_cannot_read() -> None:
    reading = {"policy:/": granting("READ")}
    some = entry(["edge:some"], {"policy:/entries/A": granting("READ")})
    own = {"VIEW": entry([VIEWER, "edge:some"], reading)}
    world = a_world_importing({"entries": []}, {"A": importable("implicit", "edge:a"), "SOME": some}, **own)

    def imported(by: str) -> list[str]:
        entries = world.get(to=P, by=[by], policy_view="resolved")["entries"]
        return [label.removeprefix(f"imported-{ROLES}-") for label in entries if label.startswith("imported")]

    assert imported(OWNER) == ["OWNERS", "A", "SOME"]
    assert imported("edge:some") == ["A"]
    assert world.refused("retrieve", to=policy(ROLES), by=[VIEWER]) == (404, "policies:policy.notfound")
    assert imported(VIEWER) == []

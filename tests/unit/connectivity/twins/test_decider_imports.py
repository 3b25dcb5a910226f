"""Imports, references, and entries for some namespaces: what they grant, and what of that is kept up to date."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.importing_policies import BASE, READING, ROLES, P, a_world_importing, importable, may_read
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

ADMIN = ["edge:admin"]


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


def test_a_creator_may_have_rights_by_an_import() -> None:
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

"""Imports, references, and entries for some namespaces: the permissions they grant, and their updates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.importing_policies import BASE, READING, ROLES, P, importable, importing_harness, may_read
from tests.support.twin_harness import (
    ALL,
    OWNER,
    OWNERS,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
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
    harness = importing_harness({"entries": ["B", "D", "NONE"]}, entries)
    assert [may_read(harness, f"edge:{name}") for name in "abcd"] == [True, True, False, False]
    assert harness.get("/attributes/a", by=["edge:a"]) == 1
    assert harness.refused("retrieve", by=["edge:d"]) == (404, "things:thing.notfound")


def test_a_change_of_the_imported_policy_applies_to_the_next_command() -> None:
    harness = importing_harness({}, {"A": importable("implicit", "edge:a")})
    shared = policy(ROLES)
    assert may_read(harness, "edge:a")
    harness.send("delete", "/entries/A/subjects/edge:a", to=shared)
    assert not may_read(harness, "edge:a")
    harness.send("modify", "/entries/A/subjects/edge:a", {"type": "t"}, to=shared)
    assert may_read(harness, "edge:a")
    harness.send("modify", "/entries/A/importable", "never", to=shared)
    assert not may_read(harness, "edge:a")
    harness.send("modify", "/entries/A/importable", "implicit", to=shared)
    erased = harness.snapshots.pop(shared)
    assert not may_read(harness, "edge:a"), "a policy that is missing is skipped"
    harness.snapshots[shared] = erased
    assert may_read(harness, "edge:a")
    harness.send("delete", f"/imports/{ROLES}", to=P)
    assert not may_read(harness, "edge:a")


def test_an_imported_policy_is_compiled_once() -> None:
    harness = importing_harness({}, {"A": importable("implicit", "edge:a")})
    assert harness.lookup.enforcer(POLICY) is harness.lookup.enforcer(POLICY)


def test_an_imported_subject_expires_where_it_is_imported_too() -> None:
    expiring = importable("implicit")
    expiring["subjects"] = {"edge:a": {"type": "t", "expiry": "2030-01-15T08:00:00Z"}}
    harness = importing_harness({}, {"A": expiring})
    assert may_read(harness, "edge:a")
    harness.now = "2030-01-15T08:00:00.000000Z"
    assert not may_read(harness, "edge:a")


def test_revokes_are_imported_as_well() -> None:
    lock = importable("implicit", VIEWER, resources={"thing:/attributes": revoking("READ")})
    harness = importing_harness({}, {"LOCK": lock}, VIEW=entry([VIEWER], READING))
    assert may_read(harness, VIEWER, path="/features")
    assert not may_read(harness, VIEWER)


def test_imports_go_further_only_where_they_are_named() -> None:
    harness = TwinHarness()
    harness.write_policy({"A": importable("implicit", "edge:a"), "B": importable("explicit", "edge:b")}, to=BASE)
    harness.write_policy({"R": importable("implicit", "edge:r")}, to=ROLES)
    harness.send("modify", f"/imports/{BASE}", {"entries": ["B"]}, to=policy(ROLES))
    harness.write_policy({})
    harness.send("modify", f"/imports/{ROLES}", {}, to=P)
    assert [may_read(harness, f"edge:{name}") for name in "rab"] == [True, False, False]
    harness.send("modify", f"/imports/{ROLES}/transitiveImports", [BASE], to=P)
    # An explicit entry is for the policy that names it.
    assert [may_read(harness, f"edge:{name}") for name in "rab"] == [True, True, False]
    assert harness.lookup.enforcer(ROLES).has(["edge:b"], "READ", "thing:/")  # type: ignore[union-attr]
    resolved = harness.get(to=P, policy_view="resolved")
    assert list(resolved["entries"]) == [
        "OWNERS",
        f"imported-{ROLES}-OWNERS",
        f"imported-{ROLES}-R",
        f"imported-{ROLES}-imported-{BASE}-OWNERS",
        f"imported-{ROLES}-imported-{BASE}-A",
    ]
    assert list(harness.get(to=P, policy_view="original")["entries"]) == ["OWNERS"]
    assert list(harness.get(to=P, policy_view="  ")["entries"]) == ["OWNERS"]
    assert harness.refused("retrieve", to=P, policy_view="other") == (400, "policies:view.invalid")


@pytest.mark.parametrize("view", ["resolved", "RESOLVED", " Resolved "])
def test_the_resolved_view_is_of_the_whole_policy(view: str) -> None:
    harness = importing_harness({}, {"A": importable("implicit", "edge:a")})
    labels = ["OWNERS", f"imported-{ROLES}-OWNERS", f"imported-{ROLES}-A"]
    assert list(harness.get(to=P, policy_view=view)["entries"]) == labels
    assert list(harness.get("/entries", to=P, policy_view=view)) == ["OWNERS"], "parts are as they are stored"
    one = f"/entries/imported-{ROLES}-A/subjects"
    assert harness.refused("retrieve", one, to=P, policy_view=view) == (404, "policies:entry.notfound")


def test_the_resolved_view_has_no_entity_tag_and_is_never_unmodified() -> None:
    """An imported policy changes it without a new revision."""
    harness = importing_harness({}, {"A": importable("implicit", "edge:a")})
    tag = harness.send("retrieve", to=P).response.headers["etag"]
    assert harness.refused("retrieve", to=P, if_none_match=tag) == (304, "policies:precondition.notmodified")
    for precondition in ({"if_none_match": tag}, {"if_match": '"rev:99"'}):
        response = harness.send("retrieve", to=P, policy_view="resolved", **precondition).response
        assert (response.status, response.headers.get("etag")) == (200, None)


def test_a_circle_of_imports_ends() -> None:
    harness = TwinHarness()
    for id in (POLICY, ROLES, BASE):
        harness.write_policy({"A": importable("implicit", f"edge:{id}")}, to=id)
    for id, other, third in ((POLICY, ROLES, BASE), (ROLES, BASE, POLICY), (BASE, POLICY, ROLES)):
        harness.send("modify", f"/imports/{other}", {"transitiveImports": [third]}, to=policy(id))
    assert [may_read(harness, f"edge:{id}") for id in (POLICY, ROLES, BASE)] == [True, True, True]
    resolved = harness.get(to=P, policy_view="resolved")["entries"]
    assert len(resolved) == 6, "two of each, and none twice"
    harness.send("create", "/", {"policyId": POLICY})
    assert harness.get(by=[f"edge:{BASE}"])["thingId"] == THING


def test_case_68_an_import_of_an_unreadable_missing_or_invalid_policy_is_refused() -> None:
    harness = TwinHarness()
    harness.write_policy({"OPEN": importable("implicit", "edge:a"), "SHUT": importable("explicit", "edge:a")}, to=ROLES)
    harness.write_policy({"ADMIN": entry(ADMIN, {"policy:/": ALL})})
    own = f"/imports/{ROLES}"
    unknown = (404, "policies:policy.notfound")
    assert harness.refused("modify", own, {}, to=P, by=ADMIN) == unknown, "no READ"
    assert harness.refused("modify", f"/imports/{BASE}", {}, to=P) == unknown, "not there"
    guard = {"policy:/entries/OPEN": granting("READ"), "policy:/entries/OWNERS": granting("READ")}
    harness.send("modify", "/entries/GUARD", importable("never", *ADMIN, resources=guard), to=policy(ROLES))
    assert harness.status("modify", own, {}, to=P, by=ADMIN) == 201
    assert harness.refused("modify", f"{own}/entries", ["SHUT"], to=P, by=ADMIN) == unknown, "no READ on that entry"
    assert harness.status("modify", f"{own}/entries", ["SHUT"], to=P) == 204
    # Existing references are not checked again.
    assert harness.status("modify", "/entries/X", entry([], {}), to=P, by=ADMIN) == 201
    shut = [{"import": ROLES, "entry": "SHUT"}]
    assert harness.refused("modify", "/entries/X/references", shut, to=P, by=ADMIN) == unknown
    assert harness.refused("modify", f"/imports/{POLICY}", {}, to=P) == (400, "policies:import.invalid")
    eleven: dict[str, Any] = {f"acme:p{n}": {} for n in range(11)}
    assert harness.refused("modify", "/imports", eleven, to=P) == (400, "policies:imports.toolarge")
    for number in range(10):
        harness.write_policy({}, to=f"acme:p{number}")
    harness.send("modify", "/imports", {f"acme:p{n}": {} for n in range(10)}, to=P)
    assert harness.refused("modify", own, {}, to=P) == (400, "policies:imports.toolarge")


@pytest.mark.parametrize("kind", ["explicit", "never", None], ids=["explicit", "never", "missing"])
def test_the_labels_of_unreadable_entries_cannot_be_guessed_by_naming_them(kind: str | None) -> None:
    harness = TwinHarness()
    guard = {"policy:/entries/OPEN": granting("READ"), "policy:/entries/OWNERS": granting("READ")}
    entries = {"OPEN": importable("implicit"), "GUARD": importable("never", *ADMIN, resources=guard)}
    harness.write_policy({**entries, "SHUT": importable(kind)} if kind is not None else entries, to=ROLES)
    harness.write_policy({"ADMIN": entry(ADMIN, {"policy:/": ALL})})
    unknown = (404, "policies:policy.notfound")
    own = f"/imports/{ROLES}"
    assert harness.refused("modify", own, {"entries": ["SHUT"]}, to=P, by=ADMIN) == unknown
    assert harness.status("modify", own, {"entries": ["OPEN"]}, to=P, by=ADMIN) == 201
    referring = {**entry([], {}), "references": [{"import": ROLES, "entry": "SHUT"}]}
    assert harness.refused("modify", "/entries/X", referring, to=P, by=ADMIN) == unknown
    referring["references"] = [{"import": ROLES, "entry": "OPEN"}]
    assert harness.status("modify", "/entries/X", referring, to=P, by=ADMIN) == 201


def test_a_creator_may_have_rights_by_an_import() -> None:
    harness = TwinHarness()
    harness.write_policy({}, to=ROLES)
    value = {"policyId": POLICY, "imports": {ROLES: {}}}
    assert harness.status("create", "/", value, to=P) == 201
    assert harness.status("modify", "/entries/A", entry([], {}), to=P) == 201
    inline: dict[str, Any] = {"_policy": {"imports": {ROLES: {}}}}
    assert harness.status("create", "/", inline) == 201
    assert harness.status("modify", "/attributes/a", 1) == 201


def test_a_policy_copy_needs_permission_to_import_the_policy() -> None:
    harness = importing_harness(
        {}, {"A": importable("implicit", "edge:a")}, ADMIN=entry(ADMIN, {"policy:/": ALL, "thing:/": ALL})
    )
    value = {"_copyPolicyFrom": POLICY}
    assert harness.refused("create", "/", value, to="acme.plant:copy", by=ADMIN) == (404, "things:thing.notcreatable")
    assert harness.status("create", "/", value, to="acme.plant:copy") == 201


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
    harness = TwinHarness()
    harness.write_policy({"VIEW": {**entry([VIEWER], READING), "namespaces": patterns}})
    thing = f"{namespace}:lamp"
    harness.send("create", "/", {"policyId": POLICY}, to=thing)
    if holds:
        assert harness.get(to=thing, by=[VIEWER])["thingId"] == thing
    else:
        assert harness.refused("retrieve", to=thing, by=[VIEWER]) == (404, "things:thing.notfound")
    assert harness.get(to=thing, by=[OWNER])["thingId"] == thing


def test_a_reference_unites_the_namespaces_of_both_entries() -> None:
    harness = TwinHarness()
    shared = [{"entry": "A"}]
    harness.write_policy(
        {
            "A": {**entry(["edge:a"], READING), "namespaces": ["acme.*", "x"]},
            "B": {**entry(["edge:b"], {}), "namespaces": ["y"], "references": shared},
            "C": {**entry(["edge:c"], {}), "references": shared},
        }
    )

    def readers(namespace: str) -> str:
        enforcer = harness.lookup.enforcer(POLICY, namespace)
        assert enforcer is not None
        return "".join(name for name in "abc" if enforcer.has([f"edge:{name}"], "READ", "thing:/"))

    assert [readers(namespace) for namespace in ("acme.plant", "x", "y", "z")] == ["abc", "abc", "ab", ""]
    harness.send("modify", "/entries/A/allowedAdditions", ["subjects"], to=P)
    assert readers("y") == ""


def test_an_administrator_of_another_namespace_does_not_administer_the_policy() -> None:
    harness = TwinHarness()
    own = {**OWNERS, "namespaces": ["elsewhere"]}
    assert harness.refused("modify", "/", {"entries": {"A": own}}, to=P) == (403, "policies:policy.notcreatable")
    lockout = {"allow_policy_lockout": True}
    assert harness.refused("modify", "/", {"entries": {"A": own}}, to=P, **lockout) == (
        403,
        "policies:policy.modificationinvalid",
    )


def test_the_resolved_view_hides_imported_entries_that_the_caller_cannot_read() -> None:
    reading = {"policy:/": granting("READ")}
    some = entry(["edge:some"], {"policy:/entries/A": granting("READ")})
    own = {"VIEW": entry([VIEWER, "edge:some"], reading)}
    harness = importing_harness({"entries": []}, {"A": importable("implicit", "edge:a"), "SOME": some}, **own)

    def imported(by: str) -> list[str]:
        entries = harness.get(to=P, by=[by], policy_view="resolved")["entries"]
        return [label.removeprefix(f"imported-{ROLES}-") for label in entries if label.startswith("imported")]

    assert imported(OWNER) == ["OWNERS", "A", "SOME"]
    assert imported("edge:some") == ["A"]
    assert harness.refused("retrieve", to=policy(ROLES), by=[VIEWER]) == (404, "policies:policy.notfound")
    assert imported(VIEWER) == []

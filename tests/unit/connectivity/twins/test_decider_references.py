"""References between policy entries: their effect, their limits, and refused ones."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.authorization import policy_imports
from tests.support.importing_policies import BASE, READING, ROLES, P, importable, importing_harness, may_read
from tests.support.twin_harness import (
    ALL,
    OWNER,
    OWNERS,
    POLICY,
    VIEWER,
    TwinHarness,
    entry,
    granting,
    policy,
    revoking,
)


def test_an_entry_shares_with_the_one_that_it_refers_to() -> None:
    """Its subjects have the other's resources, the other's subjects have its own; one level deep."""
    harness = TwinHarness()
    harness.write_policy(
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
    seen = {who: [may_read(harness, f"edge:{who}", path=path) for path in paths] for who in ("base", "more", "last")}
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
        harness = importing_harness({"entries": ["OPS"]}, {"OPS": shared}, OWN={**own, "references": [reference]})
    else:
        harness = importing_harness({}, {}, OWN={**own, "references": [{"entry": "OPS"}]}, OPS=shared)

    def readable(subject: str) -> tuple[bool, bool]:
        return may_read(harness, subject, path="/attributes"), may_read(harness, subject, path="/features")

    assert (readable("edge:mine"), readable("edge:theirs")) == (mine, theirs)


def test_a_list_of_allowed_additions_that_becomes_shorter_withdraws_permissions() -> None:
    reference = [{"import": ROLES, "entry": "OPS"}]
    writing = {**entry(["edge:mine"], {"thing:/attributes": ALL}), "references": reference}
    shared = importable("implicit", "edge:mine", resources={"thing:/definition": granting("READ")})
    harness = importing_harness({}, {"OPS": shared}, OWN=writing)
    harness.send("modify", "/definition", "a:b:1")
    by: dict[str, Any] = {"by": ["edge:mine"]}
    assert harness.status("modify", "/attributes/a", 2, **by) == 204
    harness.send("modify", "/entries/OPS/allowedAdditions", ["subjects"], to=policy(ROLES))
    assert harness.refused("modify", "/attributes/a", 3, **by) == (403, "things:attribute.notmodifiable")
    assert harness.refused("retrieve", "/attributes", **by) == (404, "things:attributes.notfound")
    # An addition without effect is accepted and stored.
    assert harness.status("modify", "/entries/OWN/resources/thing:/features", ALL, to=P) == 201
    assert harness.refused("modify", "/features", {}, **by) == (403, "things:features.notmodifiable")
    harness.send("delete", "/entries/OPS/allowedAdditions", to=policy(ROLES))
    assert harness.status("modify", "/features", {}, **by) == 201


def test_several_references_limit_by_what_all_of_them_allow() -> None:
    roles = {
        "A": importable("implicit", "edge:a", resources={}, allowedAdditions=["subjects", "resources"]),
        "B": importable("implicit", resources={"thing:/features": granting("READ")}, allowedAdditions=["resources"]),
    }
    references = [{"import": ROLES, "entry": "A"}, {"import": ROLES, "entry": "B"}]
    own = {**entry(["edge:mine"], {"thing:/attributes": granting("READ")}), "references": references}
    harness = importing_harness({}, roles, OWN=own)
    assert not may_read(harness, "edge:mine")
    assert (may_read(harness, "edge:a"), may_read(harness, "edge:a", path="/features")) == (True, True)
    assert harness.status("modify", "/entries/OWN/references", references[:1], to=P) == 204
    assert (may_read(harness, "edge:mine"), may_read(harness, "edge:a", path="/features")) == (True, False)


def test_several_references_are_united() -> None:
    """The subjects of a local entry have the resources of an imported one, and the other way round."""
    who = importable("explicit", "edge:who", resources={})
    own = entry(["edge:own"], {"thing:/definition": granting("READ")})
    references = [{"import": ROLES, "entry": "WHAT"}, {"entry": "WHO"}]
    roles = {"WHAT": importable("implicit", resources={"thing:/attributes": granting("READ")})}
    harness = importing_harness({}, roles, WHO=who, OWN={**own, "references": references})
    for subject in ("edge:who", "edge:own"):
        assert may_read(harness, subject, path="/attributes")
        assert may_read(harness, subject, path="/definition")
    harness.send("modify", "/entries/OWN/references", references[1:], to=P)
    assert [may_read(harness, "edge:who", path=path) for path in ("/attributes", "/definition")] == [False, True]
    harness.send("modify", "/entries/OWN/references", references[:1], to=P)
    assert not may_read(harness, "edge:who", path="/definition")
    assert may_read(harness, "edge:own", path="/attributes")


def test_the_first_reference_with_a_subject_decides_about_its_expiry() -> None:
    expiring = importable("implicit", resources={})
    expiring["subjects"] = {"edge:a": {"type": "t", "expiry": "2030-01-15T08:00:00Z"}}
    own = {**entry(["edge:a"], READING), "references": [{"entry": "FIRST"}, {"entry": "SECOND"}]}
    harness = importing_harness({}, {}, OWN=own, FIRST=expiring, SECOND=importable("implicit", "edge:a", resources={}))
    assert may_read(harness, "edge:a")
    harness.now = "2030-01-15T08:00:00.000000Z"
    assert not may_read(harness, "edge:a")
    harness.send("modify", "/entries/OWN/references", own["references"][::-1], to=P)
    assert may_read(harness, "edge:a")


def test_a_referenced_revoke_cannot_be_lifted() -> None:
    lock = importable("implicit", resources={"thing:/attributes": revoking("READ")})
    own = {**entry([VIEWER], {"thing:/": ALL, "thing:/attributes": ALL}), "references": [{"entry": "LOCK"}]}
    harness = importing_harness({}, {}, OWN=own, LOCK=lock)
    assert not may_read(harness, VIEWER)
    assert may_read(harness, VIEWER, path="/features")


def test_a_reference_is_followed_through_transitive_imports() -> None:
    """Global roles, a fleet that adds its drivers, and a truck that adds its own."""
    harness = TwinHarness()
    harness.write_policy({"DRIVER": importable("explicit", resources=READING, allowedAdditions=["subjects"])}, to=BASE)
    harness.write_policy({}, to=ROLES)
    harness.send("modify", f"/imports/{BASE}", {"entries": ["DRIVER"]}, to=policy(ROLES))
    fleet = {**entry(["edge:fleet"], {"thing:/": ALL}), "references": [{"import": BASE, "entry": "DRIVER"}]}
    harness.send("modify", "/entries/DRIVER", fleet, to=policy(ROLES))
    harness.write_policy({})
    harness.send("modify", f"/imports/{ROLES}", {}, to=P)
    truck = {**entry(["edge:truck"], {}), "references": [{"import": ROLES, "entry": "DRIVER"}]}
    harness.send("modify", "/entries/DRIVER", truck, to=P)
    harness.send("create", "/", {"policyId": POLICY, "attributes": {"a": 1}})
    assert harness.status("modify", "/attributes/a", 2, by=["edge:truck"]) == 204, "the roles' limit is not known here"
    harness.send("modify", f"/imports/{ROLES}/transitiveImports", [BASE], to=P)
    for subject in ("edge:truck", "edge:fleet"):
        assert harness.get("/attributes/a", by=[subject]) == 2
        assert harness.refused("modify", "/attributes/a", 3, by=[subject]) == (403, "things:attribute.notmodifiable")
    resolved = harness.get(to=P, policy_view="resolved")["entries"]
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
    harness.send("modify", "/entries/DRIVER/resources", {"thing:/features": granting("READ")}, to=policy(BASE))
    assert harness.refused("retrieve", "/attributes/a", by=["edge:truck"]) == (404, "things:attribute.notfound")


def test_references_end_after_one_level() -> None:
    a, b = entry(["edge:a"], {"thing:/attributes": ALL}), entry(["edge:b"], {"thing:/features": ALL})
    harness = importing_harness(
        {},
        {},
        A={**a, "references": [{"entry": "B"}]},
        B={**b, "references": [{"entry": "A"}]},
        C=entry(["edge:c"], {}),
    )
    harness.send("modify", "/entries/C/references", [{"entry": "A"}], to=P)
    paths = ("/attributes", "/features")
    assert [may_read(harness, "edge:a", path=path) for path in paths] == [True, True]
    assert [may_read(harness, "edge:b", path=path) for path in paths] == [True, True]
    assert [may_read(harness, "edge:c", path=path) for path in paths] == [True, False]


def test_a_reference_to_a_deleted_or_never_importable_entry_grants_nothing() -> None:
    own = {**entry(["edge:mine"], {}), "references": [{"import": ROLES, "entry": "OPS"}]}
    harness = importing_harness({"entries": ["OPS"]}, {"OPS": importable("explicit", "edge:a")}, OWN=own)
    assert may_read(harness, "edge:mine")
    harness.send("modify", "/entries/OPS/importable", "never", to=policy(ROLES))
    assert not may_read(harness, "edge:mine")
    harness.send("modify", "/entries/OPS/importable", "explicit", to=policy(ROLES))
    assert may_read(harness, "edge:mine")
    harness.send("delete", "/entries/OPS", to=policy(ROLES))
    assert not may_read(harness, "edge:mine")


def test_a_reference_to_an_explicit_entry_needs_it_named_by_the_import() -> None:
    own = {**entry(["edge:mine"], {}), "references": [{"import": ROLES, "entry": "OPS"}]}
    harness = importing_harness({}, {"OPS": importable("explicit", "edge:a")}, OWN=own)
    assert not may_read(harness, "edge:mine")
    harness.send("modify", f"/imports/{ROLES}/entries", ["OPS"], to=P)
    assert may_read(harness, "edge:mine")


@pytest.mark.parametrize("path", ["/", "/entries", "/entries/X", "/entries/X/references"])
def test_a_reference_to_an_entry_that_is_never_importable_is_refused(path: str) -> None:
    entries = {"OPS": importable("never", "edge:a"), "OK": importable("implicit", "edge:a")}
    harness = importing_harness({}, entries, X=entry([], {}), NO=importable("never"))
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
        assert harness.refused("modify", path, value, to=P) == (400, code), reference


def test_an_entry_cannot_become_never_importable_while_others_of_its_policy_refer_to_it() -> None:
    harness = importing_harness(
        {}, {}, X={**entry([], {}), "references": [{"entry": "BASE"}]}, BASE=importable("implicit")
    )
    conflict = (409, "policies:entry.referenceconflict")
    assert harness.refused("modify", "/entries/BASE/importable", "never", to=P) == conflict
    assert harness.refused("modify", "/entries/BASE", importable("never"), to=P) == (400, "policies:entry.invalid")
    assert harness.status("modify", "/entries/X", entry([], {}), to=P) == 204
    assert harness.status("modify", "/entries/BASE/importable", "never", to=P) == 204


def test_a_reference_to_an_import_that_the_policy_does_not_have_is_unknown() -> None:
    harness = importing_harness({}, {"OPS": importable("implicit")}, X=entry([], {}))
    harness.write_policy({"OPS": importable("implicit")}, to=BASE)
    path = "/entries/X/references"
    assert harness.refused("modify", path, [{"import": "acme:no", "entry": "OPS"}], to=P) == (
        404,
        "policies:policy.notfound",
    )
    known = [{"import": BASE, "entry": "OPS"}]
    assert harness.refused("modify", path, known, to=P) == (400, "policies:entry.invalid")
    assert harness.refused("modify", "/", {"entries": {"A": {**OWNERS, "references": known}}}, to=P) == (
        400,
        "policies:import.invalid",
    )


def test_the_list_of_an_import_keeps_the_entries_that_references_name() -> None:
    references = [{"import": ROLES, "entry": "OPS"}]
    harness = importing_harness(
        {"entries": ["OPS", "B"]},
        {"OPS": importable("explicit"), "B": importable("explicit")},
        X={**entry([], {}), "references": references},
    )
    conflict = (409, "policies:import.referenceconflict")
    own = f"/imports/{ROLES}"
    assert harness.refused("modify", f"{own}/entries", ["B"], to=P) == conflict
    assert harness.refused("modify", own, {"entries": []}, to=P) == conflict
    assert harness.refused("modify", "/imports", {ROLES: {}}, to=P) == conflict
    assert harness.status("modify", f"{own}/entries", ["OPS"], to=P) == 204
    harness.send("delete", "/entries/X/references", to=P)
    assert harness.status("modify", f"{own}/entries", [], to=P) == 204


def test_a_referenced_entry_cannot_lock_all_administrators_out() -> None:
    """Shared permissions are enforced like entries, so a subject with WRITE must remain with them too."""
    revoked = entry(["edge:x"], {"policy:/": revoking("WRITE")})
    locked = {"entries": {"OWNERS": {**OWNERS, "references": [{"entry": "NO"}]}, "NO": revoked}}
    harness = TwinHarness()
    assert harness.refused("create", "/", {"policyId": POLICY, **locked}, to=P) == (403, "policies:policy.notcreatable")
    assert harness.refused("create", "/", {"_policy": locked}) == (400, "things:policy.invalid")
    harness.write_policy({"NO": revoked})
    refused = (403, "policies:entry.modificationinvalid")
    assert harness.refused("modify", "/entries/OWNERS/references", [{"entry": "NO"}], to=P) == refused
    assert harness.refused("modify", "/", locked, to=P) == (403, "policies:policy.modificationinvalid")
    # A subject with WRITE by a reference counts, too.
    base = importable("implicit", resources={"policy:/": ALL})
    shared = {"A": {**entry([OWNER], {}), "references": [{"entry": "BASE"}]}, "BASE": base}
    assert harness.status("modify", "/entries", shared, to=P) == 204
    assert harness.status("modify", "/entries/A/subjects/edge:y", {"type": "t"}, to=P) == 201


def test_a_repeated_reference_is_resolved_once() -> None:
    """A policy may have thousands of references; resolved one by one they would block requests for 30 s."""
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
    harness = importing_harness({}, {"A": importable("implicit", "edge:a", resources={})}, **own)
    whole, part = (harness.get(to=P, by=[by], policy_view="resolved")["entries"] for by in (OWNER, VIEWER))
    assert list(whole["X"]["subjects"]) == ["edge:open", "edge:secret", "edge:a", "edge:own"]
    assert list(whole["X"]["resources"]) == ["thing:/secret"]
    assert list(part["X"]["subjects"]) == ["edge:open", "edge:own"]
    assert not {"HIDDEN", f"imported-{ROLES}-A"} & part.keys()
    assert part["X"]["resources"] == {}

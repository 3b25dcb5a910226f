"""Policies that would take long to compile: refused when written, without effect if an import grew."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.authorization import policy_imports
from connectivity.authorization.enforcer import Enforcer
from connectivity.authorization.policy_imports import MOST_PERMISSIONS, MOST_POLICIES, PolicySize
from connectivity.errors import TwinError
from connectivity.twins.context import CurrentStateLookup
from tests.support.cpu_budget import at_most, at_most_milliseconds
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
    twin_harness,
)

P = policy(POLICY)
ROLES = "acme.shared:roles"
OWN = 3
"""The permissions of OWNERS: one subject, three resources."""


def subjects(number: int) -> list[str]:
    return [f"a:{n}" for n in range(number)]


def resources(number: int, permissions: Any = None) -> dict[str, Any]:
    return {f"thing:/{n}": permissions or granting("READ") for n in range(number)}


def text_of(harness: TwinHarness, action: str, path: str, value: Any, **more: Any) -> tuple[int, str, str]:
    """Return status, code and message of a refusal."""
    with pytest.raises(TwinError) as refused:
        harness.send(action, path, value, **more)
    fault = refused.value.fault
    return fault.status, fault.error, fault.message


MANY = entry(subjects(900), resources(1_000))
REFUSED = (
    400,
    "policies:permissions.toolarge",
    f"The policy '{POLICY}' has too many permissions: found 900003 or more, expected at most {MOST_PERMISSIONS}.",
)


def test_too_many_subjects_times_resources_are_refused_with_both_numbers() -> None:
    value = {"policyId": POLICY, "entries": {"OWNERS": OWNERS, "MANY": MANY}}
    assert text_of(TwinHarness(), "create", "/", value, to=P) == REFUSED
    harness = twin_harness()
    assert text_of(harness, "modify", "/", value, to=P) == REFUSED
    assert text_of(harness, "modify", "/entries", value["entries"], to=P) == REFUSED
    assert text_of(harness, "modify", "/entries/MANY", MANY, to=P) == REFUSED
    harness.send("modify", "/entries/MANY", entry(subjects(900), {}), to=P)
    assert text_of(harness, "modify", "/entries/MANY/resources", MANY["resources"], to=P) == REFUSED
    inline = {"_policy": {**value, "policyId": "acme.plant:new"}}
    assert harness.refused("create", "/", inline, to="acme.plant:new") == (400, "things:thing.notcreatable")


@pytest.mark.parametrize("more", [0, 1])
def test_the_bound_itself_is_accepted_and_one_more_is_refused(more: int) -> None:
    own = {
        "OWNERS": OWNERS,
        "A": entry(["a:1"], resources(MOST_PERMISSIONS - OWN - 1000 + more)),
        "B": entry(subjects(10), resources(100)),
    }
    harness = TwinHarness()
    harness.limits = type(harness.limits)(policy=1_000_000)
    value = {"policyId": POLICY, "entries": own}
    if more:
        assert harness.refused("create", "/", value, to=P) == (400, "policies:permissions.toolarge")
    else:
        assert harness.status("create", "/", value, to=P) == 201


@pytest.mark.parametrize(
    "entries",
    [
        {"A": entry(["a:1"], {"thing:" + "/a" * (MOST_PERMISSIONS + 1): ALL})},
        {"A": {**entry(subjects(100), {}), "references": [{"entry": "B"}]}, "B": entry([], resources(100))},
        {f"E{n}": entry([], {}) for n in range(MOST_PERMISSIONS // 3)},
        {"A": entry(["a:1"], {"thing:" + f"/{'a' * 19}" * 1000: ALL})},
        {"A": {**entry([], {}), "namespaces": [f"a.b{n}" for n in range(MOST_PERMISSIONS + 1)]}},
        {
            f"E{n}": {
                **entry([], {}),
                "namespaces": [f"a.b{m}" for m in range(n, n + 60)],
                "references": [{"entry": f"E{m}"} for m in range(60) if m != n],
            }
            for n in range(60)
        },
    ],
    ids=[
        "long paths",
        "references",
        "entries without permissions",
        "paths of many characters",
        "namespaces",
        "namespaces times references",
    ],
)
def test_everything_that_takes_time_is_bounded(entries: dict[str, Any]) -> None:
    harness = TwinHarness()
    harness.limits = type(harness.limits)(policy=1_000_000)
    value = {"policyId": POLICY, "entries": {"OWNERS": OWNERS, **entries}}
    assert harness.refused("create", "/", value, to=P) == (400, "policies:permissions.toolarge")


def test_the_permissions_of_imported_policies_are_counted_too() -> None:
    harness = TwinHarness()
    imports: dict[str, Any] = {f"acme.shared:r{n}": {} for n in range(10)}
    for id in imports:
        harness.write_policy({"A": entry(subjects(10), resources(60))}, to=id)
    value = {"policyId": POLICY, "entries": {"OWNERS": OWNERS}, "imports": imports}
    assert harness.refused("create", "/", value, to=P) == (400, "policies:permissions.toolarge")
    value["imports"] = dict(list(imports.items())[:8])
    assert harness.status("create", "/", value, to=P) == 201
    assert harness.refused("modify", "/imports", imports, to=P) == (400, "policies:permissions.toolarge")


def a_chain(harness: TwinHarness, name: str, length: int) -> None:
    """Write a chain of policies, of which each imports all later ones."""
    for n in reversed(range(length)):
        later = [f"acme.shared:{name}{m}" for m in range(n + 1, length)]
        value = {"entries": {"OWNERS": OWNERS}, "imports": {id: {"transitiveImports": later} for id in later[:1]}}
        harness.send("modify", "/", value, to=policy(f"acme.shared:{name}{n}"))


def test_a_policy_reaches_a_bounded_number_of_policies_in_all() -> None:
    harness = TwinHarness()
    imports: dict[str, Any] = {f"acme.shared:{name}0": {} for name in "abcde"}
    for name in "abcde":
        a_chain(harness, name, 5)
    harness.send("modify", "/", {"entries": {"OWNERS": OWNERS}, "imports": imports}, to=P)
    for id, wanted in imports.items():
        wanted["transitiveImports"] = [id.replace("0", "1")]
    assert text_of(harness, "modify", "/imports", imports, to=P) == (
        400,
        "policies:imports.toolarge",
        f"The policy '{POLICY}' has too many imports: found more than {MOST_POLICIES} policies that it reaches in all, "
        f"expected at most {MOST_POLICIES}.",
    )


def test_a_policy_that_an_import_has_made_too_large_gives_no_permission_but_on_itself() -> None:
    """Without a part of its entries, revokes would be missing. Its administrators can remove the import."""
    harness = TwinHarness()
    admin, guest = "edge:admin", "edge:guest"
    shared = {
        "READ": entry([VIEWER], {"thing:/": granting("READ")}),
        "GUEST": entry([guest], {"policy:/": revoking("WRITE")}),
    }
    harness.write_policy(shared, to=ROLES)
    own = {
        "OWNERS": OWNERS,
        "ADMIN": entry([admin, guest], {"policy:/": ALL}),
        "HIDE": entry([VIEWER], {"thing:/attributes/secret": revoking("READ")}),
        "DEVICES": entry(subjects(10), resources(10)),
    }
    harness.send("modify", "/", {"entries": own, "imports": {ROLES: {}}}, to=P)
    harness.send("create", "/", {"policyId": POLICY, "attributes": {"a": 1, "secret": 2}})
    assert harness.get("/attributes", by=[VIEWER]) == {"a": 1}

    harness.write_policy({**shared, "MORE": entry(subjects(49), resources(101))}, to=ROLES)
    for by in (OWNER, VIEWER, "a:1"):
        for action, value in (("retrieve", ...), ("modify", {}), ("delete", ...)):
            assert harness.refused(action, "/attributes", value, by=[by]) == (404, "things:thing.notfound")
    assert harness.get("/entries/HIDE/subjects", to=P, by=[admin]) == {VIEWER: {"type": "test"}}
    # The import's revoke still applies.
    assert harness.refused("delete", f"/imports/{ROLES}", to=P, by=[guest]) == (403, "policies:import.notmodifiable")
    assert harness.refused("modify", "/entries/NEW", OWNERS, to=P) == (400, "policies:permissions.toolarge")
    assert harness.status("delete", f"/imports/{ROLES}", to=P, by=[admin]) == 204
    assert harness.get("/attributes/a") == 1


def test_a_policy_that_reaches_too_many_others_gives_no_permission_at_all() -> None:
    """The entries of the others are unknown, so their growth cannot hide a revoke."""
    giving = {**entry(["edge:a"], {"policy:/": ALL, "thing:/": ALL}), "importable": "implicit"}

    def importing(id: str, *imports: str) -> dict[str, Any]:
        further = {"entries": [], "transitiveImports": [f"{kind}:{n}" for kind in "bc" for n in range(10)]}
        return {"policyId": id, "imports": dict.fromkeys(imports, further), "entries": {"E": giving}}

    states = {f"{kind}:{n}": importing(f"{kind}:{n}") for kind in "bc" for n in range(10)}
    states |= {f"a:{n}": importing(f"a:{n}", f"b:{n}", f"c:{n}") for n in range(10)}
    many, fewer = (importing("a:all", *(f"a:{n}" for n in range(number))) for number in (10, 6))
    found, size = policy_imports.enforced(many, states.get)
    assert (found["entries"], size.is_too_large) == ({}, True)
    found, size = policy_imports.enforced(fewer, states.get)
    assert (len(found["entries"]), size.policies) == (19, 18), "itself, six policies, and two that each of them imports"


def test_transitive_imports_end_after_ten_levels() -> None:
    states: dict[str, Any] = {
        f"a:{n}": {
            "policyId": f"a:{n}",
            "imports": {f"a:{n + 1}": {"entries": [], "transitiveImports": [f"a:{n + 2}"]}},
            "entries": {"E": {**entry([f"edge:{n}"], {"thing:/": ALL}), "importable": "implicit"}},
        }
        for n in range(30)
    }
    found, _ = policy_imports.enforced(states["a:0"], states.get)
    assert [list(each["subjects"]) for each in found["entries"].values()] == [[f"edge:{n}"] for n in range(12)]


THIRD = MOST_PERMISSIONS // 3
"""An entry adds three permissions at least."""

SHARED = {"importable": "implicit"}

LARGEST: dict[str, dict[str, Any]] = {
    "one entry": {"E": entry(["a:1"], resources(MOST_PERMISSIONS))},
    "entries of many": {f"E{n}": entry([f"a:{n}"], {f"thing:/{n}": ALL}) for n in range(THIRD)},
    "entries of one": {f"E{n}": entry(["a:1"], {f"thing:/{n}": ALL}) for n in range(THIRD)},
    "entries with one resource": {f"E{n}": entry([f"a:{n}"], {"thing:/": ALL}) for n in range(THIRD)},
    "long paths": {f"E{n}": entry([f"a:{n}"], {"thing:" + "/a" * n: ALL}) for n in range(99)},
    "many subjects": {"E": entry(subjects(MOST_PERMISSIONS), {"thing:/": ALL})},
    "expiring subjects": {
        "E": {
            **entry([], {"thing:/": ALL}),
            "subjects": {
                f"a:{n}": {"expiry": f"2040-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z"}
                for n in range(MOST_PERMISSIONS)
            },
        }
    },
    "references": {
        "ALL": SHARED | entry([], resources(20)),
        **{f"E{n}": {**entry([f"a:{n}"], {}), "references": [{"entry": "ALL"}]} for n in range(79)},
    },
    "references of one entry": {
        **{f"R{n}": SHARED | entry(["a:1"], {f"thing:/{n}": ALL}) for n in range(550)},
        "E": {**entry(["a:0"], {}), "references": [{"entry": f"R{n}"} for n in range(550)]},
    },
    "unknown permissions": {
        "ALL": SHARED | entry([], {"thing:/": {"grant": [f"P{n}" for n in range(340)], "revoke": []}}),
        **{f"E{n}": {**entry(["a:1"], {"thing:/": ALL}), "references": [{"entry": "ALL"}]} for n in range(14)},
    },
}


@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_policies_compile_and_answer_in_milliseconds(kind: str) -> None:
    entries = LARGEST[kind]
    whole = {"policyId": POLICY, "imports": {}, "entries": entries}

    def compile_and_answer() -> tuple[Enforcer, PolicySize]:
        applied, size = policy_imports.effective(whole, lambda _: None)
        enforcer = Enforcer(applied)
        assert enforcer.view({"attributes": {"a": 1}}, "thing:/", ["a:0"]) is not None
        assert enforcer.partial(["a:1"], "READ", "thing:/")
        return enforcer, size

    # At most two thirds of this on a machine of average speed, and a tenth of what a tree of all permissions takes.
    enforcer, size = at_most_milliseconds(6, compile_and_answer)
    assert MOST_PERMISSIONS * 0.95 < size.permissions <= MOST_PERMISSIONS
    assert enforcer.weight <= 2 * MOST_PERMISSIONS + 3


def test_many_that_ask_a_large_policy_each_collect_their_own_statements_alone() -> None:
    """Ten thousand devices with a first request do not each read the whole policy."""
    enforcer = Enforcer({"entries": LARGEST["entries of many"]})
    with at_most(0.1):
        for n in range(10_000):
            assert enforcer.unrestricted([f"a:{n}"], "WRITE", f"thing:/{n}") is (n < THIRD)


def test_the_statements_kept_for_those_that_ask_are_bounded_by_the_weight() -> None:
    enforcer = Enforcer({"entries": {"E": entry(subjects(8), resources(100))}})
    for number in range(1, 2**8):
        asking = [subject for place, subject in enumerate(subjects(8)) if number >> place & 1]
        assert enforcer.unrestricted(asking, "READ", "thing:/7")
        assert not enforcer.partial(asking, "WRITE", "thing:/")
        assert sum(len(each.by_path) for each in enforcer._stated.values()) <= 4 * enforcer.weight


def test_the_resources_of_an_entry_weigh_once_for_all_its_subjects() -> None:
    with at_most(0.1):
        enforcer = Enforcer({"entries": {"MANY": MANY}})
    assert enforcer.weight == 900 + 1_000 + 1
    assert enforcer.unrestricted(["a:899"], "READ", "thing:/999")
    assert not enforcer.partial(["a:900"], "READ", "thing:/")


def test_the_segments_of_long_resources_weigh_by_their_length() -> None:
    long = {f"thing:/{number}" + "/a" * 500: ALL for number in range(9)}
    assert Enforcer({"entries": {"LONG": entry(["a:1"], long)}}).weight > 9 * 400


def test_the_weight_of_the_compiled_policies_is_bounded() -> None:
    harness = TwinHarness()
    for n in range(4):
        harness.write_policy({"A": entry(subjects(30), resources(30))}, to=f"acme:p{n}")
    present = CurrentStateLookup(harness.snapshots.get, lambda: harness.now, kept=300)
    first = present.enforcer("acme:p0")
    assert present.enforcer("acme:p1") is not None
    assert present.enforcer("acme:p0") is first, "two of them fit"
    assert present.enforcer("acme:p2") is not None
    assert present.enforcer("acme:p0") is first, "the one that was asked for least recently has left"
    del harness.snapshots[policy("acme:p0")]
    assert present.enforcer("acme:p0") is None
    two = present.enforcer("acme:p2"), present.enforcer("acme:p3")
    assert two == (present.enforcer("acme:p2"), present.enforcer("acme:p3")), "what has left weighs nothing"


def test_a_policy_heavier_than_the_bound_is_kept_alone() -> None:
    harness = TwinHarness()
    harness.write_policy({"A": {**entry(subjects(30), resources(30)), "namespaces": ["a", "b"]}})
    present = CurrentStateLookup(harness.snapshots.get, lambda: harness.now, kept=10)
    one = present.enforcer(POLICY, "a")
    assert present.enforcer(POLICY, "a") is one
    assert present.enforcer(POLICY, "b") is not one
    assert present.enforcer(POLICY, "a") is not one, "only one namespace of it is kept"

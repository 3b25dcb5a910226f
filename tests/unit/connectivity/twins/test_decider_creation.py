"""Creations in namespaces where the settings do not allow them."""

from __future__ import annotations

import pytest

from connectivity.errors import TwinError
from connectivity.security.creation import CreationRule, CreationRules
from connectivity.twins.context import TwinLimits
from tests.support.twin_harness import ALL, OWNER, OWNERS, POLICY, THING, VIEWER, TwinHarness, entry, policy, thing

P = policy(POLICY)
NEW = {"policyId": POLICY, "entries": {"V": entry([VIEWER], {"policy:/": ALL, "thing:/": ALL})}}
THINGS, POLICIES = (403, "things:creation.notallowed"), (403, "policies:creation.notallowed")


def twin_harness(*grants: CreationRule, revokes: tuple[CreationRule, ...] = ()) -> TwinHarness:
    return TwinHarness(TwinLimits(creation=CreationRules(grants, revokes)))


def test_every_way_to_create_a_thing_is_refused_and_the_message_names_the_namespace() -> None:
    harness = twin_harness(CreationRule.of([], [], [OWNER]))
    for action in ("create", "modify", "merge"):
        assert harness.refused(action, "/", {"attributes": {}}, by=[VIEWER]) == THINGS
    with pytest.raises(TwinError) as refused:
        harness.send("create", "/", {}, by=[VIEWER])
    assert refused.value.fault.message == (
        f"The thing '{THING}' cannot be created: you may not create things in the namespace 'acme.plant'."
    )
    assert harness.status("create", "/", {}) == 201
    assert harness.refused("create", "/", {}, by=[VIEWER]) == THINGS, "whether it is there is not revealed"


def test_a_policy_is_refused_alone_and_with_its_thing() -> None:
    harness = twin_harness(CreationRule.of(["thing"], [], []), CreationRule.of(["policy"], ["acme.open"], []))
    assert harness.refused("create", "/", NEW, to=P, by=[VIEWER]) == POLICIES
    assert harness.refused("modify", "/", NEW, to=P, by=[VIEWER]) == POLICIES
    assert harness.refused("create", "/", {}, by=[VIEWER]) == POLICIES
    assert harness.refused("create", "/", {"_policy": NEW}, by=[VIEWER]) == POLICIES
    theirs = {"policyId": "acme.open:p", "entries": {"OWNERS": OWNERS}}
    assert harness.status("create", "/", {"_policy": theirs}) == 201
    assert harness.refused("create", "/", {"_copyPolicyFrom": "acme.open:p"}, to="acme.plant:copy") == POLICIES
    assert harness.status("create", "/", {"policyId": "acme.open:p"}, to="acme.plant:second") == 201


def test_existing_entities_can_be_changed_without_the_permission_to_create() -> None:
    harness = twin_harness(CreationRule.of([], [], [OWNER]))
    harness.write_policy({"V": entry([VIEWER], {"thing:/": ALL, "policy:/": ALL})})
    harness.send("create", "/", {"policyId": POLICY})
    assert harness.status("modify", "/", {}, by=[VIEWER]) == 204
    assert harness.status("modify", "/", {"policyId": POLICY, **NEW}, to=P, by=[VIEWER]) == 204
    assert harness.status("delete", by=[VIEWER]) == 204
    assert harness.refused("create", "/", {"policyId": POLICY}, by=[VIEWER]) == THINGS


def test_a_revoked_namespace_is_closed_for_all() -> None:
    harness = twin_harness(CreationRule(), revokes=(CreationRule.of(["thing"], ["acme.*"], []),))
    assert harness.refused("create", "/", {}) == THINGS
    assert harness.status("create", "/", {}, to=thing("other:lamp")) == 201

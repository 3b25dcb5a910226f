"""Creations in namespaces where the settings do not allow them."""

from __future__ import annotations

import pytest

from connectivity.errors import TwinError
from connectivity.security.creation import CreationRule, CreationRules
from connectivity.twins.context import TwinLimits
from tests.support.twin_world import ALL, OWNER, OWNERS, POLICY, THING, VIEWER, TwinWorld, entry, policy, thing

P = policy(POLICY)
NEW = {"policyId": POLICY, "entries": {"V": entry([VIEWER], {"policy:/": ALL, "thing:/": ALL})}}
THINGS, POLICIES = (403, "things:creation.notallowed"), (403, "policies:creation.notallowed")


def a_world(*grants: CreationRule, revokes: tuple[CreationRule, ...] = ()) -> TwinWorld:
    return TwinWorld(TwinLimits(creation=CreationRules(grants, revokes)))


def test_every_way_to_create_a_thing_is_refused_and_the_message_names_the_namespace() -> None:
    world = a_world(CreationRule.of([], [], [OWNER]))
    for action in ("create", "modify", "merge"):
        assert world.refused(action, "/", {"attributes": {}}, by=[VIEWER]) == THINGS
    with pytest.raises(TwinError) as refused:
        world.send("create", "/", {}, by=[VIEWER])
    assert refused.value.fault.message == (
        f"The thing '{THING}' cannot be created: you may not create things in the namespace 'acme.plant'."
    )
    assert world.status("create", "/", {}) == 201
    assert world.refused("create", "/", {}, by=[VIEWER]) == THINGS, "whether it is there is not revealed"


def test_a_policy_is_refused_alone_and_with_its_thing() -> None:
    world = a_world(CreationRule.of(["thing"], [], []), CreationRule.of(["policy"], ["acme.open"], []))
    assert world.refused("create", "/", NEW, to=P, by=[VIEWER]) == POLICIES
    assert world.refused("modify", "/", NEW, to=P, by=[VIEWER]) == POLICIES
    assert world.refused("create", "/", {}, by=[VIEWER]) == POLICIES
    assert world.refused("create", "/", {"_policy": NEW}, by=[VIEWER]) == POLICIES
    theirs = {"policyId": "acme.open:p", "entries": {"OWNERS": OWNERS}}
    assert world.status("create", "/", {"_policy": theirs}) == 201
    assert world.refused("create", "/", {"_copyPolicyFrom": "acme.open:p"}, to="acme.plant:copy") == POLICIES
    assert world.status("create", "/", {"policyId": "acme.open:p"}, to="acme.plant:second") == 201


def test_what_exists_can_be_changed_by_those_who_may_not_create_it() -> None:
    world = a_world(CreationRule.of([], [], [OWNER]))
    world.write_policy({"V": entry([VIEWER], {"thing:/": ALL, "policy:/": ALL})})
    world.send("create", "/", {"policyId": POLICY})
    assert world.status("modify", "/", {}, by=[VIEWER]) == 204
    assert world.status("modify", "/", {"policyId": POLICY, **NEW}, to=P, by=[VIEWER]) == 204
    assert world.status("delete", by=[VIEWER]) == 204
    assert world.refused("create", "/", {"policyId": POLICY}, by=[VIEWER]) == THINGS


def test_a_revoked_namespace_is_closed_for_all() -> None:
    world = a_world(CreationRule(), revokes=(CreationRule.of(["thing"], ["acme.*"], []),))
    assert world.refused("create", "/", {}) == THINGS
    assert world.status("create", "/", {}, to=thing("other:lamp")) == 201

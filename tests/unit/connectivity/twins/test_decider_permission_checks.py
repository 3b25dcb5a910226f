"""`checkPermissions`: what a sender may do with things, messages and policies."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from connectivity.authorization.enforcer import Enforcer
from mappings.ids import EntityId, EntityType
from tests.support.cpu_budget import at_most
from tests.support.table import each_row
from tests.support.twin_harness import (
    ALL,
    OWNER,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
    answer,
    entry,
    granting,
    revoking,
    twin_harness,
)

SEVERAL = EntityId(EntityType.POLICY, "_", "_")
OTHER = "acme.plant:other"


def check(resource: str, entity: str, *permissions: str) -> dict[str, Any]:
    return {"resource": resource, "entityId": entity, "hasPermissions": list(permissions)}


def checked(harness: TwinHarness, checks: Any, *by: str) -> Any:
    decision = harness.send("checkPermissions", "/", checks, to=SEVERAL, by=by or (VIEWER,))
    assert decision.events == ()
    assert (decision.response.status, decision.response.path) == (200, "/")
    return answer(decision)


def test_a_resource_of_thousands_of_segments_takes_neither_time_nor_memory(harness: TwinHarness) -> None:
    checks = {str(number): check("thing:/" + f"{number}/" * 5_000, THING, "READ") for number in range(10)}
    tracemalloc.start()
    try:
        assert checked(harness, checks) == dict.fromkeys(checks, True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 << 20
    with at_most(0.1):
        checked(harness, checks)


@pytest.fixture
def harness() -> TwinHarness:
    made = twin_harness(attributes={"a": 1})
    seen = {
        "thing:/": granting("READ"),
        "thing:/attributes/secret": revoking("READ"),
        "message:/inbox/messages/blink": granting("WRITE"),
        "policy:/entries/VIEW/actions": granting("EXECUTE"),
    }
    made.write_policy({"VIEW": entry([VIEWER], seen)})
    return made


def test_each_check_is_answered_by_its_name_and_in_order(harness: TwinHarness) -> None:
    checks = {
        "write": check("thing:/attributes/a", THING, "WRITE"),
        "read": check("thing:/attributes/a", THING, "READ"),
        "both": check("thing:/attributes/a", THING, "READ", "WRITE"),
        "secret below": check("thing:/", THING, "READ"),
        "elsewhere": check("thing:/features/f", THING, "READ"),
        "blink": check("message:/inbox/messages/blink", THING, "WRITE"),
        "any message": check("message:/", THING, "WRITE"),
        "policy": check("policy:/", POLICY, "READ"),
        "activate": check("policy:/entries/VIEW/actions/activateTokenIntegration", POLICY, "EXECUTE"),
    }
    found = checked(harness, checks)
    assert list(found) == list(checks)
    assert [name for name in found if found[name]] == ["read", "elsewhere", "blink", "activate"]
    assert checked(harness, {"all": check("policy:/", POLICY, "READ", "WRITE")}, OWNER) == {"all": True}
    assert checked(harness, checks, "edge:nobody") == dict.fromkeys(checks, False)


def test_unknown_entities_give_no_permission(harness: TwinHarness) -> None:
    checks = {
        "thing": check("thing:/", OTHER, "READ"),
        "policy": check("policy:/", OTHER, "READ"),
        "policy id": check("thing:/", "acme:unknown", "READ"),
    }
    assert checked(harness, checks, OWNER) == {"thing": False, "policy": False, "policy id": False}
    harness.send("delete", "/")
    assert checked(harness, {"thing": check("thing:/", THING, "READ")}, OWNER) == {"thing": False}


def test_entries_for_other_namespaces_do_not_apply_to_a_thing(harness: TwinHarness) -> None:
    harness.write_policy({"A": {**entry(["edge:a"], {"thing:/": ALL}), "namespaces": ["acme.other"]}})
    harness.send("create", "/", {"policyId": POLICY}, to="acme.other:lamp")
    checks = {id: check("thing:/", id, "WRITE") for id in (THING, "acme.other:lamp")}
    assert checked(harness, checks, "edge:a") == {THING: False, "acme.other:lamp": True}


@pytest.mark.parametrize("value", [{}, [], 5, None, {"a": 5, "b": []}, ...])
def test_invalid_permission_checks_are_left_out(harness: TwinHarness, value: Any) -> None:
    assert checked(harness, value) == {}


@each_row(
    ("change", "code"),
    [
        ({"resource": ...}, "json.field.missing"),
        ({"entityId": ...}, "json.field.missing"),
        ({"hasPermissions": ...}, "json.field.missing"),
        ({"resource": 5}, "json.invalid"),
        ({"resource": "thing"}, "json.invalid"),
        ({"resource": "thing:attributes"}, "json.invalid"),
        ({"resource": "stream:/s"}, "json.invalid"),
        ({"entityId": 5}, "json.invalid"),
        ({"entityId": "lamp"}, "things:id.invalid"),
        ({"entityId": "lamp", "resource": "message:/"}, "things:id.invalid"),
        ({"entityId": "lamp", "resource": "policy:/"}, "policies:id.invalid"),
        ({"hasPermissions": "READ"}, "json.invalid"),
        ({"hasPermissions": []}, "json.invalid"),
        ({"hasPermissions": [5]}, "json.invalid"),
    ],
)
def test_an_invalid_check_is_refused(change: dict[str, Any], code: str) -> None:
    value = {name: each for name, each in (check("thing:/", THING, "READ") | change).items() if each is not ...}
    harness = TwinHarness()
    valid = check("thing:/", THING, "READ")
    assert harness.refused("checkPermissions", "/", {"ok": valid, "no": value}, to=SEVERAL) == (400, code)


def test_checks_of_many_entities_at_once_are_refused(harness: TwinHarness) -> None:
    checks = {str(n): check("thing:/", f"acme:{n % 200}", "READ") for n in range(400)}
    assert len(checked(harness, checks)) == 400
    checks["more"] = check("thing:/", "acme:more", "READ")
    assert harness.refused("checkPermissions", "/", checks, to=SEVERAL) == (400, "json.invalid")


def test_the_value_of_a_command_about_several_entities_is_limited_like_others(harness: TwinHarness) -> None:
    checks = {str(n): check(f"thing:/{'x' * 90}", THING, "READ") for n in range(1_500)}
    assert harness.refused("checkPermissions", "/", checks, to=SEVERAL) == (413, "policies:policy.toolarge")
    things = EntityId(EntityType.THING, "_", "_")
    ids = {"thingIds": [THING] * 200, "more": "x" * 210_000}
    assert harness.refused("retrieve", "/", ids, to=things) == (413, "things:thing.toolarge")


def test_unknown_permissions_are_not_looked_up(harness: TwinHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking one up reads all resources of the policy, and there may be thousands of both."""
    asked: list[str] = []
    look_up = Enforcer.unrestricted

    def noted(enforcer: Enforcer, subjects: Sequence[str], permission: str, path: str) -> bool:
        asked.append(permission)
        return look_up(enforcer, subjects, permission, path)

    monkeypatch.setattr(Enforcer, "unrestricted", noted)
    checks = {
        "unknown": check("thing:/attributes/a", THING, "ADMIN"),
        "both": check("thing:/attributes/a", THING, "READ", "ADMIN"),
        "known": check("thing:/attributes/a", THING, "READ"),
    }
    assert checked(harness, checks) == {"unknown": False, "both": False, "known": True}
    assert asked == ["READ"]


def test_checks_are_about_no_single_policy(harness: TwinHarness) -> None:
    policy = EntityId(EntityType.POLICY, *POLICY.split(":"))
    assert harness.refused("checkPermissions", "/", {}, to=policy) == (400, "protocoladapter:unknown.topicpath")
    assert harness.refused("retrieve", "/", ..., to=SEVERAL) == (400, "policies:id.invalid")
    assert harness.refused("checkPermissions", "/entries", {}, to=SEVERAL) == (400, "policies:id.invalid")

"""Token integration: a subject that is added to policy entries for some time, and removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from connectivity.security.token_integration import TokenIntegration, check_template
from connectivity.twins.policy_expiry import SUBJECT_DELETION
from tests.support.table import each_row
from tests.support.twin_world import (
    ALL,
    OWNER,
    OWNERS,
    POLICY,
    VIEWER,
    TwinWorld,
    a_world,
    entry,
    granting,
    last,
    policy,
    revoking,
)

P = policy(POLICY)
ACTIVATE, DEACTIVATE = "activateTokenIntegration", "deactivateTokenIntegration"
BY: dict[str, Any] = {"to": P, "by": [VIEWER]}
ADDED = f"integration:VIEW:{VIEWER}"
EXECUTE = {"policy:/": granting("EXECUTE")}


def a_policy_world(**entries: Any) -> TwinWorld:
    """A world where VIEWER reads by one entry, and may execute its actions."""
    world = a_world(attributes={"a": 1})
    view = entry([VIEWER], {"thing:/": granting("READ"), "policy:/entries/VIEW/actions": granting("EXECUTE")})
    world.write_policy({"VIEW": view, **entries})
    world.events.clear()
    return world


def act(world: TwinWorld, action: str, label: str = "VIEW", value: Any = ..., **more: Any) -> int:
    return world.status("create", f"/entries/{label}/actions/{action}", value, **{**BY, **more})


def subjects(world: TwinWorld, label: str = "VIEW") -> dict[str, Any]:
    found: dict[str, Any] = world.get(f"/entries/{label}/subjects", to=P)
    return found


def test_an_action_adds_a_subject_that_expires_and_another_one_removes_it() -> None:
    world = a_policy_world()
    assert act(world, ACTIVATE) == 204
    about = {"type": f"added via action <{ACTIVATE}> at <2030-01-15T07:30:00.250Z>", "expiry": "2030-01-15T09:00:00Z"}
    assert subjects(world)[ADDED] == about
    assert last(world) == ("created", f"/entries/VIEW/subjects/{ADDED}", about, 3)
    assert world.get("/attributes", by=[ADDED]) == {"a": 1}
    world.now = "2030-01-15T08:30:00.000000Z"
    assert act(world, ACTIVATE) == 204
    assert (last(world)[0], subjects(world)[ADDED]["expiry"]) == ("modified", "2030-01-15T10:00:00Z")
    assert act(world, DEACTIVATE) == 204
    assert last(world) == ("deleted", f"/entries/VIEW/subjects/{ADDED}", None, 5)
    assert act(world, DEACTIVATE) == 204, "there is nothing to remove any more"
    assert len(world.events) == 3
    assert list(subjects(world)) == [VIEWER]


def test_an_added_subject_is_announced_as_the_value_says() -> None:
    world = a_policy_world()
    announcement = {"beforeExpiry": "5m", "whenDeleted": True}
    assert act(world, ACTIVATE, value={"announcement": announcement}) == 204
    assert subjects(world)[ADDED]["announcement"] == announcement
    decision = world.send("create", f"/entries/VIEW/actions/{DEACTIVATE}", **BY)
    assert [(each.name, list(each.subjects)) for each in decision.announcements] == [(SUBJECT_DELETION, [ADDED])]
    invalid = {"announcement": {"beforeExpiry": 5}}
    assert world.refused("create", f"/entries/VIEW/actions/{ACTIVATE}", invalid, **BY) == (
        400,
        "policies:subjectannouncement.invalid",
    )


def test_an_action_on_the_policy_is_one_on_every_entry_that_it_applies_to() -> None:
    reading = {"thing:/attributes": granting("READ")}
    world = a_policy_world(
        MORE=entry([VIEWER], {**reading, "policy:/entries/MORE": granting("EXECUTE")}),
        OTHERS=entry(["edge:x"], {**reading, **EXECUTE}),
        FORBIDDEN=entry([VIEWER], reading),
        NO_READ=entry([VIEWER], {"message:/": ALL, "policy:/entries/NO_READ": granting("EXECUTE")}),
    )
    assert world.status("create", f"/actions/{ACTIVATE}", **BY) == 204
    added = {event.path.split("/")[2] for event in world.events}
    assert added == {"VIEW", "MORE"}
    assert f"integration:MORE:{VIEWER}" in subjects(world, "MORE")
    assert world.status("create", f"/actions/{DEACTIVATE}", **BY) == 204
    assert [event.action for event in world.events] == ["created", "created", "deleted", "deleted"]


@each_row(
    ("entries", "path", "status"),
    [
        ({}, f"/entries/OWNERS/actions/{ACTIVATE}", 403),
        ({}, f"/entries/NONE/actions/{ACTIVATE}", 403),
        ({"A": entry(["edge:x"], {})}, f"/entries/A/actions/{ACTIVATE}", 403),
        (
            {"A": entry(["edge:x"], {"thing:/": ALL}), "MAY": entry([VIEWER], EXECUTE)},
            f"/entries/A/actions/{ACTIVATE}",
            404,
        ),
        ({"A": entry([VIEWER], EXECUTE)}, f"/entries/A/actions/{ACTIVATE}", 404),
        ({"A": entry([VIEWER], {**EXECUTE, "thing:/": granting("WRITE")})}, f"/entries/A/actions/{ACTIVATE}", 404),
        ({"A": entry([VIEWER], EXECUTE)}, f"/entries/NONE/actions/{DEACTIVATE}", 404),
        ({"VIEW": entry([VIEWER], {"policy:/": granting("READ")})}, f"/actions/{ACTIVATE}", 403),
        ({"VIEW": entry([VIEWER], EXECUTE)}, f"/actions/{ACTIVATE}", 404),
        (
            {"A": entry([VIEWER], {"policy:/entries/VIEW/actions/activateTokenIntegration": revoking("EXECUTE")})},
            f"/entries/VIEW/actions/{ACTIVATE}",
            403,
        ),
    ],
)
def test_an_action_that_is_not_permitted_or_applies_to_nothing_fails(
    entries: dict[str, Any], path: str, status: int
) -> None:
    world = a_policy_world(READ=entry([VIEWER], {"policy:/entries/READ": granting("READ")}), **entries)
    assert world.refused("create", path, **BY) == (status, "policies:action.failed")


def test_those_without_any_permission_learn_nothing_of_the_policy() -> None:
    world = a_policy_world()
    for path in (f"/actions/{ACTIVATE}", f"/entries/VIEW/actions/{ACTIVATE}"):
        unknown = (404, "policies:policy.notfound")
        assert world.refused("create", path, to=P, by=["edge:x"]) == unknown
        assert world.refused("create", path, to=policy("acme:none"), by=["edge:x"]) == unknown


def test_an_activation_cannot_take_the_last_administrator_away() -> None:
    world = a_policy_world(ACT=entry([OWNER], {"policy:/entries/OWNERS/actions": granting("EXECUTE")}))
    world.limits = replace(world.limits, token_integration=TokenIntegration("edge:{{ header:who }}"))
    to_itself = {"to": P, "by": [OWNER], "who": OWNER.partition(":")[2]}
    path = f"/entries/OWNERS/actions/{ACTIVATE}"
    assert world.refused("create", path, **to_itself) == (403, "policies:entry.modificationinvalid")
    assert world.get(to=P)["entries"]["OWNERS"]["subjects"] == OWNERS["subjects"]


def test_the_settings_define_the_subject_and_its_lifetime() -> None:
    world = a_policy_world()
    world.limits = replace(
        world.limits,
        token_integration=TokenIntegration("hook:{{header:tenant}}/{{ policy-entry:label }}", timedelta(days=1)),
    )
    assert act(world, ACTIVATE, tenant="acme") == 204
    assert subjects(world)["hook:acme/VIEW"]["expiry"] == "2030-01-16T08:00:00Z"
    path = f"/entries/VIEW/actions/{ACTIVATE}"
    assert world.refused("create", path, **BY) == (400, "policies:action.failed")
    assert world.refused("create", path, **BY, tenant="a\nb") == (400, "policies:subjectid.invalid")


@pytest.mark.parametrize("action", ["retrieve", "modify", "delete", "merge"])
def test_an_action_is_created(action: str) -> None:
    refused = a_policy_world().refused(action, f"/actions/{ACTIVATE}", {}, **BY)
    assert refused == (400, "protocoladapter:unknown.topicpath")


@pytest.mark.parametrize(
    "text", ["integration:{{ policy-entry:label }}", "a:b", "a:{{header:x}}:{{ request:subjectId }}"]
)
def test_a_template_of_a_subject_is_valid(text: str) -> None:
    assert check_template(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", ":a", "{{ header:x }}:a", "{{ request:subjectId }}", "a:{{ jwt:sub }}", "a:{{ header: }}", "a:{{b"],
)
def test_a_template_that_forms_no_subject_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="subject"):
        check_template(text)

"""Token integration: a subject that is added to policy entries for some time, and removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from connectivity.security.token_integration import TokenIntegration, check_template
from connectivity.twins.policy_expiry import SUBJECT_DELETION
from tests.support.table import each_row
from tests.support.twin_harness import (
    ALL,
    OWNER,
    OWNERS,
    POLICY,
    VIEWER,
    TwinHarness,
    entry,
    granting,
    last,
    policy,
    revoking,
    twin_harness,
)

P = policy(POLICY)
ACTIVATE, DEACTIVATE = "activateTokenIntegration", "deactivateTokenIntegration"
BY: dict[str, Any] = {"to": P, "by": [VIEWER]}
ADDED = f"integration:VIEW:{VIEWER}"
EXECUTE = {"policy:/": granting("EXECUTE")}


def policy_harness(**entries: Any) -> TwinHarness:
    """A harness where VIEWER reads by one entry, and may execute its actions."""
    harness = twin_harness(attributes={"a": 1})
    view = entry([VIEWER], {"thing:/": granting("READ"), "policy:/entries/VIEW/actions": granting("EXECUTE")})
    harness.write_policy({"VIEW": view, **entries})
    harness.events.clear()
    return harness


def act(harness: TwinHarness, action: str, label: str = "VIEW", value: Any = ..., **more: Any) -> int:
    return harness.status("create", f"/entries/{label}/actions/{action}", value, **{**BY, **more})


def subjects(harness: TwinHarness, label: str = "VIEW") -> dict[str, Any]:
    found: dict[str, Any] = harness.get(f"/entries/{label}/subjects", to=P)
    return found


def test_an_action_adds_a_subject_that_expires_and_another_one_removes_it() -> None:
    harness = policy_harness()
    assert act(harness, ACTIVATE) == 204
    about = {"type": f"added via action <{ACTIVATE}> at <2030-01-15T07:30:00.250Z>", "expiry": "2030-01-15T09:00:00Z"}
    assert subjects(harness)[ADDED] == about
    assert last(harness) == ("created", f"/entries/VIEW/subjects/{ADDED}", about, 3)
    assert harness.get("/attributes", by=[ADDED]) == {"a": 1}
    harness.now = "2030-01-15T08:30:00.000000Z"
    assert act(harness, ACTIVATE) == 204
    assert (last(harness)[0], subjects(harness)[ADDED]["expiry"]) == ("modified", "2030-01-15T10:00:00Z")
    assert act(harness, DEACTIVATE) == 204
    assert last(harness) == ("deleted", f"/entries/VIEW/subjects/{ADDED}", None, 5)
    assert act(harness, DEACTIVATE) == 204, "there is nothing to remove any more"
    assert len(harness.events) == 3
    assert list(subjects(harness)) == [VIEWER]


def test_an_added_subject_is_announced_with_the_options_of_the_value() -> None:
    harness = policy_harness()
    announcement = {"beforeExpiry": "5m", "whenDeleted": True}
    assert act(harness, ACTIVATE, value={"announcement": announcement}) == 204
    assert subjects(harness)[ADDED]["announcement"] == announcement
    decision = harness.send("create", f"/entries/VIEW/actions/{DEACTIVATE}", **BY)
    assert [(each.name, list(each.subjects)) for each in decision.announcements] == [(SUBJECT_DELETION, [ADDED])]
    invalid = {"announcement": {"beforeExpiry": 5}}
    assert harness.refused("create", f"/entries/VIEW/actions/{ACTIVATE}", invalid, **BY) == (
        400,
        "policies:subjectannouncement.invalid",
    )


def test_an_action_on_the_policy_is_one_on_every_entry_that_it_applies_to() -> None:
    reading = {"thing:/attributes": granting("READ")}
    harness = policy_harness(
        MORE=entry([VIEWER], {**reading, "policy:/entries/MORE": granting("EXECUTE")}),
        OTHERS=entry(["edge:x"], {**reading, **EXECUTE}),
        FORBIDDEN=entry([VIEWER], reading),
        NO_READ=entry([VIEWER], {"message:/": ALL, "policy:/entries/NO_READ": granting("EXECUTE")}),
    )
    assert harness.status("create", f"/actions/{ACTIVATE}", **BY) == 204
    added = {event.path.split("/")[2] for event in harness.events}
    assert added == {"VIEW", "MORE"}
    assert f"integration:MORE:{VIEWER}" in subjects(harness, "MORE")
    assert harness.status("create", f"/actions/{DEACTIVATE}", **BY) == 204
    assert [event.action for event in harness.events] == ["created", "created", "deleted", "deleted"]


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
    harness = policy_harness(READ=entry([VIEWER], {"policy:/entries/READ": granting("READ")}), **entries)
    assert harness.refused("create", path, **BY) == (status, "policies:action.failed")


def test_those_who_may_execute_another_action_are_refused_like_others_who_know_the_policy() -> None:
    harness = policy_harness()
    assert harness.refused("create", f"/entries/OWNERS/actions/{ACTIVATE}", **BY) == (403, "policies:action.failed")
    assert harness.refused("delete", "/entries/VIEW", **BY) == (403, "policies:entry.notmodifiable")
    assert harness.refused("retrieve", "/", **BY) == (404, "policies:policy.notfound")
    things = policy_harness(ALIEN=entry(["edge:x"], {"thing:/": granting("EXECUTE")}))
    assert things.refused("modify", "/attributes/a", 2, by=["edge:x"]) == (404, "things:thing.notfound")


def test_those_without_any_permission_learn_nothing_of_the_policy() -> None:
    harness = policy_harness()
    for path in (f"/actions/{ACTIVATE}", f"/entries/VIEW/actions/{ACTIVATE}"):
        unknown = (404, "policies:policy.notfound")
        assert harness.refused("create", path, to=P, by=["edge:x"]) == unknown
        assert harness.refused("create", path, to=policy("acme:none"), by=["edge:x"]) == unknown


def test_an_activation_cannot_remove_the_last_administrator() -> None:
    harness = policy_harness(ACT=entry([OWNER], {"policy:/entries/OWNERS/actions": granting("EXECUTE")}))
    harness.limits = replace(harness.limits, token_integration=TokenIntegration("edge:{{ header:who }}"))
    to_itself = {"to": P, "by": [OWNER], "who": OWNER.partition(":")[2]}
    path = f"/entries/OWNERS/actions/{ACTIVATE}"
    assert harness.refused("create", path, **to_itself) == (403, "policies:entry.modificationinvalid")
    assert harness.get(to=P)["entries"]["OWNERS"]["subjects"] == OWNERS["subjects"]


def test_the_settings_define_the_subject_and_its_lifetime() -> None:
    harness = policy_harness()
    harness.limits = replace(
        harness.limits,
        token_integration=TokenIntegration("hook:{{header:tenant}}/{{ policy-entry:label }}", timedelta(days=1)),
    )
    assert act(harness, ACTIVATE, tenant="acme") == 204
    assert subjects(harness)["hook:acme/VIEW"]["expiry"] == "2030-01-16T08:00:00Z"
    path = f"/entries/VIEW/actions/{ACTIVATE}"
    assert harness.refused("create", path, **BY) == (400, "policies:action.failed")
    assert harness.refused("create", path, **BY, tenant="a\nb") == (400, "policies:subjectid.invalid")


@pytest.mark.parametrize("action", ["retrieve", "modify", "delete", "merge"])
def test_an_action_is_created(action: str) -> None:
    refused = policy_harness().refused(action, f"/actions/{ACTIVATE}", {}, **BY)
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

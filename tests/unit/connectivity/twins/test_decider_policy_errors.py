"""Every error code of policies, and the command that is refused with it."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.errors import TwinError
from connectivity.twins import errors
from connectivity.twins.decider import needed_past
from mappings.model.signals import Command
from tests.support.table import each_row
from tests.support.twin_harness import ALL, OWNER, OWNERS, POLICY, VIEWER, TwinHarness, entry, granting, policy

P = policy(POLICY)
SHARED = "acme.shared:roles"
VIEW = entry([VIEWER], {"thing:/": granting("READ"), "policy:/entries/OWNERS": granting("READ")})
V = "/entries/VIEW"
SUBJECT, RESOURCE = f"{V}/subjects/{VIEWER}", f"{V}/resources/thing:/"
ABOUT = {"type": "t"}
OTHERS_ALONE = {"policyId": "acme:new", "entries": {"A": entry([VIEWER], {"policy:/": ALL})}}
LARGE = {f"thing:/attributes/{'x' * 100}{n}": ALL for n in range(800)}

REFUSED: list[tuple[str, int, str, str, Any, dict[str, Any]]] = [
    # code, status, action, path, value, and how it is sent
    ("id.invalid", 400, "modify", "/imports/none", {}, {}),
    ("id.notsettable", 400, "create", "/", {"policyId": "acme:other", "entries": {"A": OWNERS}}, {}),
    ("entry.invalid", 400, "modify", f"{V}/importable", "maybe", {}),
    ("label.invalid", 400, "modify", "/entries/imported-x", VIEW, {}),
    ("subjectid.invalid", 400, "modify", f"{V}/subjects/nobody", ABOUT, {}),
    ("subjectexpiry.invalid", 400, "modify", SUBJECT, {**ABOUT, "expiry": "2000-01-01T00:00:00Z"}, {}),
    ("subjectannouncement.invalid", 400, "modify", SUBJECT, {**ABOUT, "announcement": {"beforeExpiry": "x"}}, {}),
    ("import.invalid", 400, "modify", f"/imports/{POLICY}", {}, {}),
    ("imports.toolarge", 400, "modify", "/imports", {f"a:{n}": {} for n in range(11)}, {}),
    ("permissions.toolarge", 400, "modify", f"{V}/resources", {f"thing:/{'a/' * 6_000}": ALL}, {}),
    ("view.invalid", 400, "retrieve", "/", ..., {"policy_view": "all"}),
    ("policy.notcreatable", 403, "create", "/", OTHERS_ALONE, {"to": policy("acme:new")}),
    ("policy.modificationinvalid", 403, "modify", "/entries", {}, {}),
    ("entry.modificationinvalid", 403, "delete", "/entries/OWNERS", ..., {}),
    ("policy.notmodifiable", 403, "delete", "/", ..., {"by": [VIEWER]}),
    ("entry.notmodifiable", 403, "delete", V, ..., {"by": [VIEWER]}),
    ("subjects.notmodifiable", 403, "modify", f"{V}/subjects", {}, {"by": [VIEWER]}),
    ("subject.notmodifiable", 403, "delete", SUBJECT, ..., {"by": [VIEWER]}),
    ("resources.notmodifiable", 403, "modify", f"{V}/resources", {}, {"by": [VIEWER]}),
    ("resource.notmodifiable", 403, "delete", RESOURCE, ..., {"by": [VIEWER]}),
    ("imports.notmodifiable", 403, "delete", "/imports", ..., {"by": [VIEWER]}),
    ("import.notmodifiable", 403, "delete", f"/imports/{SHARED}", ..., {"by": [VIEWER]}),
    ("policy.notfound", 404, "retrieve", "/", ..., {"to": policy("acme:none")}),
    ("entry.notfound", 404, "retrieve", "/entries/NONE", ..., {}),
    ("subjects.notfound", 404, "retrieve", f"{V}/subjects", ..., {"by": [VIEWER]}),
    ("subject.notfound", 404, "delete", f"{V}/subjects/a:b", ..., {}),
    ("resources.notfound", 404, "retrieve", f"{V}/resources", ..., {"by": [VIEWER]}),
    ("resource.notfound", 404, "delete", f"{V}/resources/thing:/x", ..., {}),
    ("imports.notfound", 404, "retrieve", "/imports", ..., {"by": [VIEWER]}),
    ("import.notfound", 404, "delete", "/imports/a:b", ..., {}),
    ("policy.conflict", 409, "create", "/", {"policyId": POLICY, "entries": {"A": OWNERS}}, {}),
    ("action.failed", 403, "create", f"{V}/actions/activateTokenIntegration", ..., {}),
    ("entry.referenceconflict", 409, "delete", V, ..., {}),
    ("import.referenceconflict", 409, "delete", f"/imports/{SHARED}", ..., {}),
    ("precondition.failed", 412, "modify", SUBJECT, ABOUT, {"if_none_match": "*"}),
    ("precondition.notmodified", 304, "retrieve", SUBJECT, ..., {"if_none_match": "*"}),
    ("policy.toolarge", 413, "modify", f"{V}/resources", LARGE, {}),
]

ELSEWHERE = {
    "policies:creation.notallowed",
    "policies:policy.history.notfound",
    "policies:policy.referenceconflict",
    "policies:quota.exceeded",
    "policies:dailyquota.exceeded",
    "policies:storage.low",
}
"""Their tests are below, or in `test_quota_check.py` of the dispatcher."""

UNREACHABLE = {
    "policies:policy.toomanymodifyingrequests": "commands on one policy are not throttled: they wait their turn",
    "policies:policy.unavailable": "while the store is away deliveries are held, and answered when it is back",
}


@pytest.fixture(scope="module")
def harness() -> TwinHarness:
    made = TwinHarness()
    made.write_policy({"OPS": VIEW}, to=SHARED)
    references = [{"entry": "VIEW"}, {"import": SHARED, "entry": "OPS"}]
    value = {"OWNERS": OWNERS, "VIEW": VIEW, "MORE": {**entry([], {}), "references": references}}
    made.send("modify", "/", {"entries": value, "imports": {SHARED: {}}}, to=P)
    made.send("delete", "/imports", to=policy(SHARED))
    made.write_policy({"VIEW": VIEW}, to="acme:plain")
    return made


@pytest.mark.parametrize(
    ("code", "status", "action", "path", "value", "more"), REFUSED, ids=[code for code, *_ in REFUSED]
)
def test_a_command_is_refused_with_the_code(
    harness: TwinHarness, code: str, status: int, action: str, path: str, value: Any, more: dict[str, Any]
) -> None:
    # With imports there is no check that a subject can change the policy.
    to = policy("acme:plain") if code.endswith("modificationinvalid") else P
    assert harness.refused(action, path, value, **{"to": to, **more}) == (status, f"policies:{code}")


def test_a_past_that_is_not_known_gets_an_error(harness: TwinHarness) -> None:
    command = Command(P, "retrieve", "/entries", None, {"at-historical-revision": 99})
    with pytest.raises(TwinError) as refused:
        needed_past(command, [OWNER], harness.lookup, harness.now)
    assert (refused.value.fault.status, refused.value.fault.error) == (404, "policies:policy.history.notfound")


def test_every_error_code_of_policies_is_returned_by_some_command() -> None:
    known = {code for code in errors.codes() if code.startswith("policies:")}
    codes = [f"policies:{code}" for code, *_ in REFUSED]
    assert len(codes) == len(set(codes))
    assert {*codes, *ELSEWHERE} == known
    assert not known & set(UNREACHABLE)


@each_row("code", [code for code, *_ in REFUSED])
def test_a_policy_error_code_belongs_to_the_policies_group_for_every_command(code: str) -> None:
    fault = errors.refusal(f"policies:{code}", P)
    assert fault.group == "policies"
    assert POLICY in fault.fault.message or "{" not in fault.fault.message

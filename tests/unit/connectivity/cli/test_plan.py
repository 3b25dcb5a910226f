"""The plan of `apply`, computed from documents and the state of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectivity.cli.plan import (
    Action,
    DesiredDocument,
    PlanStep,
    StoredDocument,
    decide,
    lines,
    step_as_json,
    summary,
)

BASE: dict[str, Any] = {"id": "depot", "connectionType": "mqtt", "connectionStatus": "open", "uri": "tcp://u:*****@h:1"}
FILE = Path("depot.yaml")
TAG = '"rev:3"'

DECIDED: dict[str, tuple[StoredDocument | None, dict[str, Any], dict[str, bool], Action]] = {
    "nothing there": (None, {}, {}, Action.NEW),
    "the same": (StoredDocument(TAG, BASE), {}, {}, Action.UNCHANGED),
    "another name": (StoredDocument(TAG, BASE), {"name": "x"}, {}, Action.CHANGED),
    "a file's": (StoredDocument(TAG, None, "connections/depot.yaml"), {"name": "x"}, {}, Action.REFUSED),
    "a secret": (StoredDocument(TAG, BASE), {"uri": "tcp://u:p@h:1"}, {}, Action.UNCHANGED),
    "a secret that is sent": (StoredDocument(TAG, BASE), {"uri": "tcp://u:p@h:1"}, {"secrets": True}, Action.CHANGED),
    "a mask, though secrets are sent": (StoredDocument(TAG, BASE), {}, {"secrets": True}, Action.UNCHANGED),
}


@pytest.mark.parametrize("case", DECIDED)
def test_each_connection_has_one_step(case: str) -> None:
    there, change, options, action = DECIDED[case]
    steps = decide({"depot": DesiredDocument(BASE | change, FILE)}, {"depot": there} if there else {}, **options)
    assert [(step.id, step.action, step.tag) for step in steps] == [("depot", action, there and there.tag)]


def test_pruning_deletes_only_api_connections_that_have_no_document() -> None:
    there = {
        "depot": StoredDocument(TAG, BASE),
        "mine": StoredDocument('"rev:1"'),
        "theirs": StoredDocument('"rev:1"', None, "a.yaml"),
    }
    wanted = {"depot": DesiredDocument(BASE, FILE)}
    assert [step.id for step in decide(wanted, there)] == ["depot"]
    assert [(step.id, step.action) for step in decide(wanted, there, prune=True)] == [
        ("depot", Action.UNCHANGED),
        ("mine", Action.GONE),
    ]


def test_a_plan_is_reported_field_by_field_without_secrets() -> None:
    (step,) = decide(
        {"depot": DesiredDocument(BASE | {"clientCount": 2, "uri": "tcp://u:s3cr3t@h:1"}, FILE)},
        {"depot": StoredDocument(TAG, BASE)},
    )
    assert list(lines(step)) == ["clientCount: 1 → 2", "uri: a secret that cannot be compared; it is sent"]
    assert step_as_json(step) == {
        "id": "depot",
        "action": "changed",
        "file": "depot.yaml",
        "tag": TAG,
        "changes": [{"path": "clientCount", "before": 1, "after": 2}],
        "unknown": ["uri"],
        "reason": None,
    }
    (step,) = decide(
        {"depot": DesiredDocument(BASE | {"uri": "tcp://u:s3cr3t@h:1"}, FILE)}, {"depot": StoredDocument(TAG, BASE)}
    )
    assert list(lines(step)) == ["uri: a secret that cannot be compared; it is not sent without --secrets"]
    assert "s3cr3t" not in repr(step)


def test_a_plan_is_summed_up() -> None:
    steps = [PlanStep("a", Action.CHANGED), PlanStep("b", Action.NEW), PlanStep("c", Action.CHANGED)]
    assert (summary(steps), summary([])) == ("1 new, 2 changed", "nothing")

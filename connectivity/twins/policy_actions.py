"""Decides the actions of token integration on policies (Ditto, policy actions).

`activateTokenIntegration` adds a subject to one or all entries of a policy, and `deactivateTokenIntegration` removes it. An
action needs EXECUTE at its own path below the entry, and no WRITE. It applies to entries with a subject of the sender; to be
activated, an entry also grants READ on something of a thing. The settings define the subject and its lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from connectivity.authorization.enforcer import EXECUTE, READ
from connectivity.twins import policy_values, values
from connectivity.twins.access import forbidden
from connectivity.twins.context import CommandContext, Decision, EventStep, decision, encode, state_of
from connectivity.twins.paths import ACTIVATE, below_entry
from connectivity.twins.policy_expiry import departure_announcements
from mappings.model.json_pointer import format_pointer
from mappings.timestamps import shorten_timestamp
from spark_store.records import Snapshot

FAILED: Final = "policies:action.failed"


def decide_action(case: CommandContext) -> Decision:
    """Carry out an action on a policy. Raises TwinError."""
    action = case.address.resource.part
    announcement = _announcement(case)
    before = case.living()
    enforcer = case.world.enforcer(str(case.entity))
    if before is None or enforcer is None:
        raise case.refuse("policies:policy.notfound")
    entries = state_of(before)["entries"]
    labels = [case.address.segments[1]] if case.address.segments[0] == "entries" else list(entries)
    paths = {label: f"policy:{format_pointer(('entries', label, 'actions', action))}" for label in labels}
    permitted = [label for label in labels if enforcer.unrestricted(case.subjects, EXECUTE, paths[label])]
    if not permitted:
        raise forbidden(case, enforcer, FAILED, "you lack EXECUTE")
    applicable = [label for label in permitted if label in entries and _applies(case, entries[label], action)]
    if not applicable:
        readable = " and grants READ on a thing" if action == ACTIVATE else ""
        raise case.refuse(FAILED, f"no policy entry has one of your subjects{readable}", status=404)
    steps: list[EventStep] = []
    snapshot = before
    for label in applicable:
        if (step := _step(case, snapshot, label, action, announcement)) is not None:
            steps.append(step)
            snapshot = step.snapshot
    after = state_of(snapshot)
    policy_values.check(case, after, state_of(before))
    if not policy_values.is_administered(after):
        raise case.refuse("policies:entry.modificationinvalid")
    response = case.respond(204, None, revision=snapshot.revision)
    found = decision(steps, response, departure_announcements(before, snapshot))
    # The state after all events: one for each entity.
    return msgspec.structs.replace(found, snapshots=found.snapshots[-1:])


def _announcement(case: CommandContext) -> Any:
    """Return the announcement of the subject that the value asks for; None for none."""
    value = values.parse(case) if case.command.value is not None else None
    return value.get("announcement") if isinstance(value, dict) else None


def _applies(case: CommandContext, entry: Mapping[str, Any], action: str) -> bool:
    if entry["subjects"].keys().isdisjoint(case.subjects):
        return False
    return action != ACTIVATE or any(
        key.startswith("thing:") and READ in permissions["grant"] and READ not in permissions["revoke"]
        for key, permissions in entry["resources"].items()
    )


def _step(case: CommandContext, before: Snapshot, label: str, action: str, announcement: Any) -> EventStep | None:
    """Return the event of one entry; None if there is no subject to remove."""
    integration = case.limits.token_integration
    subject = integration.subject_of(label, case.subjects[0], case.headers)
    if subject is None:
        raise case.refuse(FAILED, "the command lacks a header that the template of the subject names", status=400)
    policy_values.check_subject_id(case, subject)
    is_known = subject in state_of(before)["entries"][label]["subjects"]
    there = msgspec.structs.replace(case, address=below_entry(label, "subjects", subject))
    if action != ACTIVATE:
        return there.step(before, "deleted", None, None) if is_known else None
    expiry = datetime.fromisoformat(case.now) + integration.lifetime
    about = {
        "type": f"added via action <{action}> at <{shorten_timestamp(case.now)}>",
        "expiry": expiry.isoformat(),
        "announcement": announcement,
    }
    value = policy_values.subject(case, about)
    return there.step(before, "modified" if is_known else "created", encode(value), value)

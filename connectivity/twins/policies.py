"""Decides commands on policies and their parts.

All parts use the same functions; the table in `paths.py` and the readers in `policy_values.py` hold the differences. Checks
come in the order of things (Ditto protocol, which check wins): syntax, existence of the policy, permission, entity tags,
existence of the part; last, whether the resulting policy is valid (`policy_values.check`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from connectivity.authorization.enforcer import READ, WRITE, Enforcer
from connectivity.twins import policy_values, preconditions, values
from connectivity.twins.access import forbidden, has_any_permission
from connectivity.twins.context import (
    CommandContext,
    Decision,
    EventStep,
    decision,
    encode,
    hash_tag,
    is_same_json,
    part_tag,
    revision_tag,
    state_of,
)
from connectivity.twins.errors import quote
from connectivity.twins.policy_actions import decide_action
from connectivity.twins.policy_expiry import departure_announcements
from connectivity.twins.preconditions import Preconditions
from connectivity.twins.retrieval import displayed_enforcer, read_selection, view_of, with_hidden
from mappings.ids import EntityType, parse_entity_id
from mappings.model.field_selector import select
from mappings.model.json_pointer import MISSING, get
from spark_store.records import Snapshot

VIEW = "policy-view"
_ORIGINAL, _RESOLVED = "original", "resolved"

_OPTIONAL: Final = frozenset({"allowedAdditions", "references", "transitiveImports"})
"""Parts that are retrieved as an empty array if they are absent, and whose deletion always succeeds."""


def decide_policy(case: CommandContext) -> Decision:
    """Carry out a command on a policy. Raises TwinError."""
    action = case.command.action
    if action not in case.address.resource.actions:
        raise case.refuse("protocoladapter:unknown.topicpath", action)
    if case.address.resource.name == "action":
        return decide_action(case)
    policy_values.check_subject(case)
    asked = preconditions.read(case)
    match action:
        case "create" | "modify" if case.address.is_root:
            return _write(case, asked)
        case "modify":
            return _modify(case, asked)
        case "delete":
            return _delete(case, asked)
        case _:
            return _retrieve(case, asked)


def _write(case: CommandContext, asked: Preconditions) -> Decision:
    value = values.parse(case)
    if not isinstance(value, dict):
        raise case.refuse("json.format.invalid", "expected an object")
    if case.command.action == "create":
        _check_own_id(case, value)
    policy = policy_values.policy(case, value, str(case.entity))
    raw = encode(policy)
    if len(raw) > case.limits.policy:
        raise case.refuse("policies:policy.toolarge", f"found {len(raw)} bytes, expected at most {case.limits.policy}")
    before = case.world.snapshot(case.entity)
    if before is not None and not before.is_deleted and case.command.action == "modify":
        enforcer = case.world.enforcer(str(case.entity))
        if has_any_permission(case.entity, enforcer, case.subjects):
            return _replace(case, asked, before, policy, raw)
    return _create(case, asked, before, policy, raw)


def _check_own_id(case: CommandContext, value: Mapping[str, Any]) -> None:
    own = value.get("policyId")
    if not isinstance(own, str) or parse_entity_id(EntityType.POLICY, own) is None:
        raise case.refuse("policies:id.invalid", quote(own) if isinstance(own, str) else "A missing policyId")
    if own != str(case.entity):
        raise case.refuse("policies:id.notsettable")


def _create(
    case: CommandContext, asked: Preconditions, before: Snapshot | None, policy: Mapping[str, Any], raw: bytes
) -> Decision:
    """Create a policy. That its ID is in use is the last reason for a refusal."""
    case.check_creation(case.entity)
    policy_values.check(case, policy)
    if not policy_values.may_administer(case, policy):
        raise case.refuse("policies:policy.notcreatable")
    if not policy_values.is_administered(policy):
        raise case.refuse("policies:policy.modificationinvalid")
    if before is None or before.is_deleted:
        asked.check_tags(case, None)
    else:
        is_known = has_any_permission(case.entity, case.world.enforcer(str(case.entity)), case.subjects)
        asked.check_tags(case, (lambda: revision_tag(before)) if is_known else None)
        is_create = case.command.action == "create"
        raise case.refuse("policies:policy.conflict" if is_create else "policies:policy.notfound")
    if before is not None:
        policy_values.check_unreferenced(case, case.entity, "created again")
    step = case.step(before, "created", raw, policy)
    tag = revision_tag(step.snapshot)
    return decision([step], case.respond(201, raw, revision=step.snapshot.revision, tag=tag, action="create"))


def _replace(
    case: CommandContext, asked: Preconditions, before: Snapshot, policy: Mapping[str, Any], raw: bytes
) -> Decision:
    _writable(case, asked)
    asked.check_tags(case, lambda: revision_tag(before))
    if asked.if_equal == preconditions.SKIP and is_same_json(before.state, policy):
        raise case.precondition_failed("the new value equals the current value")
    step = _check(case, before, case.step(before, "modified", raw, policy))
    response = case.respond(204, None, revision=step.snapshot.revision, tag=revision_tag(step.snapshot))
    return decision([step], response, departure_announcements(before, step.snapshot))


def _modify(case: CommandContext, asked: Preconditions) -> Decision:
    value = policy_values.read(case)
    before = _living(case)
    enforcer = _writable(case, asked)
    state, address = state_of(before), case.address
    present = get(state, address.segments)
    asked.check_part_tag(case, enforcer, before, present)
    _check_parent(case, state)
    if asked.if_equal == preconditions.SKIP and is_same_json(present, value):
        raise case.precondition_failed("the new value equals the current value")
    if value == [] and address.resource.part == "references":
        # An entry without references has no such member, however they were removed.
        step = _check(case, before, case.step(before, "deleted", None, None))
        response = case.respond(204, None, revision=step.snapshot.revision)
        return decision([step], response, departure_announcements(before, step.snapshot))
    raw = encode(value)
    is_new = present is MISSING and address.resource.is_created
    step = _check(case, before, case.step(before, "created" if is_new else "modified", raw, value))
    # The first references are created for the caller alone.
    is_new |= present is MISSING and address.resource.part == "references"
    # The next command is judged by the permissions that this one has changed.
    enforcer = policy_values.enforcer_of(case, state_of(step.snapshot), case.entity.namespace)
    tag = part_tag(case, enforcer, step.snapshot, value)
    response = case.respond(201 if is_new else 204, raw if is_new else None, revision=step.snapshot.revision, tag=tag)
    return decision([step], response, departure_announcements(before, step.snapshot))


def _delete(case: CommandContext, asked: Preconditions) -> Decision:
    before = _living(case)
    enforcer = _writable(case, preconditions.NONE)
    state = state_of(before)
    present = get(state, case.address.segments)
    asked.check_part_tag(case, enforcer, before, present)
    _check_parent(case, state)
    if present is MISSING and case.address.resource.part not in _OPTIONAL:
        raise case.refuse(f"policies:{case.address.resource.name}.notfound")
    step, permissions = case.step(before, "deleted", None, None), None
    if case.address.is_root:
        policy_values.check_unreferenced(case, case.entity, "deleted")
        permissions = case.world.permissions(str(case.entity))
    else:
        step = _check(case, before, step)
    response = case.respond(204, None, revision=step.snapshot.revision)
    return decision([step], response, departure_announcements(before, step.snapshot), permissions=permissions)


def _retrieve(case: CommandContext, asked: Preconditions) -> Decision:
    selection = read_selection(case)
    is_resolved = case.address.is_root and _is_resolved_view(case)
    name = case.address.resource.name
    snapshot = case.living()
    enforcer = case.world.enforcer(str(case.entity))
    if snapshot is None or enforcer is None:
        raise case.refuse("policies:policy.notfound")
    if not enforcer.partial(case.subjects, READ, case.address.guarded):
        raise forbidden(case, enforcer, f"policies:{name}.notfound")
    enforcer = displayed_enforcer(case, enforcer)
    snapshot = case.displayed(snapshot)
    policy = state_of(snapshot)
    if is_resolved:
        policy = {**policy, "entries": policy_values.readable_entries(case, policy)}
    present = get(policy, case.address.segments)
    is_absent = present is MISSING
    if is_absent:
        _check_parent(case, policy)
        if case.address.resource.part not in _OPTIONAL:
            raise case.refuse(f"policies:{name}.notfound")
        present = []
    seen = view_of(case, enforcer, present)
    tag = None
    if not is_resolved and not is_absent:
        # An imported policy changes the resolved view without a new revision of this one.
        tag = revision_tag(snapshot) if case.address.is_root else hash_tag(seen)
        asked.check_tags(case, lambda: tag)
    result = seen
    if selection is not None and isinstance(seen, Mapping):
        hidden = with_hidden(case, seen, snapshot, selection) if case.address.is_root else seen
        result = select(hidden, selection)
    return decision([], case.respond(200, encode(result), revision=snapshot.revision, tag=tag))


def _is_resolved_view(case: CommandContext) -> bool:
    """Whether the caller asks for the policy with what it imports and refers to."""
    view = str(case.headers.get(VIEW, "")).strip().lower() or _ORIGINAL
    if view not in (_ORIGINAL, _RESOLVED):
        raise case.refuse("policies:view.invalid", quote(case.headers[VIEW]))
    return view == _RESOLVED


def _living(case: CommandContext) -> Snapshot:
    before = case.living()
    if before is None:
        raise case.refuse("policies:policy.notfound")
    return before


def _writable(case: CommandContext, asked: Preconditions) -> Enforcer:
    """The permissions of a policy of which the caller may write the addressed part.

    `if-equal` compares, which needs READ.
    """
    enforcer = case.world.enforcer(str(case.entity))
    needed = (READ, WRITE) if asked.if_equal == preconditions.SKIP else (WRITE,)
    if enforcer is None or not all(
        enforcer.unrestricted(case.subjects, permission, case.address.guarded) for permission in needed
    ):
        raise forbidden(case, enforcer, f"policies:{case.address.resource.name}.notmodifiable")
    return enforcer


def _check_parent(case: CommandContext, state: Mapping[str, Any]) -> None:
    """Refuse a part of an entry or import that does not exist."""
    match case.address.segments:
        case ("entries", label, _, *_) if label not in state["entries"]:
            raise case.refuse("policies:entry.notfound")
        case ("imports", imported, _) if imported not in state["imports"]:
            raise case.refuse("policies:import.notfound")


def _check(case: CommandContext, before: Snapshot, step: EventStep) -> EventStep:
    """The step, if the policy that it leads to may be."""
    after = state_of(step.snapshot)
    policy_values.check(case, after, state_of(before))
    if not policy_values.is_administered(after):
        is_entry = case.address.segments[:1] == ("entries",) and len(case.address.segments) > 1
        raise case.refuse("policies:entry.modificationinvalid" if is_entry else "policies:policy.modificationinvalid")
    return step

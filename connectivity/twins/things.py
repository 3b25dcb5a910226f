"""Decides commands on things and their parts.

All parts use the same five functions; the table in `paths.py` and the checks in `values.py` hold the differences. Clients
see refusals in this order (Ditto protocol, which check wins): syntax, existence of the thing, permission, condition and
entity tags, existence of the part, size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from connectivity.authorization.enforcer import READ, WRITE, Enforcer
from connectivity.errors import TwinError
from connectivity.twins import metadata, policy_values, preconditions, values
from connectivity.twins.access import has_any_permission, may_merge
from connectivity.twins.context import (
    MERGE_PATCH,
    CommandContext,
    Decision,
    EventStep,
    decision,
    encode,
    is_same_json,
    part_tag,
    revision_tag,
    state_of,
)
from connectivity.twins.errors import quote
from connectivity.twins.incarnations import enforcer_of
from connectivity.twins.preconditions import SKIP_MINIMIZING, Preconditions
from connectivity.twins.retrieval import retrieve
from connectivity.twins.values import CheckedValue
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.model.json_pointer import MISSING, Segments, format_pointer, get, parse_pointer, remove
from spark_store.history.replay import DeletePatternRefused, MatchBudget, is_delete_pattern, matching_keys, merge
from spark_store.records import Snapshot

_REFERENCE: Final = re.compile(r"\{\{\s*ref:things/(?P<id>.+)/(?P<field>[^/\s]+)\s*\}\}", re.DOTALL)
_ALL: Final = {"grant": ["READ", "WRITE"], "revoke": []}


_NO_PERMISSIONS: Final = Enforcer({})


class _ThingPolicy(NamedTuple):
    """The policy of a thing to create: its ID and permissions, and the step that creates it if it is new.

    `taken`: the existing policy with the ID of a new one.
    """

    policy_id: str
    enforcer: Enforcer
    step: EventStep | None = None
    taken: EntityId | None = None


def create(case: CommandContext, value: CheckedValue, asked: Preconditions) -> Decision:
    """Create a thing; the answer is that of a create, whatever the action was. Raises TwinError.

    That an ID is in use is the last reason for a refusal, so that no other one depends on what exists.
    """
    case.check_creation(case.entity)
    given = value.given or {}
    policy = _requested_policy(case, given, (value.parsed or {}).get("policyId"))
    if not policy.enforcer.unrestricted(case.subjects, WRITE, "thing:/"):
        raise case.refuse("things:thing.notmodifiable")
    present = case.living()
    before = case.world.snapshot(case.entity) if present is None else None
    if present is None or not has_any_permission(case.entity, enforcer_of(case.entity, case.world), case.subjects):
        asked.check_tags(case, None)
    else:
        asked.check_tags(case, lambda: revision_tag(present))
    thing = values.whole_thing(case, value, policy.policy_id)
    changes = metadata.changes(case, metadata.read(case), thing.parsed, given, before)
    step = case.step(before, "created", thing.raw, thing.parsed, metadata=changes)
    # Its text as sent may be longer than the state, because of escapes, but not shorter.
    if changes or len(thing.raw) > case.limits.thing:
        _check_size(case, step)
    _check_unused(case, policy, present)
    response = case.respond(
        201, thing.raw, revision=step.snapshot.revision, tag=revision_tag(step.snapshot), action="create"
    )
    return decision([step] if policy.step is None else [policy.step, step], response, is_reference=True)


def _check_unused(case: CommandContext, policy: _ThingPolicy, present: Snapshot | None) -> None:
    """Refuse a creation whose IDs are in use.

    A modify or merge says so only to subjects with a permission on what uses the ID.
    """
    is_create = case.command.action == "create"
    if policy.taken is not None and (
        is_create or has_any_permission(policy.taken, case.world.enforcer(policy.policy_id), case.subjects)
    ):
        raise case.refuse("things:thing.notcreatable", policy.policy_id)
    if policy.taken is not None or present is not None:
        raise case.refuse("things:thing.conflict" if is_create else "things:thing.notfound")


def _requested_policy(case: CommandContext, given: Mapping[str, Any], policy_id: str | None) -> _ThingPolicy:
    """The policy that the command asks for."""
    inline, copied = given.get("_policy"), given.get("_copyPolicyFrom")
    if inline is not None and copied is not None:
        raise case.refuse("things:policy.conflicting")
    if inline is not None:
        return _inline(case, inline, policy_id)
    if copied is not None:
        return _copy(case, copied, policy_id)
    if policy_id is not None:
        return _existing(case, policy_id)
    return _default(case)


def _existing(case: CommandContext, policy_id: str) -> _ThingPolicy:
    enforcer = case.world.enforcer(policy_id, case.entity.namespace)
    if enforcer is None or not policy_values.may_refer_to(case, policy_id):
        raise case.refuse("policies:policy.notfound", about=policy_id)
    return _ThingPolicy(policy_id, enforcer)


def _is_reference(case: CommandContext, before: Snapshot, after: Snapshot) -> bool | None:
    """Whether a change makes the thing refer to the policy that it names; None as before.

    A thing may name any policy, as in Eclipse Ditto, also one that does not exist. But to keep a policy from being deleted,
    its writer has to be able to read it.
    """
    is_other = after.policy != before.policy
    if after.policy is None or not (is_other or case.address.resource.name == "policyId"):
        return None
    return policy_values.may_refer_to(case, after.policy) or (False if is_other else None)


def _default(case: CommandContext) -> _ThingPolicy:
    """A policy with the thing's id, under which the creator alone may do everything."""
    if not case.subjects:
        raise case.refuse("things:thing.notcreatable", str(case.entity), status=403)
    policy = {
        "policyId": str(case.entity),
        "imports": {},
        "entries": {
            "DEFAULT": {
                "subjects": {case.subjects[0]: {"type": "generated"}},
                "resources": {"policy:/": _ALL, "thing:/": _ALL, "message:/": _ALL},
                "importable": "implicit",
            }
        },
    }
    return _policy_creation(case, policy)


def _inline(case: CommandContext, inline: Any, policy_id: str | None) -> _ThingPolicy:
    """The policy under `_policy`. Its id is the thing's `policyId`, else its own, else the thing's."""
    if not isinstance(inline, dict):
        raise case.refuse("json.invalid", "expected _policy to be an object")
    own = inline.get("policyId")
    policy = policy_values.policy(case, inline, policy_id or own or str(case.entity))
    if not policy_values.is_administered(policy):
        raise case.refuse("things:policy.invalid")
    return _policy_creation(case, policy)


def _copy(case: CommandContext, source: Any, policy_id: str | None) -> _ThingPolicy:
    """Return a copy of another policy that the caller can read; they must be able to change the copy."""
    if not isinstance(source, str):
        raise case.refuse("json.invalid", "expected _copyPolicyFrom to be a string")
    if source.lstrip().startswith("{{"):
        source = _policy_of_other(case, source)
    entity = parse_entity_id(EntityType.POLICY, source)
    if entity is None:
        raise case.refuse("policies:id.invalid", quote(source))
    snapshot, enforcer = case.world.snapshot(entity), case.world.enforcer(source)
    if snapshot is None or snapshot.state is None or enforcer is None:
        raise case.refuse("policies:policy.notfound", about=source)
    if not enforcer.unrestricted(case.subjects, READ, "policy:/"):
        raise case.refuse("policies:policy.notfound", about=source)
    copy = {**snapshot.state, "policyId": policy_id or str(case.entity)}
    if not policy_values.is_administered(copy):
        # In another namespace some entries may not apply.
        raise case.refuse("things:policy.invalid")
    return _policy_creation(case, copy)


def _policy_of_other(case: CommandContext, text: str) -> str:
    """The id of the policy of the thing that a reference names; the caller must be able to read it there."""
    reference = _REFERENCE.fullmatch(text)
    other = parse_entity_id(EntityType.THING, reference["id"]) if reference is not None else None
    if reference is None or (other is None and reference["field"] == "policyId"):
        raise case.refuse("placeholder:placeholder.reference.notsupported", quote(text))
    if other is None or reference["field"] != "policyId":
        raise case.refuse("placeholder:placeholder.reference.unknown.field", quote(reference["field"]))
    snapshot = case.world.snapshot(other)
    policy_id = snapshot.policy if snapshot is not None and not snapshot.is_deleted else None
    enforcer = case.world.enforcer(policy_id, other.namespace) if policy_id is not None else None
    if policy_id is None or enforcer is None or not enforcer.has(case.subjects, READ, "thing:/policyId"):
        raise case.refuse("things:thing.notfound", about=other)
    return policy_id


def _policy_creation(case: CommandContext, policy: Mapping[str, Any]) -> _ThingPolicy:
    """Return the step that creates a policy.

    Its errors are reported as the thing's, with their own status.
    """
    policy_id = policy["policyId"]
    entity = parse_entity_id(EntityType.POLICY, policy_id)
    if entity is None:
        raise case.refuse("policies:id.invalid", quote(policy_id))
    case.check_creation(entity)
    before = case.world.snapshot(entity)
    try:
        policy_values.check(case, policy)
        if before is not None and before.is_deleted:
            policy_values.check_unreferenced(case, entity, "created again")
    except TwinError as error:
        raise case.refuse("things:thing.notcreatable", policy_id, status=error.fault.status) from error
    if not policy_values.may_administer(case, policy):
        raise case.refuse("things:thing.notcreatable", policy_id, status=403)
    enforcer = policy_values.enforcer_of(case, policy, case.entity.namespace)
    if before is not None and not before.is_deleted:
        return _ThingPolicy(policy_id, enforcer, taken=entity)
    return _ThingPolicy(policy_id, enforcer, case.step(before, "created", encode(policy), policy, entity=entity))


NOTHING: Final[Any] = object()
"""The result of `minimize` for a patch that changes nothing."""


def minimize(target: Any, patch: Any) -> Any:
    """The part of a patch that changes `target`, or NOTHING. Raises DeletePatternRefused."""
    return _minimize(target, patch, MatchBudget())


def _minimize(target: Any, patch: Any, budget: MatchBudget) -> Any:
    if not isinstance(patch, Mapping):
        return NOTHING if is_same_json(target, patch) else patch
    if not isinstance(target, Mapping):
        return merge(None, patch, budget)
    patterns = [key for key, member in patch.items() if member is None and is_delete_pattern(key)]
    deleted = {pattern: matching_keys(pattern, target, budget) for pattern in patterns}
    # The other members of a patch apply after its patterns have deleted keys.
    left = target.keys() - set().union(*deleted.values())
    kept: dict[str, Any] = {}
    for key, member in patch.items():
        if member is None:
            if deleted.get(key, key in left):
                kept[key] = None
        elif key not in left:
            # A new value; the nulls in it delete nothing.
            kept[key] = merge(None, member, budget)
        elif (below := _minimize(target[key], member, budget)) is not NOTHING:
            kept[key] = below
    return kept or NOTHING


def decide_thing(case: CommandContext) -> Decision:
    """Carry out a command on a thing. Raises TwinError."""
    action = case.command.action
    if action not in case.address.resource.actions:
        raise case.refuse("protocoladapter:unknown.topicpath", action)
    asked = preconditions.read(case)
    match action:
        case "create":
            return create(case, values.read(case), asked)
        case "modify":
            return _modify(case, asked)
        case "merge":
            return _merge(case, asked)
        case "delete":
            return _delete(case, asked)
        case _:
            return retrieve(case, asked)


def _modify(case: CommandContext, asked: Preconditions) -> Decision:
    value = values.read(case)
    before = case.living()
    if before is None:
        if case.address.is_root:
            return create(case, value, asked)
        raise case.refuse("things:thing.notfound")
    enforcer = _enforcer(case, before)
    state, address = state_of(before), case.address
    if not enforcer.unrestricted(case.subjects, WRITE, address.guarded) or (
        asked.if_equal == preconditions.SKIP and not enforcer.unrestricted(case.subjects, READ, address.guarded)
    ):
        if address.is_root and not has_any_permission(case.entity, enforcer, case.subjects):
            return create(case, value, asked)
        raise asked.forbidden(case, enforcer, state, f"things:{address.resource.name}.notmodifiable")
    if asked is not preconditions.NONE:
        asked.check_readable(case, enforcer, state)
    present = _check_present(case, asked, enforcer, before, state)
    if not address.segments:
        policy_id = (value.parsed or {}).get("policyId") or before.policy
        value = values.whole_thing(case, value, str(policy_id))
    elif present is MISSING and address.resource.below_feature and not _has_feature(case, before):
        raise case.refuse("things:feature.notfound")
    if asked.if_equal == preconditions.SKIP and is_same_json(present, value.parsed):
        raise case.precondition_failed("the new value equals the current value")
    is_new = present is MISSING and address.resource.name != "policyId"
    changes = metadata.changes(case, asked.metadata, value.parsed, value.given, before)
    step = _check_size(
        case, case.step(before, "created" if is_new else "modified", value.raw, value.parsed, metadata=changes)
    )
    tag = part_tag(case, enforcer, step.snapshot, value.parsed)
    response = case.respond(
        201 if is_new else 204, value.raw if is_new else None, revision=step.snapshot.revision, tag=tag
    )
    return decision([step], response, is_reference=_is_reference(case, before, step.snapshot))


def _merge(case: CommandContext, asked: Preconditions) -> Decision:
    _check_content_type(case)
    patch = values.read(case, is_patch=True)
    before = case.living()
    if before is None:
        return _create_by_merge(case, patch, asked)
    enforcer = _enforcer(case, before)
    state = state_of(before)
    if not (
        may_merge(enforcer, case.subjects, WRITE, case.address, patch.parsed)
        and (not asked.skips_equal or may_merge(enforcer, case.subjects, READ, case.address, patch.parsed))
        and (
            asked.metadata is metadata.NOTHING
            or _may_write_metadata(case, enforcer, metadata.parts_of_merge(case, asked.metadata, patch.parsed))
        )
    ):
        if not has_any_permission(case.entity, enforcer, case.subjects):
            return _create_by_merge(case, patch, asked)
        raise asked.forbidden(case, enforcer, state, "things:thing.notmodifiable")
    asked.check_readable(case, enforcer, state)
    present = _check_present(case, asked, enforcer, before, state)
    patch = _conditional(case, asked, before, patch)
    try:
        if case.address.is_root:
            _keep_ids(case, patch.parsed)
        if asked.skips_equal:
            patch = _reduce_patch(case, asked, present, patch)
        changes = metadata.changes(case, asked.metadata, patch.parsed, patch.given, before, is_patch=True)
        # Conditions may have emptied objects, which then have metadata of their own.
        if changes and not _may_write_metadata(
            case, enforcer, (parse_pointer(pointer)[:-1] for pointer, *_ in changes)
        ):
            raise case.refuse("things:thing.notmodifiable")
        step = _check_size(case, case.step(before, "merged", patch.raw, patch.parsed, metadata=changes))
    except DeletePatternRefused as error:
        raise case.refuse("things:merge.invalid", str(error)) from error
    after = get(state_of(step.snapshot), case.address.segments)
    tag = None if after is MISSING else part_tag(case, enforcer, step.snapshot, after)
    response = case.respond(204, None, revision=step.snapshot.revision, tag=tag)
    return decision([step], response, is_reference=_is_reference(case, before, step.snapshot))


def _create_by_merge(case: CommandContext, patch: CheckedValue, asked: Preconditions) -> Decision:
    """Merge into a thing that does not exist, or not for the caller."""
    if not case.address.is_root:
        raise case.refuse("things:thing.notfound")
    given, stripped = values.strip_nulls(patch.given), values.strip_nulls(patch.parsed)
    return create(case, CheckedValue(stripped, encode(stripped), given), asked)


def _delete(case: CommandContext, asked: Preconditions) -> Decision:
    before = case.living()
    if before is None:
        raise case.refuse("things:thing.notfound")
    enforcer = _enforcer(case, before)
    state = state_of(before)
    if not enforcer.unrestricted(case.subjects, WRITE, case.address.guarded):
        name = case.address.resource.name
        code = "things:thing.notdeletable" if name == "thing" else f"things:{name}.notmodifiable"
        raise asked.forbidden(case, enforcer, state, code)
    asked.check_readable(case, enforcer, state)
    present = _check_present(case, asked, enforcer, before, state)
    if case.address.resource.below_feature and not _has_feature(case, before):
        raise case.refuse("things:feature.notfound")
    if present is MISSING:
        raise case.refuse(f"things:{case.address.resource.name}.notfound")
    step = case.step(before, "deleted", None, None)
    permissions = case.world.permissions(str(before.policy)) if case.address.is_root else None
    return decision([step], case.respond(204, None, revision=step.snapshot.revision), permissions=permissions)


def _enforcer(case: CommandContext, snapshot: Snapshot) -> Enforcer:
    """Return the permissions on the thing; without a policy there are none."""
    policy = snapshot.policy
    enforcer = case.world.enforcer(policy, snapshot.entity.namespace) if policy is not None else None
    return _NO_PERMISSIONS if enforcer is None else enforcer


def _check_present(
    case: CommandContext, asked: Preconditions, enforcer: Enforcer, before: Snapshot, state: Mapping[str, Any]
) -> Any:
    """Return the value at the addressed place, or MISSING, after checking the preconditions."""
    present = get(state, case.address.segments)
    if asked is not preconditions.NONE:
        asked.check_condition(case, before)
        asked.check_part_tag(case, enforcer, before, present)
    return present


def _check_size(case: CommandContext, step: EventStep) -> EventStep:
    """The step, if the thing it leads to is not too large."""
    if len(encode(step.snapshot.state)) > case.limits.thing:
        raise case.refuse("things:thing.toolarge", f"expected at most {case.limits.thing} bytes")
    return step


def _has_feature(case: CommandContext, snapshot: Snapshot) -> bool:
    return get(snapshot.state, case.address.segments[:2]) is not MISSING


def _check_content_type(case: CommandContext) -> None:
    found = case.headers.get("content-type")
    if not isinstance(found, str) or found.partition(";")[0].strip().lower() != MERGE_PATCH:
        raise case.refuse("mediatype.unsupported", "(missing)" if found is None else f"'{str(found)[:80]}'")


def _may_write_metadata(case: CommandContext, enforcer: Enforcer, parts: Iterable[Segments]) -> bool:
    """Whether the caller may write every part whose metadata a merge changes, also outside the patch."""
    return enforcer.unrestricted(case.subjects, WRITE, case.address.guarded) or all(
        enforcer.unrestricted(case.subjects, WRITE, f"thing:{format_pointer(part)}") for part in parts
    )


def _keep_ids(case: CommandContext, patch: Mapping[str, Any]) -> None:
    """Refuse a delete pattern that would take one of the ids."""
    budget = MatchBudget()
    for key, member in patch.items():
        if member is None and key not in values.THING_MEMBERS:
            taken = matching_keys(key, ("thingId", "policyId"), budget)
            if taken:
                raise case.refuse("things:id.notdeletable" if "thingId" in taken else "things:policyId.notdeletable")


def _conditional(case: CommandContext, asked: Preconditions, before: Snapshot, patch: CheckedValue) -> CheckedValue:
    """Return the patch without the places whose own condition is false. Emptied objects stay."""
    refused = asked.refused_paths(case, before) if asked.patch_conditions else ()
    kept = reduce(remove, refused, patch.parsed)
    return patch if kept is patch.parsed else replace(patch, parsed=kept, raw=encode(kept))


def _reduce_patch(case: CommandContext, asked: Preconditions, present: Any, patch: CheckedValue) -> CheckedValue:
    """Return the patch reduced by `if-equal`; refuse it if it changes nothing."""
    changed = _changes(present, patch.parsed)
    if changed is NOTHING:
        raise case.precondition_failed("the patch changes nothing")
    if asked.if_equal != SKIP_MINIMIZING:
        return patch
    return replace(patch, parsed=changed, raw=encode(changed))


def _changes(present: Any, patch: Any) -> Any:
    """Return the part of the patch that changes the present value (MISSING: none), or NOTHING."""
    if present is MISSING:
        return NOTHING if patch is None else merge(None, patch)
    if patch is None:
        return patch
    changed = minimize(present, patch)
    return NOTHING if changed is NOTHING or is_same_json(merge(present, changed), present) else changed

"""Creating a thing, together with the policy that guards it.

Every thing has a policy from its first event on (Ditto protocol, policy resolution on create). It is one that exists, one
given inline, a copy, or, where the command says nothing, one that gives the creator every right; a policy that is made
here is an entity of its own, with its own event in the same decision. A refusal leaves neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from connectivity.errors import TwinError
from connectivity.twins import metadata, policy_rules, policy_values, values
from connectivity.twins.base import Case, Decision, Step, decision, encode, revision_tag
from connectivity.twins.enforcer import READ, WRITE, Enforcer
from connectivity.twins.faults import shown
from connectivity.twins.preconditions import Preconditions
from connectivity.twins.values import Value
from mappings.ids import EntityType, parse_entity_id
from spark_store.records import Snapshot

_REFERENCE: Final = re.compile(r"\{\{\s*ref:things/(?P<id>.+)/(?P<field>[^/\s]+)\s*\}\}", re.DOTALL)
_ALL: Final = {"grant": ["READ", "WRITE"], "revoke": []}


class _Guard(NamedTuple):
    """The policy of a thing to be: its id and permissions, and the step that makes it where it is new."""

    policy_id: str
    enforcer: Enforcer
    step: Step | None = None


def create(case: Case, value: Value, asked: Preconditions) -> Decision:
    """Create a thing; the answer is that of a create, whatever the action was. Raises TwinError."""
    given = value.given or {}
    guard = _guard(case, given, (value.parsed or {}).get("policyId"))
    if not guard.enforcer.unrestricted(case.subjects, WRITE, "thing:/"):
        raise case.refuse("things:thing.notmodifiable")
    before = case.world.snapshot(case.entity)
    _check_tags(case, asked, before)
    if before is not None and not before.is_deleted:
        raise case.refuse("things:thing.conflict")
    thing = values.whole_thing(case, value, guard.policy_id)
    said = metadata.changes(case, metadata.read(case), thing.parsed, given, before)
    step = case.step(before, "created", thing.raw, thing.parsed, metadata=said)
    if len(encode(step.snapshot.state) if said else thing.raw) > case.limits.thing:
        raise case.refuse("things:thing.toolarge", f"expected at most {case.limits.thing} bytes")
    response = case.respond(
        201, thing.raw, revision=step.snapshot.revision, tag=revision_tag(step.snapshot), action="create"
    )
    return decision([step] if guard.step is None else [guard.step, step], response)


def _check_tags(case: Case, asked: Preconditions, before: Snapshot | None) -> None:
    if before is None or before.is_deleted:
        asked.check_tags(case, None)
    else:
        asked.check_tags(case, lambda: revision_tag(before))


def _guard(case: Case, given: Mapping[str, Any], policy_id: str | None) -> _Guard:
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


def _existing(case: Case, policy_id: str) -> _Guard:
    readable = case.world.enforcer(policy_id)
    enforcer = case.world.enforcer(policy_id, case.entity.namespace)
    if readable is None or enforcer is None or not readable.partial(case.subjects, READ, "policy:/"):
        raise case.refuse("policies:policy.notfound", about=policy_id)
    return _Guard(policy_id, enforcer)


def _default(case: Case) -> _Guard:
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
    return _made(case, policy)


def _inline(case: Case, inline: Any, policy_id: str | None) -> _Guard:
    """The policy under `_policy`. Its id is the thing's `policyId`, else its own, else the thing's."""
    if not isinstance(inline, dict):
        raise case.refuse("json.invalid", "expected an object as _policy")
    own = inline.get("policyId")
    policy = policy_values.policy(case, inline, policy_id or own or str(case.entity))
    if not policy_rules.is_administered(policy):
        raise case.refuse("things:policy.invalid")
    return _made(case, policy)


def _copy(case: Case, source: Any, policy_id: str | None) -> _Guard:
    """A copy of another policy, which the caller must be able to read, and whose copy he must be able to change."""
    if not isinstance(source, str):
        raise case.refuse("json.invalid", "expected a string as _copyPolicyFrom")
    if source.lstrip().startswith("{{"):
        source = _policy_of_other(case, source)
    entity = parse_entity_id(EntityType.POLICY, source)
    if entity is None:
        raise case.refuse("policies:id.invalid", shown(source))
    snapshot, enforcer = case.world.snapshot(entity), case.world.enforcer(source)
    if snapshot is None or snapshot.state is None or enforcer is None:
        raise case.refuse("policies:policy.notfound", about=source)
    if not enforcer.unrestricted(case.subjects, READ, "policy:/"):
        raise case.refuse("policies:policy.notfound", about=source)
    copy = {**snapshot.state, "policyId": policy_id or str(case.entity)}
    if not policy_rules.is_administered(copy):
        # In another namespace not every entry counts that did where it comes from.
        raise case.refuse("things:policy.invalid")
    return _made(case, copy)


def _policy_of_other(case: Case, text: str) -> str:
    """The id of the policy of the thing that a reference names; the caller must be able to read it there."""
    reference = _REFERENCE.fullmatch(text)
    other = parse_entity_id(EntityType.THING, reference["id"]) if reference is not None else None
    if reference is None or (other is None and reference["field"] == "policyId"):
        raise case.refuse("placeholder:placeholder.reference.notsupported", shown(text))
    if other is None or reference["field"] != "policyId":
        raise case.refuse("placeholder:placeholder.reference.unknown.field", shown(reference["field"]))
    snapshot = case.world.snapshot(other)
    policy_id = snapshot.policy if snapshot is not None and not snapshot.is_deleted else None
    enforcer = case.world.enforcer(policy_id, other.namespace) if policy_id is not None else None
    if policy_id is None or enforcer is None or not enforcer.has(case.subjects, READ, "thing:/policyId"):
        raise case.refuse("things:thing.notfound", about=other)
    return policy_id


def _made(case: Case, policy: Mapping[str, Any]) -> _Guard:
    """The step that makes a policy; what hinders it is told as what hinders the thing, with its own status."""
    policy_id = policy["policyId"]
    entity = parse_entity_id(EntityType.POLICY, policy_id)
    if entity is None:
        raise case.refuse("policies:id.invalid", shown(policy_id))
    before = case.world.snapshot(entity)
    if before is not None and not before.is_deleted:
        raise case.refuse("things:thing.notcreatable", policy_id)
    if not policy_rules.may_administer(case, policy):
        raise case.refuse("things:thing.notcreatable", policy_id, status=403)
    try:
        policy_rules.check(case, policy)
    except TwinError as error:
        raise case.refuse("things:thing.notcreatable", policy_id, status=error.fault.status) from error
    enforcer = policy_rules.enforcer_of(case, policy, case.entity.namespace)
    return _Guard(policy_id, enforcer, case.step(before, "created", encode(policy), policy, entity=entity))

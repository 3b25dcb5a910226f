"""Commands on a policy as a whole.

A policy is stored in its full form, with everything that has a default written out, and only if somebody can still change
it afterwards (Ditto protocol, validity). Commands on parts of a policy are refused in `decide`, which is the one place that
knows of no others; imports, references between entries, and entries for some namespaces only are refused here, because to
ignore them would grant something else than what was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connectivity.twins import preconditions, values
from connectivity.twins.base import Case, Decision, decision, encode, is_same_json, revision_tag, state_of
from connectivity.twins.enforcer import DROP, READ, WRITE, Enforcer
from connectivity.twins.faults import shown
from connectivity.twins.paths import is_key
from connectivity.twins.preconditions import Preconditions
from connectivity.twins.retrieval import read_selection, shortened, with_hidden
from mappings.ids import MAX_ID_LENGTH, EntityType, parse_entity_id, utf16_length
from mappings.selection import select
from spark_store.records import Snapshot

EXPIRY_GRANULARITY: Final = timedelta(hours=1)
"""The expiry of a subject is rounded up to whole ones of these."""

_RESERVED: Final = ("imported", "nsimported")
_RESOURCE: Final = re.compile(r"[^:/]+:/.*", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1F\x7F-\x9F]")
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(?P<name>.*?)\s*\}\}|\$\{\s*(?P<old>.*?)\s*\}", re.DOTALL)
_IMPORTABLE: Final = ("implicit", "explicit", "never")


def decide_policy(case: Case) -> Decision:
    """Carry out a command on a policy. Raises TwinError."""
    asked = preconditions.read(case)
    match case.command.action:
        case "create" | "modify":
            return _write(case, asked)
        case "delete":
            return _delete(case, asked)
        case "retrieve":
            return _retrieve(case, asked)
        case action:
            raise case.refuse("protocoladapter:unknown.topicpath", action)


def _write(case: Case, asked: Preconditions) -> Decision:
    value = values.parse(case)
    if not isinstance(value, dict):
        raise case.refuse("json.format.invalid", "expected an object")
    if case.command.action == "create":
        _check_own_id(case, value)
    policy = normalised(case, value, str(case.entity))
    raw = encode(policy)
    if len(raw) > case.limits.policy:
        raise case.refuse("policies:policy.toolarge", f"found {len(raw)} bytes, expected at most {case.limits.policy}")
    before = case.world.snapshot(case.entity)
    if before is not None and not before.is_deleted and case.command.action == "modify":
        return _replace(case, asked, before, policy, raw)
    return _create(case, asked, before, policy, raw)


def _check_own_id(case: Case, value: Mapping[str, Any]) -> None:
    own = value.get("policyId")
    if not isinstance(own, str) or parse_entity_id(EntityType.POLICY, own) is None:
        raise case.refuse("policies:id.invalid", shown(own) if isinstance(own, str) else "A missing policyId")
    if own != str(case.entity):
        raise case.refuse("policies:id.notsettable")


def _create(
    case: Case, asked: Preconditions, before: Snapshot | None, policy: Mapping[str, Any], raw: bytes
) -> Decision:
    if not may_administer(case, Enforcer(policy, case.now)):
        raise case.refuse("policies:policy.notcreatable")
    if before is None or before.is_deleted:
        asked.check_tags(case, None)
    else:
        asked.check_tags(case, lambda: revision_tag(before))
        raise case.refuse("policies:policy.conflict")
    if not is_administered(policy):
        raise case.refuse("policies:policy.modificationinvalid")
    step = case.step(before, "created", raw, policy)
    tag = revision_tag(step.snapshot)
    return decision([step], case.respond(201, raw, revision=step.snapshot.revision, tag=tag, action="create"))


def _replace(case: Case, asked: Preconditions, before: Snapshot, policy: Mapping[str, Any], raw: bytes) -> Decision:
    _check_writable(case)
    asked.check_tags(case, lambda: revision_tag(before))
    if not is_administered(policy):
        raise case.refuse("policies:policy.modificationinvalid")
    if asked.if_equal == preconditions.SKIP and is_same_json(before.state, policy):
        raise case.precondition_failed("the value is the present one")
    step = case.step(before, "modified", raw, policy)
    response = case.respond(204, None, revision=step.snapshot.revision, tag=revision_tag(step.snapshot))
    return decision([step], response)


def _delete(case: Case, asked: Preconditions) -> Decision:
    before = case.living()
    if before is None:
        raise case.refuse("policies:policy.notfound")
    _check_writable(case)
    asked.check_tags(case, lambda: revision_tag(before))
    step = case.step(before, "deleted", None, None)
    return decision([step], case.respond(204, None, revision=step.snapshot.revision))


def _retrieve(case: Case, asked: Preconditions) -> Decision:
    selection = read_selection(case)
    snapshot = case.living()
    enforcer = case.world.enforcer(str(case.entity))
    if snapshot is None or enforcer is None or not enforcer.partial(case.subjects, READ, "policy:/"):
        raise case.refuse("policies:policy.notfound")
    snapshot = case.shown(snapshot)
    tag = revision_tag(snapshot)
    asked.check_tags(case, lambda: tag)
    seen = enforcer.view(state_of(snapshot), "policy:/", case.subjects)
    result = {} if seen is DROP else seen
    if selection is not None:
        result = select(with_hidden(case, result, snapshot, selection), selection)
    return decision([], case.respond(200, encode(result), revision=snapshot.revision, tag=tag))


def _check_writable(case: Case) -> None:
    enforcer = case.world.enforcer(str(case.entity))
    if enforcer is None or not enforcer.unrestricted(case.subjects, WRITE, "policy:/"):
        raise case.refuse("policies:policy.notmodifiable")


# --- who can change a policy ---


def is_administered(policy: Mapping[str, Any]) -> bool:
    """Whether a subject that does not expire may WRITE on `policy:/`, and no entry takes that away."""
    granted: set[str] = set()
    revoked: set[str] = set()
    for entry in policy["entries"].values():
        permissions = entry["resources"].get("policy:/")
        if permissions is None:
            continue
        if WRITE in permissions["grant"]:
            granted.update(subject for subject, about in entry["subjects"].items() if "expiry" not in about)
        if WRITE in permissions["revoke"]:
            revoked.update(entry["subjects"])
    return bool(granted - revoked)


def may_administer(case: Case, enforcer: Enforcer) -> bool:
    """Whether the creator could change his policy afterwards, or does not care."""
    return case.flag("allow-policy-lockout") or enforcer.unrestricted(case.subjects, WRITE, "policy:/")


# --- the full form of a policy ---


def normalised(case: Case, value: Mapping[str, Any], policy_id: Any) -> dict[str, Any]:
    """A policy in the form in which it is stored. Raises TwinError for what no policy may say."""
    if not isinstance(policy_id, str) or parse_entity_id(EntityType.POLICY, policy_id) is None:
        raise case.refuse("policies:id.invalid", shown(policy_id))
    _check_imports(case, value.get("imports"), policy_id)
    entries = value.get("entries")
    if entries is not None and not isinstance(entries, dict):
        raise case.refuse("json.invalid", "expected an object as entries")
    return {
        "policyId": policy_id,
        "imports": {},
        "entries": {_label(case, label): _entry(case, entry) for label, entry in (entries or {}).items()},
    }


def _check_imports(case: Case, imports: Any, policy_id: str) -> None:
    if imports is None or imports == {}:
        return
    if not isinstance(imports, dict):
        raise case.refuse("json.invalid", "expected an object as imports")
    if len(imports) > case.limits.imports:
        detail = f"found {len(imports)}, expected at most {case.limits.imports}"
        raise case.refuse("policies:imports.toolarge", detail, about=policy_id)
    raise case.refuse("policies:import.invalid", about=policy_id)


def _label(case: Case, label: str) -> str:
    if label.startswith(_RESERVED):
        raise case.refuse("policies:label.invalid", shown(label))
    if not is_key(label):
        raise case.refuse("policies:entry.invalid", f"found the label {shown(label)}")
    return label


def _entry(case: Case, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise case.refuse("json.invalid", "expected objects as entries")
    for name in ("subjects", "resources"):
        if name not in entry:
            raise case.refuse("json.field.missing", name)
        if not isinstance(entry[name], dict):
            raise case.refuse("json.invalid", f"expected an object as {name}")
    for name in ("references", "namespaces"):
        if entry.get(name):
            raise case.refuse("policies:entry.invalid", f"'{name}' is not supported")
    importable = entry.get("importable", "implicit")
    if importable not in _IMPORTABLE:
        raise case.refuse("policies:entry.invalid", f"expected one of {', '.join(_IMPORTABLE)} as importable")
    full = {
        "subjects": dict(_subject(case, subject, about) for subject, about in entry["subjects"].items()),
        "resources": {_resource(case, key): _permissions(case, found) for key, found in entry["resources"].items()},
        "importable": importable,
    }
    if entry.get("allowedAdditions") is not None:
        full["allowedAdditions"] = _strings(case, entry["allowedAdditions"], "allowedAdditions")
    return full


def _subject(case: Case, subject: str, about: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(about, dict):
        raise case.refuse("json.invalid", "expected objects as subjects")
    if "type" not in about:
        raise case.refuse("json.field.missing", "type")
    if not isinstance(about["type"], str):
        raise case.refuse("json.invalid", "expected a string as a subject's type")
    full: dict[str, Any] = {"type": about["type"]}
    if about.get("expiry") is not None:
        full["expiry"] = _expiry(case, about["expiry"])
    if about.get("announcement") is not None:
        if not isinstance(about["announcement"], dict):
            raise case.refuse("policies:subjectannouncement.invalid", "expected an object")
        full["announcement"] = about["announcement"]
    return _subject_id(case, subject), full


def _subject_id(case: Case, text: str) -> str:
    """The id of a subject, with the caller in place of the placeholder for him."""
    subject = _PLACEHOLDER.sub(lambda match: _resolved(case, match), text)
    scheme = subject.find("://")
    issuer, colon, name = (
        subject.partition(":") if scheme < 0 else (subject[: scheme + 3], *subject[scheme + 3 :].partition(":")[1:])
    )
    is_valid = issuer and colon and name and _CONTROL.search(subject) is None
    if not is_valid or utf16_length(subject) > MAX_ID_LENGTH:
        raise case.refuse("policies:subjectid.invalid", shown(subject))
    return subject


def _resolved(case: Case, placeholder: re.Match[str]) -> str:
    known = placeholder["name"] == "request:subjectId" or placeholder["old"] == "request.subjectId"
    if not known or not case.subjects:
        raise case.refuse("placeholder:unresolved", shown(placeholder[0]))
    return case.subjects[0]


def _expiry(case: Case, text: Any) -> str:
    """When a subject expires: rounded up, and in the future."""
    try:
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            raise ValueError("no time zone")
        past = (instant - datetime.min.replace(tzinfo=UTC)) % EXPIRY_GRANULARITY
        rounded = (instant + (EXPIRY_GRANULARITY - past if past else timedelta())).astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise case.refuse("policies:subjectexpiry.invalid", "expected an instant in ISO-8601") from error
    timestamp = rounded.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if timestamp <= case.now:
        raise case.refuse("policies:subjectexpiry.invalid", f"found {shown(text)}, which has passed")
    return shortened(timestamp)


def _resource(case: Case, key: str) -> str:
    if _RESOURCE.fullmatch(key) is None:
        raise case.refuse("policies:entry.invalid", f"found the resource {shown(key)}, expected 'type:/path'")
    if "//" in key:
        raise case.refuse("policies:entry.invalid", f"found the resource {shown(key)}, expected no consecutive slashes")
    return key


def _permissions(case: Case, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise case.refuse("json.invalid", "expected objects as resources")
    for name in ("grant", "revoke"):
        if name not in found:
            raise case.refuse("json.field.missing", name)
    return {name: _strings(case, found[name], name) for name in ("grant", "revoke")}


def _strings(case: Case, value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise case.refuse("json.invalid", f"expected an array of strings as {name}")
    return value

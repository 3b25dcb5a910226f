"""Checks and normalizes the values of policy commands.

A policy is stored with all defaults written out and no unknown members (Ditto protocol, policy JSON). The readers of the
values need only the command; `check`, at the end, needs the resulting policy: who can change it, and its references and
imports. Wrong types: `json.format.invalid` for the addressed value itself, `json.invalid` further in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from connectivity.authorization import policy_imports
from connectivity.authorization.enforcer import READ, WRITE, Enforcer
from connectivity.authorization.policy_imports import (
    ADDITIONS,
    EXPLICIT,
    IMPLICIT,
    NEVER,
    EffectiveEntry,
    Policy,
    PolicySize,
    Source,
)
from connectivity.twins import paths, values
from connectivity.twins.context import CommandContext, encode, state_of
from connectivity.twins.errors import quote
from connectivity.twins.paths import is_key
from mappings.ids import MAX_ID_LENGTH, EntityId, EntityType, is_label, parse_entity_id, utf16_length
from mappings.model.headers import timeout_seconds
from mappings.timestamps import shorten_timestamp, utc_text

EXPIRY_GRANULARITY: Final = timedelta(hours=1)
"""The expiry of a subject is rounded up to whole ones of these."""

RESERVED: Final = ("imported", "nsimported")
"""The reserved prefix of labels that resolved imports get."""

_IMPORTABLE: Final = (IMPLICIT, EXPLICIT, NEVER)
_RESOURCE: Final = re.compile(r"[^:/]+:/.*", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1F\x7F-\x9F]")
_PLACEHOLDER: Final = re.compile(r"\{\{(?P<name>[^{}]*)\}\}|\$\{(?P<old>[^{}]*)\}")
"""A name has no braces, and blanks are stripped afterwards: so the text of a client is read once."""
_NAMESPACE: Final = re.compile(r"[a-zA-Z]\w*(?:[.\-][a-zA-Z]\w*)*(?:\.\*)?", re.ASCII)


def read(case: CommandContext) -> Any:
    """The command's value in the form in which it is stored. Raises TwinError."""
    return _READERS[case.address.resource.part](case, values.parse(case))


def with_subject(case: CommandContext) -> CommandContext:
    """Return the case of a path to a subject, with the caller in place of their placeholder."""
    _, label, kind, subject = case.address.segments
    if _PLACEHOLDER.search(subject) is None:
        return case
    return msgspec.structs.replace(case, address=paths.below_entry(label, kind, resolve_subject(case, subject)))


def check_subject(case: CommandContext) -> None:
    """Refuse a path with an invalid ID of a subject, or an invalid resource. Raises TwinError."""
    if case.address.resource.part == "subject":
        _subject_id(case, case.address.segments[-1])
    elif case.address.resource.part == "resource":
        _resource(case, case.address.segments[-1])


def policy(case: CommandContext, value: Mapping[str, Any], policy_id: Any) -> dict[str, Any]:
    """Return a whole policy with this ID. Raises TwinError for an invalid one."""
    if not isinstance(policy_id, str) or parse_entity_id(EntityType.POLICY, policy_id) is None:
        raise case.refuse("policies:id.invalid", quote(policy_id))
    imports, entries = value.get("imports"), value.get("entries")
    return {
        "policyId": policy_id,
        "imports": {} if imports is None else _imports(case, _inner(case, imports, "imports"), policy_id),
        "entries": {} if entries is None else _entries(case, _inner(case, entries, "entries")),
    }


def _entries(case: CommandContext, value: Any) -> dict[str, Any]:
    return {_label(case, label): _entry(case, _inner(case, entry, label)) for label, entry in value.items()}


def _label(case: CommandContext, label: str) -> str:
    if label.startswith(RESERVED):
        raise case.refuse("policies:label.invalid", quote(label))
    if not is_key(label):
        raise case.refuse("policies:entry.invalid", f"found {quote(label)}, which cannot be a label")
    return label


def _own_entry(case: CommandContext, value: Any) -> dict[str, Any]:
    _label(case, case.address.segments[1])
    return _entry(case, _outer(case, value))


def _entry(case: CommandContext, entry: Mapping[str, Any]) -> dict[str, Any]:
    full = {
        "subjects": _subjects(case, _inner(case, entry.get("subjects", {}), "subjects")),
        "resources": _resources(case, _inner(case, entry.get("resources", {}), "resources")),
        "importable": _importable(case, entry.get("importable", IMPLICIT)),
    }
    for name in ("allowedAdditions", "namespaces", "references"):
        if (member := entry.get(name)) is not None:
            if not isinstance(member, list):
                raise case.refuse("json.invalid", f"expected {name} to be an array")
            if member or name != "references":
                full[name] = _READERS[name](case, member)
    return full


def _subjects(case: CommandContext, value: Mapping[str, Any]) -> dict[str, Any]:
    return {_subject_id(case, id): subject(case, about) for id, about in value.items()}


def subject(case: CommandContext, about: Any) -> dict[str, Any]:
    """Return the value of one subject as it is stored. Raises TwinError."""
    about = _inner(case, about, "a subject")
    if "type" not in about:
        raise case.refuse("json.field.missing", "type")
    if not isinstance(about["type"], str):
        raise case.refuse("json.invalid", "expected a subject's type to be a string")
    full: dict[str, Any] = {"type": about["type"]}
    if about.get("expiry") is not None:
        full["expiry"] = _expiry(case, about["expiry"])
    if about.get("announcement") is not None:
        full["announcement"] = _announcement(case, about["announcement"])
    return full


def _subject_id(case: CommandContext, text: str) -> str:
    """Return the ID of a subject, with its placeholder replaced by the caller. Raises TwinError."""
    found = resolve_subject(case, text)
    check_subject_id(case, found)
    return found


def check_subject_id(case: CommandContext, subject: str) -> None:
    """Refuse an invalid ID of a subject. Raises TwinError."""
    scheme = subject.find("://")
    issuer, colon, name = (
        subject.partition(":") if scheme < 0 else (subject[: scheme + 3], *subject[scheme + 3 :].partition(":")[1:])
    )
    is_valid = issuer and colon and name and _CONTROL.search(subject) is None
    if not is_valid or utf16_length(subject) > MAX_ID_LENGTH:
        raise case.refuse("policies:subjectid.invalid", quote(subject))


def resolve_subject(case: CommandContext, text: str) -> str:
    """Return a subject's ID with its placeholders resolved. Raises TwinError for unknown placeholders."""
    return _PLACEHOLDER.sub(lambda match: _caller(case, match), text)


def _caller(case: CommandContext, placeholder: re.Match[str]) -> str:
    name, old = (found and found.strip() for found in placeholder.group("name", "old"))
    known = name == "request:subjectId" or old == "request.subjectId"
    if not known or not case.subjects:
        raise case.refuse("placeholder:unresolved", quote(placeholder[0]))
    return case.subjects[0]


def _expiry(case: CommandContext, text: Any) -> str:
    """Return the time at which a subject expires, rounded up. Raises TwinError unless it is in the future."""
    try:
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            raise ValueError("no time zone")
        past = (instant - datetime.min.replace(tzinfo=UTC)) % EXPIRY_GRANULARITY
        rounded = (instant + (EXPIRY_GRANULARITY - past if past else timedelta())).astimezone(UTC)
    except OverflowError as error:
        detail = f"found {quote(text)}, expected a time in UTC that is at most the year 9999 when it is rounded up"
        raise case.refuse("policies:subjectexpiry.invalid", detail) from error
    except (TypeError, ValueError) as error:
        raise case.refuse("policies:subjectexpiry.invalid", "expected an ISO 8601 time with a time zone") from error
    timestamp = utc_text(rounded)
    if timestamp <= case.now:
        raise case.refuse("policies:subjectexpiry.invalid", f"found {quote(text)}, expected a time in the future")
    return shorten_timestamp(timestamp)


def _announcement(case: CommandContext, value: Any) -> dict[str, Any]:
    """Return when and how the end of a subject is announced, without unknown members."""
    if not isinstance(value, dict):
        raise _no_announcement(case, "expected an object")
    full: dict[str, Any] = {}
    for name in ("beforeExpiry", "randomizationInterval"):
        if value.get(name) is not None:
            full[name] = _duration(case, value[name], name)
    if (when_deleted := value.get("whenDeleted")) is not None:
        if not isinstance(when_deleted, bool):
            raise _no_announcement(case, "expected whenDeleted to be a boolean")
        full["whenDeleted"] = when_deleted
    if (requested := value.get("requestedAcks")) is not None:
        full["requestedAcks"] = _parse_requested(case, requested)
    return full


def _parse_requested(case: CommandContext, value: Any) -> dict[str, Any]:
    labels = value.get("labels") if isinstance(value, dict) else None
    if not isinstance(labels, list) or not all(isinstance(label, str) and is_label(label) for label in labels):
        raise _no_announcement(case, "expected requestedAcks to have an array of acknowledgement labels")
    full: dict[str, Any] = {"labels": labels}
    if value.get("timeout") is not None:
        full["timeout"] = _duration(case, value["timeout"], "timeout")
    return full


def _duration(case: CommandContext, value: Any, name: str) -> str:
    if not isinstance(value, str) or duration_of(value) is None:
        raise _no_announcement(case, f"expected {name} to be a duration such as 1h")
    return value


def duration_of(text: str) -> timedelta | None:
    """Return `1h` as a timedelta; None for an invalid or too long duration."""
    seconds = timeout_seconds({"timeout": text})
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except OverflowError:
        return None


def _no_announcement(case: CommandContext, why: str) -> Exception:
    return case.refuse("policies:subjectannouncement.invalid", why)


def _resources(case: CommandContext, value: Mapping[str, Any]) -> dict[str, Any]:
    return {_resource(case, key): _permissions(case, _inner(case, found, key)) for key, found in value.items()}


def _resource(case: CommandContext, key: str) -> str:
    if _RESOURCE.fullmatch(key) is None or _CONTROL.search(key) is not None:
        raise case.refuse("policies:entry.invalid", f"found the resource {quote(key)}, expected 'type:/path'")
    if "//" in key:
        raise case.refuse(
            "policies:entry.invalid", f"found the resource {quote(key)}, expected a path without consecutive slashes"
        )
    return key


def _permissions(case: CommandContext, found: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("grant", "revoke"):
        if name not in found:
            raise case.refuse("json.field.missing", name)
    return {name: _strings(case, found[name], name) for name in ("grant", "revoke")}


def _importable(case: CommandContext, value: Any) -> str:
    if value not in _IMPORTABLE:
        raise case.refuse("policies:entry.invalid", f"expected importable to be one of {', '.join(_IMPORTABLE)}")
    return str(value)


def _additions(case: CommandContext, value: Any) -> list[str]:
    if not set(ADDITIONS).issuperset(_strings(case, value, "allowedAdditions")):
        raise case.refuse("policies:entry.invalid", f"expected allowedAdditions to contain only {', '.join(ADDITIONS)}")
    return list(dict.fromkeys(value))


def _namespaces(case: CommandContext, value: Any) -> list[str]:
    if not all(_NAMESPACE.fullmatch(pattern) for pattern in _strings(case, value, "namespaces")):
        raise case.refuse("policies:entry.invalid", "expected namespaces such as acme.plant or acme.*")
    return list(value)


def _references(case: CommandContext, value: Sequence[Any]) -> list[dict[str, str]]:
    """The entries that an entry refers to, of this policy or of one that it imports."""
    references = []
    for reference in value:
        found = _inner(case, reference, "a reference")
        if "entry" not in found:
            raise case.refuse("json.field.missing", "entry")
        if not isinstance(found["entry"], str):
            raise case.refuse("json.invalid", "expected each reference to have the label of an entry")
        label = _label(case, found["entry"])
        if "import" not in found:
            references.append({"entry": label})
        elif isinstance(imported := found["import"], str):
            if parse_entity_id(EntityType.POLICY, imported) is None:
                raise case.refuse("policies:id.invalid", quote(imported))
            references.append({"import": imported, "entry": label})
        else:
            raise case.refuse("json.invalid", "expected the import of a reference to be the id of an imported policy")
    return references


def _imports(case: CommandContext, value: Mapping[str, Any], policy_id: str) -> dict[str, Any]:
    check_number_of_imports(case, value, policy_id)
    return {
        _imported_policy_id(case, imported, policy_id): _import(case, _inner(case, found, imported), policy_id)
        for imported, found in value.items()
    }


def check_number_of_imports(case: CommandContext, imports: Mapping[str, Any], policy_id: str) -> None:
    if len(imports) > case.limits.imports:
        detail = f"found {len(imports)}, expected at most {case.limits.imports}"
        raise case.refuse("policies:imports.toolarge", detail, about=policy_id)


def _imported_policy_id(case: CommandContext, id: str, policy_id: str) -> str:
    """Return the ID of an imported policy. Raises TwinError if it is invalid, or imports itself."""
    if parse_entity_id(EntityType.POLICY, id) is None:
        raise case.refuse("policies:id.invalid", quote(id))
    if id == policy_id:
        raise case.refuse("policies:import.invalid", "a policy cannot import itself", about=policy_id)
    return id


def _import(case: CommandContext, value: Mapping[str, Any], policy_id: str) -> dict[str, Any]:
    labels, transitive = value.get("entries"), value.get("transitiveImports")
    full: dict[str, Any] = {"entries": [] if labels is None else _labels(case, labels)}
    if transitive is not None:
        full["transitiveImports"] = _transitive(case, _strings(case, transitive, "transitiveImports"), policy_id)
    return full


def _labels(case: CommandContext, value: Any) -> list[str]:
    """The labels of entries that an import names, each once."""
    return list(dict.fromkeys(_label(case, label) for label in _strings(case, value, "entries")))


def _transitive(case: CommandContext, ids: Sequence[str], policy_id: str) -> list[str]:
    if len(ids) > case.limits.imports:
        detail = f"found {len(ids)} transitive imports, expected at most {case.limits.imports}"
        raise case.refuse("policies:imports.toolarge", detail, about=policy_id)
    return [_imported_policy_id(case, id, policy_id) for id in ids]


def _own_import(case: CommandContext, value: Any) -> dict[str, Any]:
    _imported_policy_id(case, case.address.segments[1], str(case.entity))
    return _import(case, _outer(case, value), str(case.entity))


def _outer(case: CommandContext, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise case.refuse("json.format.invalid", "expected an object")
    return value


def _inner(case: CommandContext, value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise case.refuse("json.invalid", f"expected {quote(name)} to be an object")
    return value


def _array(case: CommandContext, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise case.refuse("json.format.invalid", "expected an array")
    return value


def _strings(case: CommandContext, value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise case.refuse("json.invalid", f"expected {name} to be an array of strings")
    return value


_READERS: Final[Mapping[str, Callable[[CommandContext, Any], Any]]] = {
    "policy": lambda case, value: policy(case, _outer(case, value), str(case.entity)),
    "entries": lambda case, value: _entries(case, _outer(case, value)),
    "entry": _own_entry,
    "subjects": lambda case, value: _subjects(case, _outer(case, value)),
    "subject": lambda case, value: subject(case, _outer(case, value)),
    "resources": lambda case, value: _resources(case, _outer(case, value)),
    "resource": lambda case, value: _permissions(case, _outer(case, value)),
    "importable": _importable,
    "allowedAdditions": lambda case, value: _additions(case, _array(case, value)),
    "namespaces": lambda case, value: _namespaces(case, _array(case, value)),
    "references": lambda case, value: _references(case, _array(case, value)),
    "imports": lambda case, value: _imports(case, _outer(case, value), str(case.entity)),
    "import": _own_import,
    "labels": lambda case, value: _labels(case, _array(case, value)),
    "transitiveImports": lambda case, value: _transitive(
        case, _strings(case, _array(case, value), "transitiveImports"), str(case.entity)
    ),
}


def lookup_of(case: CommandContext) -> policy_imports.Lookup:
    """The states of policies as the case's world knows them."""

    def lookup(policy_id: str) -> Policy | None:
        entity = parse_entity_id(EntityType.POLICY, policy_id)
        snapshot = case.world.snapshot(entity) if entity is not None else None
        return None if snapshot is None or snapshot.is_deleted else state_of(snapshot)

    return lookup


def enforcer_of(case: CommandContext, policy: Policy, namespace: str) -> Enforcer:
    """The permissions of a policy that is not stored yet, for entities of a namespace."""
    return Enforcer(policy_imports.enforced(policy, lookup_of(case))[0], case.now, namespace)


def is_administered(policy: Policy) -> bool:
    """Whether a subject without expiry may WRITE on `policy:/`, and no entry revokes it."""
    if policy["imports"]:
        return True
    namespace = policy["policyId"].partition(":")[0]
    granted: set[str] = set()
    revoked: set[str] = set()
    # References give permissions too: a referenced entry may revoke this one.
    for entry in policy_imports.effective(policy, lambda _: None)[0]["entries"].values():
        permissions = entry["resources"].get("policy:/")
        if permissions is None:
            continue
        if WRITE in permissions["grant"] and policy_imports.holds_in(entry, namespace):
            granted.update(subject for subject, about in entry["subjects"].items() if "expiry" not in about)
        if WRITE in permissions["revoke"]:
            revoked.update(entry["subjects"])
    return bool(granted - revoked)


def may_administer(case: CommandContext, policy: Policy) -> bool:
    """Whether the creator could change the policy afterwards, or does not require it."""
    if case.flag("allow-policy-lockout"):
        return True
    namespace = policy["policyId"].partition(":")[0]
    return enforcer_of(case, policy, namespace).unrestricted(case.subjects, WRITE, "policy:/")


def check_unreferenced(case: CommandContext, policy: EntityId, action: str) -> None:
    """Refuse to delete a policy that others refer to, or to create it again if it is missing.

    Otherwise the creator of a policy with this ID would decide who can read them. Raises TwinError.
    """
    things, policies = case.world.lives.references(policy)
    found = [
        f"{count} {one if count == 1 else many}"
        for count, one, many in (
            (things, "thing names it", "things name it"),
            (policies, "policy imports it", "policies import it"),
        )
        if count
    ]
    if found:
        raise case.refuse("policies:policy.referenceconflict", f"{action}: {' and '.join(found)}", about=policy)


def check(case: CommandContext, policy: Policy, before: Policy | None = None) -> None:
    """Refuse a policy that is too large, or has references or imports that the caller may not use.

    Only imports that are not in the policy `before` are checked. Raises TwinError.
    """
    if (size := len(encode(policy))) > case.limits.policy:
        raise case.refuse("policies:policy.toolarge", f"found {size} bytes, expected at most {case.limits.policy}")
    check_number_of_imports(case, policy["imports"], policy["policyId"])
    _check_references(case, policy, before)
    reached = PolicySize()
    _check_sources(case, policy, before, policy_imports.effective_entries(policy, lookup_of(case), reached))
    _check_size(case, policy, reached)


def _check_size(case: CommandContext, policy: Policy, size: PolicySize) -> None:
    """Refuse a policy that reaches too many others, or has too many permissions with them."""
    if size.policies > policy_imports.MOST_POLICIES:
        allowed = policy_imports.MOST_POLICIES
        detail = f"found more than {allowed} policies that it reaches in all, expected at most {allowed}"
        raise case.refuse("policies:imports.toolarge", detail, about=policy["policyId"])
    if size.is_too_large:
        detail = f"found {size.permissions} or more, expected at most {policy_imports.MOST_PERMISSIONS}"
        raise case.refuse("policies:permissions.toolarge", detail, about=policy["policyId"])


def _check_references(case: CommandContext, policy: Policy, before: Policy | None) -> None:
    """Refuse references that cannot be followed, and changes of what references need."""
    known: set[tuple[str, str | None, str]] = set()
    for label, reference in _labelled_references(policy):
        imported, referred = reference.get("import"), reference["entry"]
        if (label, imported, referred) in known:
            raise case.refuse("policies:entry.invalid", f"the entry '{label}' refers to the same entry twice")
        known.add((label, imported, referred))
        if imported is None:
            _check_local_reference(case, policy, label, referred)
        else:
            _check_import_reference(case, policy, before, label, (imported, referred))


def _check_local_reference(case: CommandContext, policy: Policy, label: str, referred: str) -> None:
    if referred == label:
        raise case.refuse("policies:entry.invalid", f"the entry '{label}' refers to itself")
    entry = policy["entries"].get(referred)
    if entry is not None and entry["importable"] != NEVER:
        return
    if case.address.segments == (("entries", referred) if entry is None else ("entries", referred, "importable")):
        raise case.refuse("policies:entry.referenceconflict", referred)
    why = "does not exist" if entry is None else "is never importable"
    raise case.refuse("policies:entry.invalid", f"the entry '{label}' refers to an entry that {why}")


def _check_import_reference(
    case: CommandContext, policy: Policy, before: Policy | None, label: str, source: Source
) -> None:
    imported, referred = source
    is_about_imports = case.address.segments[:1] == ("imports",)
    if (wanted := policy["imports"].get(imported)) is None:
        if is_about_imports:
            raise case.refuse("policies:import.referenceconflict", imported)
        why = f"the entry '{label}' refers to an import that does not exist"
        if not case.address.segments:
            raise case.refuse("policies:import.invalid", why)
        if not _may_read(case, source):
            raise case.refuse("policies:policy.notfound", about=imported)
        raise case.refuse("policies:entry.invalid", why)
    if is_about_imports:
        named = before["imports"].get(imported, {"entries": ()})["entries"] if before is not None else ()
        if referred in named and referred not in wanted["entries"]:
            raise case.refuse("policies:import.referenceconflict", imported)
    elif _is_written(case, label) and _may_read(case, source):
        other = lookup_of(case)(imported)
        entry = other["entries"].get(referred) if other is not None else None
        if entry is None or entry["importable"] == NEVER:
            why = "does not exist" if entry is None else "is never importable"
            raise case.refuse("policies:import.invalid", f"the entry '{label}' refers to an imported entry that {why}")


def _is_written(case: CommandContext, label: str) -> bool:
    """Whether the command writes the references of an entry."""
    written = case.address.segments
    return written in {(), ("entries",), ("entries", label), ("entries", label, "references")}


def _labelled_references(policy: Policy) -> Iterator[tuple[str, Mapping[str, str]]]:
    for label, entry in policy["entries"].items():
        for reference in entry.get("references", ()):
            yield label, reference


def _check_sources(
    case: CommandContext, policy: Policy, before: Policy | None, effective: Sequence[EffectiveEntry]
) -> None:
    """Refuse to import or refer to what does not exist or is not readable: both get the same response.

    Imports and references that the policy `before` has already are not checked again.
    """
    known = before["imports"] if before is not None else {}
    added = {id: wanted for id, wanted in policy["imports"].items() if known.get(id) != wanted}
    for imported in added:
        if not may_refer_to(case, imported):
            raise case.refuse("policies:policy.notfound", about=imported)
    # Named labels are checked even if there is no such entry: the error must not tell whether there is.
    needed = [(imported, label) for imported, wanted in added.items() for label in wanted["entries"]]
    former = {} if before is None else before["entries"]
    changed = {
        label: references
        for label, entry in policy["entries"].items()
        if (references := entry.get("references")) and references != former.get(label, {}).get("references")
    }
    needed += [
        (each["import"], each["entry"]) for references in changed.values() for each in references if "import" in each
    ]
    for found in effective:
        origin = found.path[0]
        if origin in (changed if len(found.path) == 1 else added):
            needed += [source for source in found.sources if source[0] != policy["policyId"]]
    for source in needed:
        if not _may_read(case, source):
            raise case.refuse("policies:policy.notfound", about=source[0])


def may_refer_to(case: CommandContext, policy_id: str) -> bool:
    """Whether the policy exists and the subjects can read a part of it."""
    enforcer = case.world.enforcer(policy_id)
    return enforcer is not None and enforcer.partial(case.subjects, READ, "policy:/")


def _may_read(case: CommandContext, source: Source) -> bool:
    """Whether the caller may read an entry of a policy."""
    policy_id, label = source
    enforcer = case.world.enforcer(policy_id)
    escaped = label.replace("~", "~0")
    return enforcer is not None and enforcer.unrestricted(case.subjects, READ, f"policy:/entries/{escaped}")


def readable_entries(case: CommandContext, policy: Policy) -> dict[str, Any]:
    """Return the effective entries of a policy, without what the caller cannot read where it is stored."""
    entries: dict[str, Any] = {}
    readable: dict[Source, bool] = {}

    def is_readable(source: Source) -> bool:
        if source not in readable:
            readable[source] = _may_read(case, source)
        return readable[source]

    for found in policy_imports.effective_entries(policy, lookup_of(case), is_readable=is_readable):
        entries.setdefault(found.label, found.entry)
    return entries

"""The error codes of things and policies, with status and texts, as one table.

Texts contain IDs and paths, but no values: the client may not be allowed to read them. "Unknown" and "not visible to you"
are the same response, so that a refusal does not reveal what exists (Ditto protocol, error codes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from connectivity.errors import TwinError
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.texts import shorten


class _ErrorText(NamedTuple):
    status: int
    message: str
    description: str | None = None


_READ_HINT = "Check the path, and whether you have READ permission on it."
_WRITE_HINT = (
    "Check the path, and whether you have WRITE permission on it. A command with 'if-equal' needs READ permission too."
)
_HEADER_HINT = "Check the header's name and value."

_FAULTS: dict[str, _ErrorText] = {
    "json.invalid": _ErrorText(
        400, "The value of '{path}' is not valid: {detail}.", "Check the JSON types of the value."
    ),
    "json.format.invalid": _ErrorText(
        400, "The value of '{path}' has the wrong type: {detail}.", "Check the JSON type of the value."
    ),
    "json.field.missing": _ErrorText(
        400, "The value of '{path}' lacks a mandatory member: {detail}.", "Add the missing member."
    ),
    "json.fieldselector.invalid": _ErrorText(
        400, "The field selector is not valid: {detail}.", "Check the parentheses and commas of the selector."
    ),
    "json.key.invalid": _ErrorText(
        400,
        "The key {detail} is not valid.",
        "A key has 1 to 256 characters, but no slash, no control character and no character from U+007F to U+00FF.",
    ),
    "json.pointer.invalid": _ErrorText(
        400, "The JSON pointer '{path}' is not valid.", "Check that it has no consecutive slashes."
    ),
    "header.invalid": _ErrorText(400, "The header '{detail}' is not valid.", _HEADER_HINT),
    "header.notsupported": _ErrorText(400, "The header '{detail}' is not supported for this command.", _HEADER_HINT),
    "headers.too.large": _ErrorText(431, "The headers are too large: {detail}.", "Send fewer or shorter headers."),
    "mediatype.unsupported": _ErrorText(
        415,
        "The content-type {detail} is not supported for this command.",
        "A merge needs the content-type 'application/merge-patch+json'.",
    ),
    "rql.expression.invalid": _ErrorText(400, "{detail}", "Check the syntax of the expression."),
    "signal.unsupported": _ErrorText(
        400, "The provided signal is not supported: {detail}.", "Check the path and the headers."
    ),
    "placeholder:unresolved": _ErrorText(
        400, "The placeholder {detail} could not be resolved.", "The only known placeholder is {{ request:subjectId }}."
    ),
    "placeholder:placeholder.reference.notsupported": _ErrorText(
        400,
        "The reference {detail} is not supported.",
        "Write the id of a policy, or '{{ ref:things/<thing id>/policyId }}'.",
    ),
    "placeholder:placeholder.reference.unknown.field": _ErrorText(
        400, "The field {detail} cannot be referenced.", "Reference the thing's 'policyId'."
    ),
    "protocoladapter:unknown.path": _ErrorText(400, "The path '{path}' is unknown.", "Check the path."),
    "protocoladapter:unknown.topicpath": _ErrorText(
        400, "The action '{detail}' is not supported at the path '{path}'.", "Check the topic and the path."
    ),
    "things:id.invalid": _ErrorText(
        400, "{detail} is not a valid thing id.", "An id is 'namespace:name' with at most 256 characters."
    ),
    "things:id.notsettable": _ErrorText(
        400,
        "The thing id in the value differs from '{id}', which cannot be changed.",
        "Remove 'thingId' from the value, or set it to the id in the topic.",
    ),
    "things:id.notdeletable": _ErrorText(400, "The thing id of '{id}' cannot be deleted.", "Leave 'thingId' out."),
    "things:policyId.notdeletable": _ErrorText(
        400,
        "The policy id of the thing '{id}' cannot be deleted.",
        "Set 'policyId' to another policy, or remove it from the value.",
    ),
    "things:merge.invalid": _ErrorText(
        400, "The merge patch for the thing '{id}' is not valid: {detail}.", "Check the patch."
    ),
    "things:policy.invalid": _ErrorText(
        400,
        "The policy for the thing '{id}' is not valid.",
        "At least one subject that does not expire needs WRITE on 'policy:/'.",
    ),
    "things:policy.conflicting": _ErrorText(
        400, "The value for the thing '{id}' has both '_policy' and '_copyPolicyFrom'.", "Send only one of the two."
    ),
    "things:metadata.headersconflict": _ErrorText(
        400,
        "The headers {detail} cannot be used together.",
        "Send at most one of 'put-metadata', 'get-metadata' and 'delete-metadata'.",
    ),
    "things:metadata.notmodifiable": _ErrorText(
        400,
        "The value for the thing '{id}' has '_metadata', and the command has a metadata header.",
        "Send only one of the two.",
    ),
    "things:things.ids.missing": _ErrorText(400, "No thing ids were given.", "Name at least one id in 'thingIds'."),
    "things:definition.identifier.invalid": _ErrorText(
        400, "A definition identifier at '{path}' is not valid.", "Use 'namespace:name:version' or an HTTP URL."
    ),
    "things:feature.definition.empty": _ErrorText(
        400, "The feature definition at '{path}' is empty.", "A feature definition has at least one identifier."
    ),
    "things:live.channelcondition.notallowed": _ErrorText(
        405, "The header 'live-channel-condition' is only allowed for queries.", "Remove the header."
    ),
    "things:thing.conflict": _ErrorText(
        409, "The thing '{id}' already exists.", "Choose another id, or modify the existing thing."
    ),
    "things:thing.notcreatable": _ErrorText(
        400,
        "The thing '{id}' cannot be created: its policy '{detail}' could not be created.",
        "If the thing exists, modify it instead. Otherwise use an unused policy id, keep the policy within its limits of "
        "size and permissions, and grant yourself WRITE on 'policy:/'.",
    ),
    "things:creation.notallowed": _ErrorText(
        403,
        "The thing '{id}' cannot be created: you may not create things in the namespace '{detail}'.",
        "Choose another namespace, or ask the operator to allow this in the service's settings.",
    ),
    "things:event.notallowed": _ErrorText(
        403, "The live event at '{path}' of the thing '{id}' is not allowed.", _WRITE_HINT
    ),
    "messages:send.notallowed": _ErrorText(
        403,
        "The message to '{path}' of the thing '{id}' is not allowed.",
        "Check whether you have WRITE permission on this message resource.",
    ),
    "things:thing.notdeletable": _ErrorText(403, "The thing '{id}' cannot be deleted.", _WRITE_HINT),
    "things:precondition.failed": _ErrorText(
        412, "The precondition for '{path}' failed: {detail}.", "Retrieve the current entity tag, then try again."
    ),
    "things:precondition.notmodified": _ErrorText(
        304, "'{path}' was not modified.", "You already have the current version."
    ),
    "things:condition.invalid": _ErrorText(400, "{detail}", "Check the syntax of the condition."),
    "things:condition.failed": _ErrorText(
        412,
        "The condition is not met, or names a field that you cannot read.",
        "Check the condition, and whether you have READ permission on every field that it names.",
    ),
    "things:thing.toolarge": _ErrorText(
        413, "The thing '{id}' would be too large: {detail}.", "Make the thing or the value smaller."
    ),
    "things:thing.notfound": _ErrorText(
        404,
        "The Thing with ID '{id}' could not be found or requester had insufficient permissions to access it.",
        "Check if the ID of your requested Thing was correct and you have sufficient permissions.",
    ),
    "things:thing.history.notfound": _ErrorText(
        404,
        "The Thing with ID '{id}' at {detail} could not be found or requester had insufficient permissions to access it.",
        "Check that the ID of the Thing is correct, that you have sufficient permissions, and that the revision or "
        "timestamp is neither older than the history-retention-duration nor in the future.",
    ),
    "policies:id.invalid": _ErrorText(
        400, "{detail} is not a valid policy id.", "An id is 'namespace:name' with at most 256 characters."
    ),
    "policies:id.notsettable": _ErrorText(
        400,
        "The policy id in the value differs from '{id}', which cannot be changed.",
        "Set 'policyId' to the id in the topic.",
    ),
    "policies:label.invalid": _ErrorText(
        400, "The label {detail} is not valid.", "The prefixes 'imported' and 'nsimported' are reserved."
    ),
    "policies:entry.invalid": _ErrorText(400, "A policy entry is not valid: {detail}.", "Correct the policy entry."),
    "policies:subjectid.invalid": _ErrorText(
        400, "The subject id {detail} is not valid.", "A subject id is 'issuer:subject' with at most 256 characters."
    ),
    "policies:subjectexpiry.invalid": _ErrorText(
        400, "The expiry of a subject is not valid: {detail}.", "Use a future time in ISO 8601, with a time zone."
    ),
    "policies:subjectannouncement.invalid": _ErrorText(
        400, "The announcement of a subject is not valid: {detail}.", "Check its members."
    ),
    "policies:import.invalid": _ErrorText(
        400,
        "An import of the policy '{id}' is not valid: {detail}.",
        "Check the policy's imports, and the references to these imports.",
    ),
    "policies:view.invalid": _ErrorText(
        400, "The value {detail} of the header 'policy-view' is unknown.", "Use 'original' or 'resolved'."
    ),
    "policies:imports.toolarge": _ErrorText(400, "The policy '{id}' has too many imports: {detail}.", "Import fewer."),
    "policies:creation.notallowed": _ErrorText(
        403,
        "The policy '{id}' cannot be created: you may not create policies in the namespace '{detail}'.",
        "Choose another namespace, or ask the operator to allow this in the service's settings.",
    ),
    "policies:permissions.toolarge": _ErrorText(
        400,
        "The policy '{id}' has too many permissions: {detail}.",
        "Use fewer subjects, fewer resources or shorter resource paths in its entries, references and imports. The number "
        "of permissions of an entry is the number of its subjects times the number of segments of its resources.",
    ),
    "policies:action.failed": _ErrorText(
        403,
        "The action '{path}' on the policy '{id}' failed: {detail}.",
        "You need EXECUTE at 'policy:/entries/LABEL/actions/NAME', and the policy needs an entry for which the action "
        "is valid.",
    ),
    "policies:policy.notcreatable": _ErrorText(
        403,
        "The policy '{id}' cannot be created: you would not be able to change it.",
        "Grant yourself WRITE on 'policy:/', or send the header 'allow-policy-lockout'.",
    ),
    "policies:policy.modificationinvalid": _ErrorText(
        403,
        "The policy '{id}' cannot be changed this way, because no subject could change it afterwards.",
        "At least one subject that does not expire needs WRITE on 'policy:/'.",
    ),
    "policies:entry.modificationinvalid": _ErrorText(
        403,
        "'{path}' of the policy '{id}' cannot be changed this way, because no subject could change the policy afterwards.",
        "At least one subject that does not expire needs WRITE on 'policy:/'.",
    ),
    "policies:entry.referenceconflict": _ErrorText(
        409,
        "Other entries refer to the entry '{detail}' of the policy '{id}'.",
        "First remove these references.",
    ),
    "policies:import.referenceconflict": _ErrorText(
        409,
        "Entries refer to the import '{detail}' of the policy '{id}'.",
        "First remove these references.",
    ),
    "policies:policy.conflict": _ErrorText(
        409, "The policy '{id}' already exists.", "Choose another id, or modify the existing policy."
    ),
    "policies:policy.referenceconflict": _ErrorText(
        409,
        "The policy '{id}' cannot be {detail}.",
        "Assign another policy to these things or delete them, and remove the imports of this policy.",
    ),
    "policies:policy.notfound": _ErrorText(
        404,
        "The Policy with ID '{id}' could not be found or requester had insufficient permissions to access it.",
        "Check if the ID of your requested Policy was correct and you have sufficient permissions.",
    ),
    "policies:policy.history.notfound": _ErrorText(
        404,
        "The Policy with ID '{id}' at {detail} could not be found or requester had insufficient permissions to access it.",
        "Check that the ID of the Policy is correct, that you have sufficient permissions, and that the revision or "
        "timestamp is neither older than the history-retention-duration nor in the future.",
    ),
    "policies:policy.toolarge": _ErrorText(
        413, "The policy '{id}' would be too large: {detail}.", "Make the policy smaller."
    ),
    "policies:precondition.failed": _ErrorText(
        412, "The precondition for '{path}' failed: {detail}.", "Retrieve the current entity tag, then try again."
    ),
    "policies:precondition.notmodified": _ErrorText(
        304, "'{path}' was not modified.", "You already have the current version."
    ),
}

for _group in ("things", "policies"):
    _FAULTS[f"{_group}:quota.exceeded"] = _ErrorText(
        507, "'{id}' cannot be changed: {detail}.", "Delete what is not needed, or ask the operator."
    )
    _FAULTS[f"{_group}:dailyquota.exceeded"] = _ErrorText(
        429, "'{id}' cannot be changed: {detail}.", "Wait until midnight UTC, or ask the operator."
    )
    _FAULTS[f"{_group}:storage.low"] = _ErrorText(
        507, "'{id}' cannot be created: {detail}.", "Changes are possible; the operator has to free space."
    )

_PARTS = (
    "policyId",
    "definition",
    "attributes",
    "attribute",
    "features",
    "feature",
    "feature.definition",
    "feature.properties",
    "feature.property",
    "feature.desiredProperties",
    "feature.desiredProperty",
)
"""The names of a thing's parts as codes write them."""

for _part in _PARTS:
    _FAULTS[f"things:{_part}.notfound"] = _ErrorText(
        404, "'{path}' of the thing '{id}' is unknown or not visible to you.", _READ_HINT
    )
for _part in ("thing", *_PARTS):
    _FAULTS[f"things:{_part}.notmodifiable"] = _ErrorText(
        403, "'{path}' of the thing '{id}' cannot be modified.", _WRITE_HINT
    )

_POLICY_PARTS = ("entry", "subjects", "subject", "resources", "resource", "imports", "import")

for _part in _POLICY_PARTS:
    _FAULTS[f"policies:{_part}.notfound"] = _ErrorText(
        404, "'{path}' of the policy '{id}' is unknown or not visible to you.", _READ_HINT
    )
for _part in ("policy", *_POLICY_PARTS):
    _FAULTS[f"policies:{_part}.notmodifiable"] = _ErrorText(
        403, "'{path}' of the policy '{id}' cannot be modified.", _WRITE_HINT
    )


def not_found(entity: EntityId) -> str:
    """Return the code for an entity that does not exist, or on which the sender has no permission."""
    return "things:thing.notfound" if entity.type is EntityType.THING else "policies:policy.notfound"


def codes() -> Iterable[str]:
    """Every code of this table."""
    return _FAULTS.keys()


def fault(code: str, entity: EntityId | str, path: str = "/", detail: str = "", status: int | None = None) -> Fault:
    """Return the fault with this code; `detail` is inserted into messages that have a place for it.

    `status` replaces the table's for codes that keep the status of their cause.
    """
    words = _FAULTS[code]
    message = words.message.format(id=entity, path=shorten(path), detail=detail)
    return Fault(status or words.status, code, message, words.description)


def refusal(
    code: str,
    entity: EntityId,
    path: str = "/",
    detail: str = "",
    *,
    about: EntityId | str | None = None,
    status: int | None = None,
) -> TwinError:
    """Return the refusal of a command on `entity`; `about` is another ID for the message.

    Its topic is that of policies if the code is one of theirs.
    """
    return TwinError(fault(code, about or entity, path, detail, status), group(code, entity))


def group(code: str, entity: EntityId) -> str:
    """The group of the topic that an error answers on."""
    return "policies" if code.startswith("policies:") else entity.type.group


def quote(text: object) -> str:
    """Return a client's text quoted for a message, and cut if it is long."""
    return f"'{shorten(str(text), 80)}'"

"""Retrieves a thing, a part of it, or several things, in the present or the past.

Unreadable parts look like missing ones (Ditto protocol, retrieve): a part is unknown without READ permission on it or below
it, and the response contains its readable part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any, Final

import msgspec

from connectivity.authorization.enforcer import DROP, READ, Enforcer
from connectivity.errors import TwinError
from connectivity.twins import metadata, values
from connectivity.twins.access import forbidden
from connectivity.twins.context import (
    CommandContext,
    Decision,
    StateLookup,
    decision,
    encode,
    hash_tag,
    revision_tag,
    state_of,
)
from connectivity.twins.errors import not_found, quote
from connectivity.twins.incarnations import enforcer_at, enforcer_of, last_ended
from connectivity.twins.preconditions import Preconditions
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.model.field_selector import FieldSelection, InvalidSelector, parse_fields, select
from mappings.model.headers import FIELDS, invalid_header
from mappings.model.json_pointer import MISSING, get
from mappings.model.metadata import METADATA
from mappings.model.signals import Command, Response
from mappings.timestamps import parse_instant, shorten_timestamp
from spark_store.records import PastQuery, Snapshot

LIFECYCLE: Final = "ACTIVE"
"""The member `_lifecycle` of every thing that can be retrieved."""


def retrieve(case: CommandContext, asked: Preconditions) -> Decision:
    """Return the response with the thing, or the part at a path. Raises TwinError."""
    selection = read_selection(case)
    snapshot = case.living()
    if snapshot is None:
        raise case.refuse("things:thing.notfound")
    enforcer = case.world.enforcer(snapshot.policy, case.entity.namespace) if snapshot.policy is not None else None
    if enforcer is None:
        raise case.refuse("things:thing.notfound")
    if not enforcer.partial(case.subjects, READ, case.address.guarded):
        raise asked.forbidden(case, enforcer, state_of(snapshot), f"things:{case.address.resource.name}.notfound")
    enforcer = displayed_enforcer(case, enforcer)
    snapshot = case.displayed(snapshot)
    state = state_of(snapshot)
    asked.check_readable(case, enforcer, state)
    asked.check_condition(case, snapshot)
    present = get(state, case.address.segments)
    if present is MISSING:
        raise _not_found(case, state)
    seen = view_of(case, enforcer, present)
    tag = revision_tag(snapshot) if case.address.is_root else hash_tag(seen)
    if selection is None or "_policy" not in selection:
        asked.check_tags(case, lambda: tag)
    result = seen
    if selection is not None and isinstance(seen, Mapping):
        if case.address.is_root:
            seen = _with_hidden(case, seen, snapshot, selection, enforcer)
        result = select(seen, selection, case.address.segments)
    shown = metadata.answer(case, asked.metadata, enforcer, snapshot)
    response = case.respond(200, encode(result), revision=snapshot.revision, tag=tag, metadata=shown)
    return decision([], response, is_for_device=asked.is_for_device(case, snapshot))


def view_of(case: CommandContext, enforcer: Enforcer, present: Any) -> Any:
    """Return the readable part of a value. Raises TwinError, as for a missing value, if there is none."""
    seen = enforcer.view(present, case.address.guarded, case.subjects)
    if seen is DROP:
        raise case.refuse(f"{case.entity.type.group}:{case.address.resource.name}.notfound")
    return seen


def _not_found(case: CommandContext, state: Mapping[str, Any]) -> Exception:
    """Return the refusal for a readable place without value, named after the nearest missing part."""
    path, name = case.address.segments, case.address.resource.name
    if name == "attribute" and "attributes" not in state:
        name = "attributes"
    elif case.address.resource.below_feature:
        if get(state, path[:2]) is MISSING:
            name = "feature"
        elif len(path) > 3 and get(state, path[:3]) is MISSING:
            name = f"feature.{path[2]}"
    return case.refuse(f"things:{name}.notfound")


def read_selection(case: CommandContext) -> FieldSelection | None:
    """Return the parsed `fields` of a command that may have them; an empty text selects nothing."""
    fields = case.command.fields
    if fields is None or not case.address.resource.is_selectable:
        return None
    if not fields:
        return {}
    try:
        return parse_fields(fields)
    except InvalidSelector as error:
        raise case.refuse("json.fieldselector.invalid", str(error)) from error


def _with_hidden(
    case: CommandContext, seen: Mapping[str, Any], snapshot: Snapshot, selection: FieldSelection, enforcer: Enforcer
) -> Mapping[str, Any]:
    """A thing with those fields beside its document that are selected, as far as the caller may read them."""
    found = with_hidden(case, seen, snapshot, selection)
    shown = metadata.readable(case, enforcer, snapshot) if METADATA in selection else None
    return found if shown is None else {**found, METADATA: shown}


def with_hidden(
    case: CommandContext, seen: Mapping[str, Any], snapshot: Snapshot, selection: FieldSelection
) -> dict[str, Any]:
    """An entity with those fields beside its document that are selected."""
    return {**seen, **hidden(snapshot, selection, case.subjects, case.world)}


def hidden(
    snapshot: Snapshot, selection: FieldSelection, subjects: Sequence[str], world: StateLookup
) -> dict[str, Any]:
    """Return the fields beside an entity's document.

    The policy only if it is selected, as far as it is readable.
    """
    found: dict[str, Any] = {
        "_namespace": snapshot.entity.namespace,
        "_revision": snapshot.revision,
        "_created": shorten_timestamp(snapshot.created),
        "_modified": shorten_timestamp(snapshot.modified),
    }
    if snapshot.entity.type is EntityType.THING:
        found["_lifecycle"] = LIFECYCLE
    if "_policy" in selection and (policy := readable_policy(snapshot, subjects, world)) is not None:
        found["_policy"] = policy
    return found


def readable_policy(snapshot: Snapshot, subjects: Sequence[str], world: StateLookup) -> Any:
    """Return the readable part of the thing's policy; None if there is none."""
    view = _policy_view(snapshot, subjects, world)
    seen = DROP if view is None else view()
    return None if seen is DROP else seen


def _policy_view(snapshot: Snapshot, subjects: Sequence[str], world: StateLookup) -> Callable[[], Any] | None:
    """Return what views the present policy of a thing, also later; None if there is no policy."""
    entity = parse_entity_id(EntityType.POLICY, snapshot.policy or "")
    policy = world.snapshot(entity) if entity is not None else None
    enforcer = world.enforcer(str(entity))
    if policy is None or policy.state is None or enforcer is None:
        return None
    return partial(enforcer.view, policy.state, "policy:/", subjects)


class SeveralThings:
    """The response to a retrieve of several things, still without them.

    They are viewed and encoded one by one, as they were at the request: a large thing that is partly readable takes
    milliseconds, and so does a large policy.
    """

    def __init__(self, response: Response, things: Iterator[bytes | None]) -> None:
        """`things` yields encoded things, and None where other work may run in between."""
        self.response = response
        self._things = things
        # One that grows: to join many megabytes takes milliseconds, too.
        self._value = BytesIO()

    def encode_more(self) -> bool:
        """Encode one more thing, or part of it; False if nothing was left."""
        try:
            thing = next(self._things)
        except StopIteration:
            return False
        if thing is not None:
            self._value.write(b"," if self._value.tell() else b"[")
            self._value.write(thing)
        return True

    def complete(self) -> Response:
        """Return the response with the readable things."""
        self._value.write(b"]" if self._value.tell() else b"[]")
        return msgspec.structs.replace(self.response, value=self._value.getvalue())


def retrieve_several(case: CommandContext) -> SeveralThings:
    """Answer those of several things that exist and are readable, each once, in the order of the request."""
    entities = _named_things(case)
    selection = read_selection(case)
    # All states and permissions are those of now, although they are used later.
    views = [_one_of_several(case, entity, selection) for entity in dict.fromkeys(entities)]
    return SeveralThings(case.respond(200, b"[]"), chain.from_iterable(view for view in views if view is not None))


def _named_things(case: CommandContext) -> list[EntityId]:
    value = values.parse(case)
    if not isinstance(value, dict):
        raise case.refuse("json.format.invalid", "expected an object")
    if "thingIds" not in value:
        raise case.refuse("json.field.missing", "thingIds")
    ids = value["thingIds"]
    if not isinstance(ids, list) or not all(isinstance(text, str) for text in ids):
        raise case.refuse("json.invalid", "expected thingIds to be an array of strings")
    if not ids:
        raise case.refuse("things:things.ids.missing")
    if len(ids) > case.limits.things_at_once:
        limit = case.limits.things_at_once
        raise case.refuse("json.invalid", f"found {len(ids)} ids, expected at most {limit}")
    return [_named_thing(case, text) for text in ids]


def _named_thing(case: CommandContext, text: str) -> EntityId:
    """A thing of the namespace that the topic names; `_` names all of them."""
    entity = parse_entity_id(EntityType.THING, text)
    if entity is None or case.entity.namespace not in ("_", entity.namespace):
        raise case.refuse("things:id.invalid", quote(text))
    return entity


def _one_of_several(
    case: CommandContext, entity: EntityId, selection: FieldSelection | None
) -> Iterator[bytes | None] | None:
    snapshot = case.world.snapshot(entity)
    if snapshot is None or snapshot.state is None or snapshot.policy is None:
        return None
    enforcer = case.world.enforcer(snapshot.policy, entity.namespace)
    if enforcer is None:
        return None
    shows_policy = selection is not None and "_policy" in selection
    policy = _policy_view(snapshot, case.subjects, case.world) if shows_policy else None
    return _encoded_view(case, snapshot, enforcer, selection, policy)


def _encoded_view(
    case: CommandContext,
    snapshot: Snapshot,
    enforcer: Enforcer,
    selection: FieldSelection | None,
    policy: Callable[[], Any] | None,
) -> Iterator[bytes | None]:
    """Yield the selected part of a thing, encoded, if any is readable.

    `policy` views the thing's policy, if it is selected: None is yielded before.
    """
    seen = enforcer.view(state_of(snapshot), "thing:/", case.subjects)
    if seen is DROP:
        return
    if selection is None:
        yield encode(seen)
        return
    if policy is not None:
        yield None
    others = {name: below for name, below in selection.items() if name != "_policy"}
    shown = {**_with_hidden(case, seen, snapshot, others, enforcer)}
    if policy is not None and (readable := policy()) is not DROP:
        shown["_policy"] = readable
    yield encode(select(shown, selection))


REVISION: Final = "at-historical-revision"
TIMESTAMP: Final = "at-historical-timestamp"
PAST_HEADERS: Final = frozenset({REVISION, TIMESTAMP})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def asks_for_past(command: Command) -> bool:
    """Whether a command names a past state; commands that change something cannot."""
    return command.action == "retrieve" and not PAST_HEADERS.isdisjoint(command.headers)


def past_query(case: CommandContext) -> PastQuery | None:
    """Return the query of a retrieve of the past; None for the present. Raises TwinError."""
    revision, before = case.headers.get(REVISION), _instant(case)
    newest = _visible(case)
    if revision is not None and not 0 < revision <= newest:
        raise unknown_past(case)
    if revision is not None and revision <= last_ended(case.entity, case.world):
        _ended_enforcer(case, revision)
    if before is None and revision == newest:
        return None
    if before is not None and before > _nanoseconds(case.now):
        raise unknown_past(case)
    return PastQuery(case.entity, newest if revision is None else revision, before)


def displayed_enforcer(case: CommandContext, present: Enforcer) -> Enforcer:
    """Return the permissions on the entity that a retrieve shows: those of its incarnation.

    Raises TwinError.
    """
    if case.past is None or case.past.snapshot.revision > last_ended(case.entity, case.world):
        return present
    return _ended_enforcer(case, case.past.snapshot.revision)


def _ended_enforcer(case: CommandContext, revision: int) -> Enforcer:
    """Return the permissions at the end of an earlier incarnation.

    Raises TwinError if it is unreadable: the same as for a revision that never existed.
    """
    enforcer = enforcer_at(case.entity, revision, case.world)
    if enforcer is None or not enforcer.partial(case.subjects, READ, case.address.guarded):
        raise unknown_past(case)
    return enforcer


def unknown_past(case: CommandContext) -> TwinError:
    """Return the refusal for an unknown state: it never existed, is in the future, or is deleted."""
    revision, before = case.headers.get(REVISION), case.headers.get(TIMESTAMP)
    asked = f"timestamp '{before}'" if revision is None else f"revision '{revision}'"
    kind = "thing" if case.entity.type is EntityType.THING else "policy"
    return case.refuse(f"{case.entity.type.group}:{kind}.history.notfound", asked)


def _instant(case: CommandContext) -> int | None:
    text = case.headers.get(TIMESTAMP)
    if text is None:
        return None
    if (instant := parse_instant(text)) is None:
        raise TwinError(invalid_header(FIELDS[TIMESTAMP], text), case.entity.type.group)
    return instant


def _visible(case: CommandContext) -> int:
    """Return the newest revision of an existing, readable entity; its past is hidden from others."""
    snapshot = case.living()
    enforcer = enforcer_of(case.entity, case.world)
    if snapshot is None or enforcer is None:
        raise case.refuse(not_found(case.entity))
    if not enforcer.partial(case.subjects, READ, case.address.guarded):
        raise forbidden(case, enforcer, f"{case.entity.type.group}:{case.address.resource.name}.notfound")
    return snapshot.revision


def _nanoseconds(timestamp: str) -> int:
    """An instant as events write it."""
    since = datetime.fromisoformat(timestamp) - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000

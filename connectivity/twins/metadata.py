"""Metadata of the parts of a thing, in commands (Ditto protocol, metadata).

At most one of three headers: `put-metadata` sets metadata of written values, `delete-metadata` deletes it, `get-metadata`
retrieves it; a thing can also be created with `_metadata` in its value. Keys are pointers relative to the command's path;
the last segment names the metadata. A `*` matches every name at its place; in `*/<key>` it matches every leaf below the
path, and alone all metadata. Metadata of a part is readable by the readers of the part.

How an event contains it: `mappings.model.metadata`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.authorization.enforcer import Enforcer
from connectivity.twins import values
from connectivity.twins.context import CommandContext, encode
from connectivity.twins.paths import is_key
from mappings.errors import DecodeError
from mappings.ids import EntityType
from mappings.json_values import MAX_NESTING, nesting
from mappings.model.field_selector import FieldSelection, InvalidSelector, build_selection, parse_pointers
from mappings.model.json_pointer import MISSING, Segments, format_pointer, get, parse_pointer
from mappings.model.metadata import METADATA, MetadataChange, evolve_metadata
from spark_store.records import Snapshot

PUT: Final = "put-metadata"
GET: Final = "get-metadata"
DELETE: Final = "delete-metadata"
HEADERS: Final = frozenset({PUT, GET, DELETE})

_ACTIONS: Final[Mapping[str, frozenset[str]]] = {
    PUT: frozenset({"create", "modify", "merge"}),
    DELETE: frozenset({"create", "modify", "merge"}),
    GET: frozenset({"retrieve"}),
}
_EVERY: Final = "*"
_WILDCARD_PARENTS: Final = (
    ("attributes",),
    ("features",),
    ("features", None, "properties"),
    ("features", None, "desiredProperties"),
)
"""The places of a thing below which a `*` is allowed; None is any feature."""


class MetadataWrite(NamedTuple):
    """One entry of metadata: its key relative to the command's path, and its value."""

    key: Segments
    value: Any


class MetadataRequest(msgspec.Struct, frozen=True):
    """The metadata headers of a command, as `read` returns them."""

    put: tuple[MetadataWrite, ...] = ()
    delete: tuple[Segments, ...] = ()
    get: tuple[Segments, ...] | None = None
    is_header: bool = False


NOTHING: Final = MetadataRequest()


def read(case: CommandContext) -> MetadataRequest:
    """Read the metadata headers of a command on a thing. Raises TwinError for invalid ones."""
    if HEADERS.isdisjoint(case.headers) or case.entity.type is EntityType.POLICY:
        return NOTHING
    name, *more = sorted(HEADERS.intersection(case.headers))
    if more:
        raise case.refuse("things:metadata.headersconflict", f"{name}, {', '.join(more)}")
    if case.command.action not in _ACTIONS[name]:
        raise case.refuse("header.notsupported", name)
    value = case.headers[name]
    if name == PUT:
        return MetadataRequest(put=_read_puts(case, value), is_header=True)
    keys = _read_keys(case, name, value)
    return MetadataRequest(delete=keys, is_header=True) if name == DELETE else MetadataRequest(get=keys, is_header=True)


def _read_puts(case: CommandContext, value: Any) -> tuple[MetadataWrite, ...]:
    if not isinstance(value, list):
        raise case.refuse("header.invalid", PUT)
    puts = []
    for entry in value:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("key"), str) or "value" not in entry:
            raise case.refuse("header.invalid", PUT)
        try:
            key = parse_pointer(entry["key"])
        except DecodeError as error:
            raise case.refuse("header.invalid", PUT) from error
        puts.append(MetadataWrite(_checked_key(case, PUT, key), entry["value"]))
    return tuple(puts)


def _read_keys(case: CommandContext, name: str, value: Any) -> tuple[Segments, ...]:
    if not isinstance(value, str):
        raise case.refuse("header.invalid", name)
    try:
        keys = parse_pointers(value)
    except InvalidSelector as error:
        raise case.refuse("json.fieldselector.invalid", str(error)) from error
    return tuple(_checked_key(case, name, key) for key in keys)


def _checked_key(case: CommandContext, name: str, key: Segments) -> Segments:
    """Return a valid key, or raise the refusal."""
    if key == (_EVERY,) and name != PUT:
        return key
    is_wild = _EVERY in key
    if not key or not all(is_key(segment) for segment in key) or (is_wild and not _may_be_wild(case, key)):
        raise case.refuse("header.invalid", name)
    return key


def _may_be_wild(case: CommandContext, key: Segments) -> bool:
    if key[-1] == _EVERY or _is_for_all(key):
        return key[-1] != _EVERY
    whole = (*case.address.segments, *key)
    first = len(case.address.segments)
    return all(
        any(_is_at(whole[:position], parent) for parent in _WILDCARD_PARENTS)
        for position in range(first, len(whole))
        if whole[position] == _EVERY
    )


def _is_at(path: Segments, parent: Sequence[str | None]) -> bool:
    return len(path) == len(parent) and all(known in (None, found) for found, known in zip(path, parent, strict=True))


def changes(
    case: CommandContext,
    asked: MetadataRequest,
    written: Any,
    given: Any,
    before: Snapshot | None,
    *,
    is_patch: bool = False,
) -> list[MetadataChange]:
    """Return how a command changes the metadata.

    It writes `written` at its path; `given` is its value as sent. Parts that a patch deletes are not written. Raises
    TwinError for invalid metadata.
    """
    if asked is NOTHING and (case.address.segments or not isinstance(given, Mapping) or METADATA not in given):
        return []
    found: list[MetadataChange] = []
    inline = given.get(METADATA) if case.address.is_root and isinstance(given, Mapping) else None
    if inline is not None:
        if asked.is_header:
            raise case.refuse("things:metadata.notmodifiable")
        if before is None or before.state is None:
            found.append(("/", _checked_inline(case, inline)))
    if is_patch:
        written = MISSING if written is None else values.strip_nulls(written)
    found.extend(_put_changes(case, asked.put, written))
    if asked.delete and before is not None and before.state is not None:
        path = case.address.segments
        stored = get(before.state.get(METADATA), path)
        found.extend((format_pointer((*path, *place)),) for place in _matching_paths(stored, asked.delete))
    return found


def _put_changes(case: CommandContext, puts: Sequence[MetadataWrite], written: Any) -> Iterator[MetadataChange]:
    path = case.address.segments
    size = 0
    for put in puts:
        text = encode(put.value)
        levels = nesting(text)
        for place in _written_paths(written, put.key):
            if not isinstance(put.value, Mapping) and get(written, place) is not MISSING:
                # This is a part of the thing, and its metadata is an object.
                continue
            if levels > MAX_NESTING - len(path) - len(place):
                raise case.refuse("header.invalid", PUT)
            pointer = format_pointer((*path, *place))
            # Counted here, since a few wildcards over a large value make millions.
            size += len(pointer) + len(text)
            if size > case.limits.thing:
                raise case.refuse("things:thing.toolarge", f"found more than {case.limits.thing} bytes of metadata")
            yield pointer, put.value


def parts_of_merge(case: CommandContext, asked: MetadataRequest, patch: Any) -> Iterator[Segments]:
    """Return the parts whose metadata a merge may change, whatever the thing has. Raises TwinError."""
    if asked.put:
        puts = changes(case, MetadataRequest(put=asked.put), patch, None, None, is_patch=True)
        yield from (parse_pointer(place)[:-1] for place, *_ in puts)
    for key in asked.delete:
        # A wildcard may meet any part.
        yield (*case.address.segments, *takewhile(lambda segment: segment != _EVERY, key[:-1]))


def _checked_inline(case: CommandContext, inline: Any) -> Any:
    if not isinstance(inline, Mapping):
        raise case.refuse("json.invalid", f"expected {METADATA} to be an object")
    values.check_keys(case, inline)
    return inline


def _written_paths(written: Any, key: Segments) -> Iterator[Segments]:
    """Return the places in the written value that `key` matches."""
    if written is MISSING:
        return iter(())
    if _is_for_all(key):
        return ((*leaf, key[1]) for leaf in _leaves(written))
    return _spread(written, key)


def _is_for_all(key: Segments) -> bool:
    return key[0] == _EVERY and len(key) == 2


def _leaves(value: Any, path: Segments = ()) -> Iterator[Segments]:
    """Yield the place of every part that is not an object."""
    if not isinstance(value, Mapping):
        yield path
        return
    for key, member in value.items():
        yield from _leaves(member, (*path, key))


def _spread(value: Any, key: Segments, path: Segments = ()) -> Iterator[Segments]:
    """Yield the key with its wildcards replaced by each of the existing names."""
    if _EVERY not in key:
        yield (*path, *key)
        return
    if not isinstance(value, Mapping):
        return
    first, *rest = key
    for name in value if first == _EVERY else (first,):
        if name in value:
            yield from _spread(value[name], tuple(rest), (*path, name))


def readable(case: CommandContext, enforcer: Enforcer, snapshot: Snapshot) -> Mapping[str, Any] | None:
    """Return the metadata of the parts that the caller may read; None for nothing."""
    stored = snapshot.state.get(METADATA) if snapshot.state is not None else None
    if stored is None:
        return None
    seen = enforcer.view_metadata(stored, snapshot.state, case.subjects)
    return seen if seen or seen is stored else None


def answer(
    case: CommandContext, asked: MetadataRequest, enforcer: Enforcer, snapshot: Snapshot
) -> Mapping[str, Any] | None:
    """Return the value of `ditto-metadata`, relative to the command's path; None if not requested."""
    if asked.get is None:
        return None
    shown = get(readable(case, enforcer, snapshot), case.address.segments)
    return evolve_metadata(
        None, None, None, ((format_pointer(place), get(shown, place)) for place in _matching_paths(shown, asked.get))
    )


def _matching_paths(metadata: Any, keys: Sequence[Segments]) -> Iterator[Segments]:
    """Yield the places in the metadata that the keys match."""
    if metadata is MISSING or metadata is None:
        return
    # All at once: a header has room for hundreds of names, each of which would be searched for separately.
    if names := {key[1] for key in keys if _is_for_all(key)}:
        yield from _find_named(metadata, names)
    yield from _find_selected(metadata, build_selection(key for key in keys if not _is_for_all(key)))


def _find_selected(metadata: Any, selection: FieldSelection, path: Segments = ()) -> Iterator[Segments]:
    """Yield the places that a selection names; `*` is every name, an empty selection the place itself."""
    if path and not selection:
        yield path
    if not selection or not isinstance(metadata, Mapping):
        return
    for name in metadata if _EVERY in selection or len(metadata) < len(selection) else selection:
        for below in (selection.get(name), selection.get(_EVERY)):
            if below is not None and name in metadata:
                yield from _find_selected(metadata[name], below, (*path, name))


def _find_named(metadata: Any, names: Set[str], path: Segments = ()) -> Iterator[Segments]:
    """Yield every place below with one of these names; below a place, no other one with the same name."""
    if not isinstance(metadata, Mapping):
        return
    for key, member in metadata.items():
        if key in names:
            yield (*path, key)
        if isinstance(member, Mapping) and (left := names - {key} if key in names else names):
            yield from _find_named(member, left, (*path, key))

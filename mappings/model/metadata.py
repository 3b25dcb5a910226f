"""Metadata of the parts of a thing, beside their values (Ditto protocol, metadata).

One JSON object that mirrors the thing: metadata of `attributes/a` is at `attributes/a/<key>`. It is stored in the thing's
state under `_metadata`, and is deleted with its data; the objects around it stay. An event has its changes in a stored
header of that name: a list of `[pointer, value]`, which sets, and `[pointer]`, which removes. A pointer `/` with a value
sets all. `without_changes` removes the header from published events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from mappings.json_values import decode_value, encode_value
from mappings.model.json_pointer import Segments, get, parse_pointer

METADATA: Final = "_metadata"
"""The member of a state, and of an event's stored headers."""

MetadataChange: TypeAlias = Sequence[Any]
"""`(pointer, value)` or `(pointer,)`."""

METADATA_KEY: Final = b'"_metadata":'
"""The text that stored headers and states with metadata contain, and few others."""

_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_changes(headers: bytes) -> Sequence[MetadataChange]:
    """Return the metadata changes of an event with these stored headers, in order."""
    if METADATA_KEY not in headers:
        return ()
    found: Sequence[MetadataChange] = decode_value(headers).get(METADATA, ())
    return found


def without_changes(headers: bytes) -> bytes:
    """An event's stored headers as they are shown."""
    if METADATA_KEY not in headers:
        return headers
    return encode_value({name: value for name, value in _decode_members(headers).items() if name != METADATA})


def evolve_metadata(
    metadata: Any, before: Any, after: Any, changes: Iterable[MetadataChange], emptied: Segments | None = None
) -> dict[str, Any]:
    """Return the metadata after an event.

    The event changes the data from `before` to `after`, and the metadata by `changes`. If it overwrites a part with an empty
    object, `emptied` is its path: all metadata there is deleted.
    """
    whole: dict[str, Any] = _copy(_without_deleted(metadata or {}, before, after))
    for pointer, *value in changes:
        path = parse_pointer(pointer)
        if not value:
            _remove(whole, path)
        elif path:
            _put(whole, path, value[0])
        else:
            whole = dict(value[0])
    if emptied:
        _put(whole, emptied, {})
    ordered: dict[str, Any] = _copy(whole)
    return ordered


def owner_of(path: Segments, thing: Any) -> Segments:
    """Return the place of the part that owns the metadata at a path below `_metadata`.

    It is the longest beginning of the path that the thing has; the last segment is never in it, since it names the metadata.
    """
    for depth, key in enumerate(path[:-1]):
        if not isinstance(thing, Mapping) or key not in thing:
            return path[:depth]
        thing = thing[key]
    return path[:-1]


def _without_deleted(metadata: Any, before: Any, after: Any) -> Any:
    """Return the metadata without that of deleted data."""
    if not isinstance(metadata, Mapping) or not isinstance(before, Mapping):
        return metadata
    kept = {}
    for key, entry in metadata.items():
        if key in before:
            if not isinstance(after, Mapping) or key not in after:
                continue
            kept[key] = _without_deleted(entry, before[key], after[key])
        else:
            kept[key] = entry
    return kept


def _copy(value: Any) -> Any:
    """Return a copy whose objects may be changed, with sorted members.

    Their order must not tell when the metadata of hidden parts was written.
    """
    return {key: _copy(value[key]) for key in sorted(value)} if isinstance(value, Mapping) else value


def _put(whole: dict[str, Any], path: Segments, value: Any) -> None:
    for key in path[:-1]:
        below = whole.get(key)
        if not isinstance(below, dict):
            below = whole[key] = {}
        whole = below
    whole[path[-1]] = _copy(value)


def _remove(whole: dict[str, Any], path: Segments) -> None:
    """Remove a value; its parents stay, also empty ones."""
    parent = get(whole, path[:-1])
    if path and isinstance(parent, dict):
        parent.pop(path[-1], None)

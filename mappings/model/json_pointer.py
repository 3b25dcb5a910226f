"""JSON pointers as the Ditto protocol writes them, and access to their values.

A path such as `/features/lamp/properties/on` names a place in a JSON document. Differences to RFC 6901: the leading slash
may be missing, one trailing slash is ignored, `~0` is the only escape (`a~1b` is the key `a~1b`), two slashes in a row are
an error, and a numeric segment is a key: arrays are opaque. `get`, `put` and `remove` never change a document; results share
the unchanged parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from mappings.errors import DecodeError, Fault
from mappings.texts import shorten

Segments = tuple[str, ...]


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing.MISSING
"""There is no value at this place: something else than JSON null."""


def parse_pointer(text: str) -> Segments:
    """The keys along a path, outermost first; the empty tuple for the whole document (`""` and `"/"`).

    Raises `DecodeError` with `json.pointer.invalid` (400) where two slashes follow each other.
    """
    if "//" in text:
        raise DecodeError(
            Fault(
                400,
                "json.pointer.invalid",
                f"The JSON pointer '{shorten(text)}' is invalid!",
                "Consecutive slashes in JSON pointers are not supported.",
            )
        )
    stripped = text.removeprefix("/").removesuffix("/")
    if not stripped:
        return ()
    segments = stripped.split("/")
    if "~" in stripped:
        segments = [segment.replace("~0", "~") for segment in segments]
    return tuple(segments)


def format_pointer(segments: Sequence[str]) -> str:
    """The path through these keys, always with its leading slash; `/` for the whole document."""
    return "/" + "/".join([segment.replace("~", "~0") for segment in segments])


def get(document: Any, segments: Sequence[str]) -> Any:
    """The value at this place, or `MISSING`."""
    for segment in segments:
        # A plain dict is asked for first: it is nearly always one, and `Mapping` takes five times as long to know.
        if (type(document) is not dict and not isinstance(document, Mapping)) or segment not in document:
            return MISSING
        document = document[segment]
    return document


def put(document: Any, segments: Sequence[str], value: Any) -> Any:
    """Return the document with `value` at this place.

    Missing parents, and those that are not objects, become objects.
    """
    parents = []
    for segment in segments:
        if type(document) is not dict and not isinstance(document, Mapping):
            document = {}
        parents.append(document)
        document = document.get(segment)
    for segment in reversed(segments):
        value = {**parents.pop(), segment: value}
    return value


def remove(document: Any, segments: Sequence[str]) -> Any:
    """Return the document without the value at this place.

    The document itself if there was none, `MISSING` for the empty path.
    """
    if not segments:
        return MISSING
    parent = get(document, segments[:-1])
    if not isinstance(parent, Mapping) or segments[-1] not in parent:
        return document
    rest = {key: value for key, value in parent.items() if key != segments[-1]}
    return put(document, segments[:-1], rest)

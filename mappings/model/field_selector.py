"""Field selectors: members of a JSON object, to retrieve or to write.

`attributes(site/hall,serial),features/burner` selects `attributes/site/hall`, `attributes/serial` and `features/burner`
(Ditto protocol, field selectors). Selected members that do not exist are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, TypeAlias

from mappings.errors import DecodeError
from mappings.model.json_pointer import Segments, parse_pointer
from mappings.text_cache import cached_if_short
from mappings.texts import shorten

FieldSelection: TypeAlias = Mapping[str, "FieldSelection"]
"""Selected members, each with its own selection; an empty mapping selects all of a member."""

_PIECE: Final = re.compile(r"[(),]|[^(),]+")
_BLANKS: Final = " \t\n\r\f\v"
"""Blanks around names, commas and parentheses are ignored. Other spaces of Unicode belong to the name."""
_MAX_SELECTORS: Final = 1_000
_MAX_DEPTH: Final = 200


WILDCARD_PARENTS: Final[frozenset[Segments]] = frozenset({("features",), ("_metadata", "features")})
"""The places of a thing below which `*` selects every feature."""


class InvalidSelector(ValueError):
    """An invalid field selector; the message says what was found and expected."""


@cached_if_short(256, longest=8192)
def parse_fields(text: str) -> FieldSelection:
    """The selection that `text` names. Raises InvalidSelector."""
    return build_selection(parse_pointers(text))


def build_selection(pointers: Iterable[Segments]) -> FieldSelection:
    """Return the selection of these pointers."""
    selection: dict[str, Any] = {}
    for pointer in pointers:
        level = selection
        for number, segment in enumerate(pointer, 1):
            known = level.get(segment)
            if known is not None and not known:
                break  # all of it is selected already
            if number == len(pointer):
                level[segment] = {}
            else:
                level = level.setdefault(segment, {})
    return selection


def parse_pointers(text: str) -> list[Segments]:
    """The pointers of a selector, parentheses multiplied out. Raises InvalidSelector."""
    pointers: list[Segments] = []
    prefixes: list[Segments] = [()]
    item: Segments | None = None
    closed = False
    for piece in map(itemgetter(0), _PIECE.finditer(text)):
        if not piece.strip(_BLANKS):
            continue
        if closed and piece not in ",)":
            raise InvalidSelector(f"found '{shorten(piece)}' after ')', expected ',' or ')'")
        if piece == "(":
            if item is None:
                raise InvalidSelector("found '(', expected a name before it")
            prefixes.append(item)
            item = None
        elif piece in ",)":
            if item is not None:
                pointers.append(item)
            elif not closed:
                raise InvalidSelector(f"found '{piece}', expected a name before it")
            item, closed = None, piece == ")"
            if closed:
                prefixes.pop()
                if not prefixes:
                    raise InvalidSelector("found ')', expected '(' before it")
        else:
            item = prefixes[-1] + _segments(piece)
            if len(item) > _MAX_DEPTH or len(pointers) >= _MAX_SELECTORS:
                raise InvalidSelector(f"found more than {_MAX_SELECTORS} selectors or {_MAX_DEPTH} levels")
    if len(prefixes) > 1:
        raise InvalidSelector("found '(', expected ')' after it")
    if item is not None:
        pointers.append(item)
    elif not closed:
        raise InvalidSelector("found the end, expected a name")
    return pointers


def _segments(text: str) -> Segments:
    try:
        segments = parse_pointer(text.strip(_BLANKS))
    except DecodeError as error:
        raise InvalidSelector(error.fault.message) from error
    if not segments:
        raise InvalidSelector("found an empty name, expected one such as attributes/room")
    return segments


def select(value: Mapping[str, Any], selection: FieldSelection, path: Segments = ()) -> dict[str, Any]:
    """Return the selected members of the JSON object `value` at `path` of a thing.

    Below `features`, also in the metadata, `*` selects every feature.
    """
    chosen: dict[str, Any] = {}
    for name, below in _expand(value, selection, path):
        member = value[name]
        if not below:
            chosen[name] = member
        elif (type(member) is dict or isinstance(member, Mapping)) and (inner := select(member, below, (*path, name))):
            chosen[name] = _add(chosen[name], inner) if name in chosen else inner
    return chosen


def _expand(value: Mapping[str, Any], selection: FieldSelection, path: Segments) -> list[tuple[str, FieldSelection]]:
    """Return the existing selected members, each with its own selection."""
    if len(value) < len(selection):
        # A selector may name many members, and a thing have thousands of features without any of them.
        named = [(name, selection[name]) for name in value if name in selection]
    else:
        named = [(name, below) for name, below in selection.items() if name in value]
    if path in WILDCARD_PARENTS and "*" in selection:
        every = [(name, selection["*"]) for name in value]
        return every + [(name, below) for name, below in named if name != "*"]
    return named


def _add(one: Any, other: dict[str, Any]) -> dict[str, Any]:
    """Two selections of one member together."""
    return merge_objects(one, other) if isinstance(one, Mapping) else other


def merge_objects(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both JSON objects merged; where they differ, the second one applies."""
    together = dict(one)
    for key, member in other.items():
        known = together.get(key)
        if known is not None and isinstance(known, Mapping) and isinstance(member, Mapping):
            member = merge_objects(known, member)
        together[key] = member
    return together

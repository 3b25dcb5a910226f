"""Extra fields of a thing that a target adds to signals (Ditto connections, targets, enrichment).

A selector such as `attributes/site,features/{{ feature:id }}/definition` names fields; they have their values after the
signal, as far as the target's subjects may read them. Missing fields are left out, and so are pointers whose placeholder has
no value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from mappings.errors import Unresolved
from mappings.model.field_selector import WILDCARD_PARENTS, FieldSelection, build_selection, parse_pointers, select
from mappings.model.json_pointer import Segments
from mappings.placeholders.template import PlaceholderContext, Template, parse
from spark_store.rql.ast import Field

_TOKEN = re.compile("\x00([0-9]+)\x00")


class _Pointer(NamedTuple):
    """One pointer of a selector: each segment as text, or as a template."""

    segments: tuple[str | Template, ...]

    def resolve(self, context: PlaceholderContext) -> Sequence[Segments]:
        """Return the resolved pointers: none if a placeholder has no value, several if it has several."""
        return list(product(*[_values(segment, context) for segment in self.segments]))


def _values(segment: str | Template, context: PlaceholderContext) -> Sequence[str]:
    if isinstance(segment, str):
        return (segment,)
    try:
        return segment.resolve(context).values
    except Unresolved:
        return ()  # a function that does not apply to the value returns none


class ExtraFields:
    """A selector of extra fields, compiled. Raises InvalidSelector, PlaceholderError."""

    def __init__(self, text: str) -> None:
        self.text = text
        expressions: list[str] = []
        shielded = "".join(
            part if isinstance(part, str) else _stand_in(part.text, expressions) for part in parse(text).parts
        )
        self._pointers = [
            _Pointer(tuple(_segment(segment, expressions) for segment in pointer))
            for pointer in parse_pointers(shielded)
        ]
        self._constant = (
            None if expressions else build_selection([tuple(map(str, pointer.segments)) for pointer in self._pointers])
        )

    def __repr__(self) -> str:
        return f"ExtraFields({self.text!r})"

    @property
    def names(self) -> frozenset[str]:
        """The first segments of its pointers that do not depend on a signal."""
        return frozenset(first for first, *_ in (it.segments for it in self._pointers) if isinstance(first, str))

    def selection(self, context: Callable[[], PlaceholderContext]) -> FieldSelection:
        """Return the selected fields for a signal; `context` has the values of placeholders."""
        if self._constant is not None:
            return self._constant
        known = context()
        return build_selection([found for pointer in self._pointers for found in pointer.resolve(known)])


def _stand_in(expression: str, expressions: list[str]) -> str:
    """Return a stand-in for an expression while the selector is parsed: it may contain commas."""
    expressions.append(expression)
    return f"\x00{len(expressions) - 1}\x00"


def _segment(text: str, expressions: Sequence[str]) -> str | Template:
    if "\x00" not in text:
        return text
    return parse(_TOKEN.sub(lambda found: f"{{{{ {expressions[int(found[1])]} }}}}", text))


def covers(selection: FieldSelection, field: Field) -> bool:
    """Whether extra fields with this selection may contain a field of a filter."""
    levels = [selection]
    for depth, key in enumerate(field.path):
        names = {key, "*"} if field.path[:depth] in WILDCARD_PARENTS else {key}
        levels = [level[name] for level in levels for name in names if name in level]
        if not all(levels):
            return True
    return bool(levels)


def extra_of(document: Mapping[str, Any], selection: FieldSelection) -> dict[str, Any]:
    """Return the readable selected fields of a thing; empty if none exists."""
    return select(document, selection)

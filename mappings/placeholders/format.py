"""The templates of `fn:format`, which make texts of a JSON object.

    {name}              the member of this name; {/a/b} the value at this pointer; {.} the element itself
    {#ports} … {/ports} the part between, once for each element of the array `ports`
    \\{ and \\}           literal braces

Missing values and null become the empty text. An array outside of a section multiplies the results, and so does a section;
`mappings.placeholders.resolution` bounds their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from mappings.errors import DecodeError
from mappings.json_values import parse_json
from mappings.model.json_pointer import MISSING, get, parse_pointer
from mappings.placeholders.resolution import combine, require_within_limits, texts

Format: TypeAlias = Callable[[str], list[str]]

_Node: TypeAlias = Callable[[Any], Sequence[str]]

_TOKEN = re.compile(r"\\(?P<brace>[{}])|\{#(?P<open>[^{}]+)\}|\{(?P<field>[^{}#][^{}]*)\}|(?P<text>[^\\{]+|[\\{])")


def parse_format(template: str) -> Format:
    """Return the template as a function of one JSON text: its results, none if the text is no JSON object.

    Raises ValueError for an unclosed section and for a pointer with consecutive slashes.
    """
    nodes = _parse(template)

    def apply(text: str) -> list[str]:
        try:
            value = parse_json(text)
            return combine([node(value) for node in nodes]) if isinstance(value, dict) else []
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return []  # no JSON, or nested deeper than anything that is sent in earnest

    return apply


def _parse(template: str) -> list[_Node]:
    """Parse the template in one pass, with a stack of open sections."""
    open_sections: list[tuple[str, list[_Node]]] = []
    nodes: list[_Node] = []
    for token in _TOKEN.finditer(template):
        name = token["field"]
        if token["open"] is not None:
            open_sections.append((token["open"], nodes))
            nodes = []
        elif name is not None and open_sections and name == f"/{open_sections[-1][0]}":
            section, outer = open_sections.pop()
            outer.append(_section(_path(section), nodes))
            nodes = outer
        elif name is not None:
            nodes.append(_field(_path(name)))
        else:
            nodes.append(_text(token["brace"] or token["text"]))
    if open_sections:
        raise ValueError(
            f"found the section '{{#{open_sections[-1][0]}}}' without its end '{{/{open_sections[-1][0]}}}'"
        )
    return nodes


def _path(name: str) -> tuple[str, ...]:
    if name == ".":
        return ()
    if not name.startswith("/"):
        return (name,)
    try:
        return parse_pointer(name)
    except DecodeError as error:
        raise ValueError(error.fault.message) from error


def _text(text: str) -> _Node:
    return lambda _: (text,)


def _field(path: tuple[str, ...]) -> _Node:
    def render(value: Any) -> Sequence[str]:
        found = get(value, path)
        return ("",) if found is MISSING else texts(found) or ("",)

    return render


def _section(path: tuple[str, ...], nodes: list[_Node]) -> _Node:
    def render(value: Any) -> Sequence[str]:
        found = get(value, path)
        if found is MISSING or found is None:
            return ("",)
        results: list[str] = []
        characters = 0
        for element in found if isinstance(found, list) else [found]:
            rendered = combine([node(element) for node in nodes])
            characters += sum(map(len, rendered))
            require_within_limits(len(results) + len(rendered), characters)
            results += rendered
        return results or ("",)

    return render

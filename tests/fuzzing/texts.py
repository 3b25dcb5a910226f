"""The parsers of texts: placeholder expressions and their functions, JSON pointers, field selectors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from mappings.errors import DecodeError, PlaceholderError, UnsafeAddress
from mappings.ids import EntityId, EntityType
from mappings.model.field_selector import InvalidSelector, build_selection, parse_fields, parse_pointers, select
from mappings.model.json_pointer import MISSING, format_pointer, get, parse_pointer, put, remove
from mappings.model.topic_path import parse_topic
from mappings.placeholders.address import (
    AddressPattern,
    InvalidPattern,
    has_address_prefix,
    resolve_address,
    unsafe_in_address,
)
from mappings.placeholders.functions import FUNCTIONS
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.resolution import MAX_CHARACTERS, MAX_VALUES, texts
from mappings.placeholders.template import Scope, Template, is_operand, parse
from mappings.placeholders.values import PLACEHOLDERS, PlaceholderContext
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import check_fault, target
from tests.support.paths import VECTORS

NOW = datetime(2030, 1, 15, 7, 31, 42, 250_000, UTC)
THING: dict[str, Any] = {
    "thingId": "acme:lamp",
    "attributes": {"a": {"b": [1, "x", None]}, "n": 2.5, "a~b": {"": 0}, "s": "x"},
    "features": {"f": {"properties": {"p": 1, "q": {}}}, "g": {"properties": {"p": 2}}, "n": None},
}

# ── placeholders ──────────────────────────────────────────────────────────────────────────────────────────────────────


def read_placeholders(data: bytes) -> None:
    """A template is parsed or refused; its values are bounded, and its address patterns are safe.

    The input is a template, a zero byte, and values of the headers `a`, `b`, …, as JSON or as text.
    """
    text, *values = data.decode("utf-8", "replace").split("\0")
    headers = {chr(ord("a") + number): _value(value) for number, value in enumerate(values[:6])}
    for scope in Scope:
        try:
            template = parse(text, scope)
        except PlaceholderError as error:
            check_fault(error.fault)
            continue
        check_resolution(template, scope, headers)
    is_operand(text)
    try:
        pattern = AddressPattern(text)
    except InvalidPattern:
        return
    for value in values:
        if pattern.allows(value):
            assert unsafe_in_address(value.removeprefix("/")) is None
        has_address_prefix(value, text)


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def _context(headers: Mapping[str, object]) -> PlaceholderContext:
    return PlaceholderContext(
        headers=headers,
        entity=EntityId(EntityType.THING, "acme", "lamp"),
        topic=parse_topic("acme/lamp/things/twin/events/modified"),
        resource_path="/attributes/a",
        resource_type="attributes",
        feature_ids=("f", "g"),
        thing_json=THING,
        connection_id="site",
        subjects=("acme:site", "acme:night"),
        source_address="in/lamp",
        now=lambda: NOW,
    )


def check_resolution(template: Template, scope: Scope, headers: Mapping[str, object]) -> None:
    """The values of a template are bounded or unresolved, and its address is safe or refused."""
    context = _context(headers)
    try:
        found = template.resolve(context)
    except PlaceholderError as error:
        check_fault(error.fault)
        found = None
    if found is not None:
        own = list(map(texts, headers.values()))
        assert len(found.values) <= max([MAX_VALUES, *map(len, own)])
        assert sum(map(len, found.values)) <= max([MAX_CHARACTERS, *(sum(map(len, values)) for values in own)])
        assert found.is_resolved == bool(found.values)
        assert HeaderMapping({"x": template.text}, scope).apply(context).get("x") == found.first
    try:
        resolve_address(template, context)
    except UnsafeAddress:
        assert template.literal is None
    except PlaceholderError:
        assert found is None or len(template.parts) > 1


_PLACEHOLDER_SEEDS = [
    line.split(" ;; ")[0] + "\0" + "\0".join(("1", '["a","b"]', '{"id":"p","l":[1,2]}', "a:b:c"))
    for line in (VECTORS / "placeholders.txt").read_text(encoding="utf-8").splitlines()
    if " ;; " in line
]
_PLACEHOLDER_WORDS = (
    *("{{ ", " }}", "${", "}", " | ", *(f"fn:{name}(" for name in FUNCTIONS), "'eq'", "'like'", "'exists'", "'ne'"),
    *(f"{prefix}:" for prefix in PLACEHOLDERS),
    *("header:a", "header:b", "thing-json:attributes/a", "topic:action", "time:now-1mo[w]", "'\\'", '"', "{#l}{.}{/l}"),
    *("\0", '["a","b"]', '{"id":"p"}', "/*/**", "**", "\\s+", "(?:a|b)?", "[^a-c]", "{2,3}", "\\u0041", "a/*/c"),
)


# ── functions ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_ARGUMENTS = (
    *("a", "", ",", "*a*|?b", "\\s+", "[,;]*", "(?:a|b){2,3}", "^a|b$", ".", "eq", "ne", "like", "exists", "true"),
    *("{id}{#l}{.}{/l}", "{/o/p}-{id}", "{l}{l}{l}", "{#l}{l}{l}{/l}", "\\{", "%41", "x" * 50, "*" * 20, "ab*" * 10),
)
_TEXTS = (
    *("", "a", "a,b;c", "ab" * 40, "a:b:c", " A\t", "YQ==", "a+b%2Fc%zz", "ä💡", "x", "aa bb  cc", "*", "\u2028", "$a"),
    *("2", "true", "a/b", "/a", "a//b", "acme:lamp"),
)
_CALLS = {
    "filter": 3,
    "default": 1,
    "replace": 2,
    "substring-before": 1,
    "substring-after": 1,
    "split": 1,
    "join": 1,
    "format": 1,
}
"""The maximum number of arguments, of the functions that take arguments."""


def call_functions(data: bytes) -> None:
    """Chains of functions with random arguments are applied to headers that multiply."""
    reader = ByteReader(data)
    calls = "".join(f" | {_call(reader)}" for _ in range(1 + reader.below(5)))
    start = reader.choice(("header:a", "header:b", "header:c", "thing-json:attributes/a", "request:subjectId"))
    around = reader.choice(("", "out/", "{{ header:b }}/"))
    headers = {name: _header(reader) for name in "abc"}
    try:
        template = parse(f"{around}{{{{ {start}{calls} }}}}", Scope.SOURCE)
    except PlaceholderError as error:
        check_fault(error.fault)
        return
    check_resolution(template, Scope.SOURCE, headers)


def _call(reader: ByteReader) -> str:
    name = reader.choice(list(FUNCTIONS))
    most = _CALLS.get(name, 0)
    number = most if reader.byte() < 240 else reader.below(4)
    return f"fn:{name}({','.join(_argument(reader) for _ in range(number))})"


def _argument(reader: ByteReader) -> str:
    if reader.byte() < 60:
        return reader.choice(("header:a", "header:b", "header:c", "topic:action"))
    text = reader.text(_ARGUMENTS)
    quote = '"' if "'" in text else "'"
    return f"{quote}{text}{quote}"


def _header(reader: ByteReader) -> object:
    match reader.below(4):
        case 0:
            return reader.text(_TEXTS)
        case 1:
            return reader.text(_TEXTS) * (1 << reader.below(16))
        case 2:
            return [reader.text(_TEXTS) for _ in range(1 + reader.below(5))] * (1 << reader.below(12))
        case _:
            return {"id": "p", "l": [1, "x"] * (1 << reader.below(9)), "o": reader.json(("p", "id", "l"), 2)}


# ── pointers and selectors ────────────────────────────────────────────────────────────────────────────────────────────


def read_pointer(data: bytes) -> None:
    """A pointer is the same after it was written, and `get`, `put` and `remove` use the same place."""
    text = data.decode("utf-8", "replace")
    try:
        path = parse_pointer(text)
    except DecodeError:
        # The error quotes the whole pointer; the sender of the response shortens it.
        assert "//" in text
        return
    assert all(path)
    assert parse_pointer(format_pointer(path)) == path
    document = copy.deepcopy(THING)
    value = object()
    changed = put(document, path, value)
    assert get(changed, path) is value
    if path:
        without = remove(document, path)
        assert get(without, path) is MISSING
        assert (without is document) == (get(document, path) is MISSING)
    assert document == THING


def read_selector(data: bytes) -> None:
    """A selector is read or refused; it selects a part, and selects the same from that part."""
    text = data.decode("utf-8", "replace")
    try:
        selection = parse_fields(text)
    except InvalidSelector:
        return
    assert build_selection(parse_pointers(text)) == selection
    chosen = select(THING, selection)
    assert _is_part(chosen, THING)
    assert select(chosen, selection) == chosen
    if "*" not in text:
        for pointer in parse_pointers(text):
            assert get(chosen, pointer) == get(THING, pointer)


def _is_part(part: Any, whole: Any) -> bool:
    if not isinstance(part, dict):
        return bool(part == whole)
    return isinstance(whole, dict) and all(
        name in whole and _is_part(member, whole[name]) for name, member in part.items()
    )


_PATHS = (
    "attributes",
    "features",
    "properties",
    "a~0b",
    "f",
    "*",
    "g",
    "_metadata",
    "thingId",
    "a",
    "b",
    "/",
    "~0",
    "~",
)

TARGETS = {
    "placeholders": target(
        read_placeholders, [seed for seed in _PLACEHOLDER_SEEDS if len(seed) < 4000], _PLACEHOLDER_WORDS
    ),
    "functions": target(call_functions, [bytes([4, *range(number, number + 60)]) for number in range(0, 190, 10)]),
    "pointers": target(read_pointer, ["/attributes/a/b", "/", "attributes/a~0b/", "/features/f/properties/q"], _PATHS),
    "fields": target(
        read_selector,
        ["thingId,attributes(a/b,n)", "features/*/properties/p", "features(*/properties/p,g),a", "attributes((a))"],
        (*_PATHS, "(", ")", ",", " "),
    ),
}

"""The parsers of documents: JSON and YAML texts, and connection documents with their parts."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any
from unittest.mock import patch

import yaml

from connectivity.config import documents
from connectivity.config.documents import is_within_limits, read_json
from connectivity.connections.target_topics import UnknownTargetTopic, parse_target_topic
from connectivity.security.uri import MASK, mask_uri, parse_tunnel_uri, parse_uri
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import target
from tests.support.judged_documents import check
from tests.support.paths import ROOT, VECTORS
from tests.support.random_documents import SCHEMA, USABLE, WORDS

# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_text(data: bytes) -> None:
    """A text is read or has problems; both YAML loaders agree, and JSON can be written and read again."""
    found = read_json(data)
    assert all(problem.found and problem.expected for problem in found.problems)
    assert is_within_limits(found.document)
    if not found.problems:
        assert read_json(json.dumps(found.document).encode()) == found
    text = data.decode("utf-8", "replace")
    fast = repr(documents._load(documents._load_yaml, text))
    with patch.object(documents, "_fast_loader", None):
        assert fast == repr(documents._load(documents._load_yaml, text))


_YAML = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "examples" / "connections").glob("*.yaml"))]
_YAML_WORDS = (
    *(
        "- ",
        ": ",
        "\n  ",
        "? ",
        "|-\n",
        ">\n",
        "&x ",
        "*x",
        "<<: *x\n",
        "!!str ",
        "!!set ",
        "%YAML 1.2\n",
        "---\n",
        "...\n",
    ),
    *(
        "0x1f",
        "1:30",
        ".inf",
        "2020-01-01",
        "010",
        "~",
        "yes",
        "\t",
        "\ufeff",
        "\u2028",
        "\x85",
        "[",
        "{",
        '"',
        "'",
        "\\u",
    ),
    *("\\ud800", "1e999", "NaN", '"a":', "null", "true"),
)

# ── connection documents ──────────────────────────────────────────────────────────────────────────────────────────────


def _names(schema: Any) -> set[str]:
    """Return the names of all members in a schema."""
    if isinstance(schema, list):
        return set().union(*map(_names, schema))
    if not isinstance(schema, dict):
        return set()
    return {*schema.get("properties", {})}.union(*map(_names, schema.values()))


NAMES = sorted(_names(SCHEMA))
"""The names of all members of documents."""


def _base_documents() -> list[dict[str, Any]]:
    vectors = [yaml.safe_load(file.read_bytes()) for file in sorted((VECTORS / "connections").glob("*.yaml"))]
    return [*USABLE, *(vector["base"] for vector in vectors), *map(yaml.safe_load, _YAML)]


_BASES = _base_documents()


def _texts_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(_texts_in, inner))


TEXTS = sorted({*WORDS, *_texts_in(_BASES)} - {"x" * 5000})


def read_connection(data: bytes) -> None:
    """A usable document with random changes has problems, or can be used."""
    reader = ByteReader(data)
    document: Any = copy.deepcopy(reader.choice(_BASES))
    for _ in range(1 + reader.below(6)):
        document = _changed(reader, document)
        if reader.is_at_end:
            break
    _read_address(reader.text(TEXTS))
    asyncio.run(_checked(document))


async def _checked(document: Any) -> None:
    check(document)


def _changed(reader: ByteReader, value: Any) -> Any:
    """Return a value with one part replaced, removed or added."""
    action = reader.below(8)
    if isinstance(value, dict) and value and action < 6:
        name = reader.choice(list(value))
        if action == 5:
            del value[name]
        else:
            value[name] = _changed(reader, value[name])
        return value
    if isinstance(value, list) and value and action < 6:
        index = reader.below(len(value))
        value[index] = _changed(reader, value[index])
        return value
    if isinstance(value, dict) and action == 6:
        return {**value, reader.text(NAMES): _value(reader)}
    if isinstance(value, list) and action == 6:
        return [*value, copy.deepcopy(reader.choice(value)) if value and reader.flag() else _value(reader)]
    if isinstance(value, str) and action < 4:
        return reader.text(TEXTS)
    return _value(reader)


def _value(reader: ByteReader) -> Any:
    return reader.text(TEXTS) if reader.flag() else reader.json((*NAMES, *TEXTS) if reader.flag() else NAMES, 3)


def _read_address(text: str) -> None:
    for parse in (parse_uri, parse_tunnel_uri):
        try:
            parse(text)
        except UnicodeError as error:
            raise AssertionError(f"{parse.__name__} raised a ValueError of another kind") from error
        except ValueError:
            pass
    try:
        password = parse_uri(text).password
    except ValueError:
        password = None
    if password is not None and len(password.get_secret_value()) > 8:
        assert password.get_secret_value() not in mask_uri(text).replace(MASK, "")
    try:
        parse_target_topic(text)
    except UnknownTargetTopic:
        return


TARGETS = {
    "documents": target(
        read_text,
        [
            *(text for text in _YAML if len(text) < 4096),
            *(json.dumps(document) for document in USABLE),
            *(
                "a: &x {b: 1}\nc: {<<: *x, b: 2}",
                '{"a":1,"a":2}',
                "? a\n: b",
                "[1, {a: 0x1f}, 'x']",
                '"\\ud800"',
                "a: >-\n b\n",
            ),
        ],
        _YAML_WORDS,
    ),
    "connections": target(
        read_connection,
        [bytes([base, *range(number, number + 40)]) for base in range(len(_BASES)) for number in (0, 50, 90)],
    ),
}

"""Tables and table cells in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def table(definition: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a model, one row for each."""
    required = definition.get("required", ())
    yield "| field | type | default | meaning | example |\n|---|---|---|---|---|"
    for name, field in definition["properties"].items():
        default = (
            "required" if name in required else code(field["default"]) if field.get("default") is not None else "–"
        )
        samples = " · ".join(code(sample) for sample in field.get("examples", ()))
        yield f"| `{name}` | {_type(field)} | {default} | {cell(field.get('description', ''))} | {samples} |"
    yield ""


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    choices = field.get("anyOf") or field.get("oneOf")
    if choices:
        return " or ".join(_type(choice) for choice in choices if choice.get("type") != "null")
    match field.get("type"):
        case "array":
            return f"list of {_type(field.get('items', {}))}"
        case "object":
            values = field.get("additionalProperties")
            return f"object of {_type(values)}" if isinstance(values, dict) and values else "object"
        case kind:
            return str(kind or "any")


def code(value: object) -> str:
    """A value in the syntax of a document, formatted as code."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`{cell(text)}`" if text else '`""`'


def cell(text: str) -> str:
    """A text, escaped for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")

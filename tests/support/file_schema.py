"""Validates documents with the published JSON Schema of connection files."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs

from connectivity.validation.file_schema import file_schema


@cache
def _validator() -> Any:
    return jsonschema_rs.validator_for(file_schema())


def is_accepted(document: object) -> bool:
    """Whether the schema accepts the content of a connection file."""
    return bool(_validator().is_valid(document))


def complaints(document: object) -> list[str]:
    """Return the errors of the schema for the content of a connection file."""
    return [f"{error.instance_path}: {error.message[:300]}" for error in _validator().iter_errors(document)]
